"""Texts made of a corpus's own: of those that are trained on, and trained on alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from distilvec import Recipe
from distilvec.corpus import read_corpus
from distilvec.corpus.made import made_texts
from distilvec.errors import DistilvecError


def rows(count: int) -> list[dict[str, str]]:
    """Texts of ten words that no other text has, in two domains."""
    return [
        {"text": " ".join(f"{row}w{word}" for word in range(10)), "domain": "even" if row % 2 == 0 else "odd"}
        for row in range(count)
    ]


def test_made_texts_are_of_training_texts_and_trained_on(tmp_path: Path) -> None:
    """Over several batches of the writer."""
    given = rows(20_000)
    plain = read_corpus(given, tmp_path / "plain", domain="domain", holdout=0.2)
    corpus = read_corpus(given, tmp_path / "made", domain="domain", holdout=0.2, made=0.5)
    assert set(corpus.texts(corpus.holdout_rows)) == set(plain.texts(plain.holdout_rows))
    trained = set(plain.texts(plain.train_rows))
    assert trained < set(corpus.texts(corpus.train_rows))
    assert len(corpus) == len(corpus.train_rows) + len(corpus.holdout_rows)

    sources = {int(text.split("w")[0]) for text in trained}
    assert corpus.domains is not None and corpus.domain_names is not None
    made = 0
    for row, text in zip(corpus.train_rows.tolist(), corpus.texts(corpus.train_rows), strict=True):
        if text in trained:
            continue
        made += 1
        words = [tuple(map(int, word.split("w"))) for word in text.split()]
        numbers = {number for number, _ in words}
        assert numbers <= sources and len(numbers) <= 2 and 3 <= len(words) <= 10
        assert corpus.domain_names[corpus.domains[row]] == ("even" if words[0][0] % 2 == 0 else "odd")
        assert len({number % 2 for number in numbers}) == 1
    assert made == corpus.audit.made
    assert 0.48 * len(trained) < made <= 0.5 * len(trained)
    assert f"{made:,} of them made of others" in str(corpus.audit)
    assert not (tmp_path / "made" / "rejected.jsonl").read_text()


def test_they_are_the_same_each_time_and_absent_without_the_option(tmp_path: Path) -> None:
    given = rows(300)
    first, again = (read_corpus(given, tmp_path / name, made=1.0) for name in ("first", "again"))
    assert first.fingerprint == again.fingerprint and first.texts() == again.texts()
    plain = read_corpus(given, tmp_path / "first")
    assert plain.texts() == [row["text"] for row in given] and plain.audit.made == 0


def test_short_texts_and_texts_without_spaces_make_no_texts(tmp_path: Path) -> None:
    corpus = read_corpus([f"two words{row}" for row in range(50)], tmp_path, made=2.0)
    assert len(corpus) == 50 and corpus.audit.made == 0
    assert made_texts(["这是一个没有空格的句子"], np.zeros(1), 20, 0) == []


@pytest.mark.parametrize(
    "options",
    [{"label": "label"}, {"text": ["text", "other"]}, {"role": "role"}, {"teacher_text": "other"}],
)
def test_only_single_texts_are_made_more(options: dict[str, object], tmp_path: Path) -> None:
    given = [{"text": "a b c d e f", "other": "g h i j k", "label": "x", "role": "query"}] * 3
    with pytest.raises(DistilvecError, match=r"single texts alone.*Leave corpus.made out"):
        read_corpus(given, tmp_path, made=1.0, **options)  # type: ignore[arg-type]


def test_a_negative_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DistilvecError, match="made is at least 0, not -1"):
        read_corpus(["a b c d e"], tmp_path, made=-1.0)


def test_a_saved_recipe_names_it_where_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "a b c d e"}))
    content = {"corpus": {"path": str(tmp_path / "texts.jsonl")}, "output": str(tmp_path / "out")}
    assert "made" not in Recipe.build(content).to_yaml()
    content["corpus"]["made"] = 1.5  # type: ignore[index]
    assert "made: 1.5" in Recipe.build(content).to_yaml()


@pytest.mark.parametrize("repeated", [False, True])
def test_given_text_equal_to_a_made_one_is_trained_on(repeated: bool, tmp_path: Path) -> None:
    long = [" ".join(f"w{number}x{word}" for word in range(10)) for number in range(9000)]
    first = read_corpus(long, tmp_path / "first", made=0.5, holdout=0.3)
    made = sorted(set(first.texts()) - set(long))[:400]
    corpus = read_corpus(long + made, tmp_path / "second", made=0.5, holdout=0.3, repeated=repeated, strict=True)
    held = set(corpus.texts(corpus.holdout_rows))
    assert held and not held & set(corpus.texts(corpus.train_rows))
    assert set(made) <= set(corpus.texts(corpus.train_rows)), "where they were made"
    assert corpus.audit.duplicates == 0
    assert corpus.audit.kept - corpus.audit.made == len(long) + len(made)
