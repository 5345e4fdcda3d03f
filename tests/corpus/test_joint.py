"""Joint pairs: one item of two texts, with a separator that means nothing anywhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distilvec.corpus import PAIR, content_key, join_pair, read_corpus, split_pair
from distilvec.errors import DataError, DistilvecError


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    file = folder / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def test_a_row_becomes_one_item_with_its_label(tmp_path: Path) -> None:
    rows = [
        {"a": " A plane is taking off. ", "b": "An air plane\tis taking off.", "score": 5.0},
        {"a": "A man plays.", "b": "A man is playing a flute.", "score": 3.8},
        {"a": "A man is playing a flute.", "b": "A man plays.", "score": 3.8},
        {"a": "A man plays.", "b": "A man is playing a flute.", "score": 1.0},
    ]
    corpus = read_corpus(write(tmp_path, rows), tmp_path / "out", text=["a", "b"], label="score", joint=True, holdout=0)
    assert corpus.texts() == [
        "A plane is taking off.\x1eAn air plane\tis taking off.",
        "A man plays.\x1eA man is playing a flute.",
        "A man is playing a flute.\x1eA man plays.",
    ]
    assert corpus.labels is not None and corpus.labels.tolist() == pytest.approx([5.0, 3.8, 3.8])
    assert corpus.groups is None and corpus.roles is None
    assert (corpus.audit.kept, corpus.audit.duplicates) == (3, 1)
    assert corpus.keys[1].tobytes() == content_key(join_pair("A man plays.", "A man is playing a flute."))
    assert split_pair(corpus.texts([1])[0]) == ("A man plays.", "A man is playing a flute.")


def test_the_separator_within_a_text_is_cleaned_other_control_characters_reject_the_row(tmp_path: Path) -> None:
    rows = [
        {"a": "one\x1etwo", "b": "\x1ethree\x1e"},
        {"a": "bell \x07", "b": "x"},
        {"a": "rec\x1dord", "b": "x"},
        {"a": "fine", "b": " \x1e "},
        {"a": "fine", "b": None},
    ]
    corpus = read_corpus(write(tmp_path, rows), tmp_path / "out", text=["a", "b"], joint=True, holdout=0)
    assert corpus.texts() == ["one two\x1ethree"]
    assert corpus.audit.rejected == {"control characters": 2, "empty": 1, "missing text": 1}
    alone = read_corpus([{"text": "one\x1etwo"}, {"text": "good"}], tmp_path / "alone", holdout=0)
    assert alone.texts() == ["good"] and alone.audit.rejected == {"control characters": 1}


def test_joint_and_flattened_are_different_corpora(tmp_path: Path) -> None:
    rows = [{"a": f"first {n}", "b": f"second {n}"} for n in range(40)]
    file = write(tmp_path, rows)
    flat = read_corpus(file, tmp_path / "out", text=["a", "b"], holdout=0.2)
    joint = read_corpus(file, tmp_path / "out", text=["a", "b"], joint=True, holdout=0.2)
    assert (len(flat), len(joint)) == (80, 40)
    assert all(text.count(PAIR) == 1 for text in joint.texts())
    assert 0 < len(joint.holdout_rows) < 40
    again = read_corpus(file, tmp_path / "out", text=["a", "b"], joint=True, holdout=0.2)
    assert again.fingerprint == joint.fingerprint


def test_joint_needs_two_columns(tmp_path: Path) -> None:
    file = write(tmp_path, [{"a": "x", "b": "y", "c": "z"}])
    for columns, number in (("a", 1), (["a", "b", "c"], 3)):
        with pytest.raises(DistilvecError, match=rf"corpus\.joint: .*\b{number}\b.*corpus\.text"):
            read_corpus(file, tmp_path / "out", text=columns, joint=True)
    with pytest.raises(DataError, match=r"items: .*: a, b\."):
        read_corpus(["plain text"], tmp_path / "out", text=["a", "b"], joint=True)


def test_splitting_is_the_inverse_of_joining_and_leaves_other_texts_alone() -> None:
    assert split_pair(join_pair("a", "b")) == ("a", "b")
    assert split_pair("no pair") == "no pair"
    assert split_pair("a\x1eb\x1ec") == "a\x1eb\x1ec"


def test_a_first_text_that_several_pairs_have_stays_on_one_side(tmp_path: Path) -> None:
    """Premises with three hypotheses each: as where the two are read one after the other."""
    rows = [{"a": f"premise {n}", "b": f"hypothesis {n} {m}"} for n in range(60) for m in range(3)]
    file = write(tmp_path, rows)
    joint = read_corpus(file, tmp_path / "out", text=["a", "b"], joint=True, holdout=0.2)
    sides = [{text.split(PAIR)[0] for text in joint.texts(rows)} for rows in (joint.train_rows, joint.holdout_rows)]
    assert all(sides) and not sides[0] & sides[1]
    flat = read_corpus(file, tmp_path / "flat", text=["a", "b"], holdout=0.2)
    assert sides[1] == {text for text in flat.texts(flat.holdout_rows) if text.startswith("premise")}


def test_overlap_counts_either_text_of_a_pair(tmp_path: Path) -> None:
    file = write(tmp_path, [{"a": f"First {n}", "b": f"second {n}"} for n in range(10)])
    joint = read_corpus(file, tmp_path / "out", text=["a", "b"], joint=True, holdout=0)
    assert joint.overlap(["first 3", "second 3", "Second 4", "none"]) == 3
    assert joint.overlap([join_pair("first 3", "SECOND 3"), join_pair("first 3", "second 4")]) == 1, "whole pairs"
