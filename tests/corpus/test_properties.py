"""What holds for any text: keys tell items apart, what goes in comes out, the split is nobody else's business."""

from __future__ import annotations

import csv
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distilvec.corpus import content_key, content_keys, read_corpus
from distilvec.corpus.docstrings import NearDuplicates
from distilvec.corpus.keys import canonical, canonical_keys, is_blank
from distilvec.corpus.split import held_out, leaking

# Everything Unicode has: separators, marks, emoji, private use, and what the audit refuses.
anything = st.text(max_size=40)
usable = anything.filter(
    lambda text: not is_blank(text) and not re.search("[\x00-\x08\x0e-\x1f\x7f\ud800-\udfff]", text)
)


def key(text: str, role: str, modality: str) -> bytes:
    """The key of a text under any modality's name: what an image or a molecule is reduced to is a text too."""
    return canonical_keys([canonical(text)], role, modality).tobytes()


@given(st.lists(st.tuples(anything, st.sampled_from(["", "query", "a"]) | anything, anything), min_size=2, max_size=8))
def test_different_items_have_different_keys(items: list[tuple[str, str, str]]) -> None:
    alike = {(canonical(text), role, modality) for text, role, modality in items}
    assert len({key(*item) for item in items}) == len(alike)


@given(anything, anything, anything, st.integers(0, 40))
def test_no_boundary_can_be_moved(text: str, role: str, modality: str, place: int) -> None:
    whole = modality + role + text
    first, second = sorted((place % (len(whole) + 1), (place * 7) % (len(whole) + 1)))
    moved = (whole[second:], whole[first:second], whole[:first])
    same = (canonical(moved[0]), *moved[1:]) == (canonical(text), role, modality)
    assert (key(*moved) == key(text, role, modality)) is same
    assert content_key(text, role) == key(text, role, "text")


@given(st.lists(anything, max_size=20), st.sampled_from(["", "query"]))
def test_many_keys_are_the_single_keys(texts: list[str], role: str) -> None:
    assert [bytes(key) for key in content_keys(texts, role)] == [content_key(text, role) for text in texts]


@pytest.mark.parametrize("kind", ["list", "jsonl", "csv", "parquet"])
def test_texts_in_are_texts_out(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp(kind)

    @settings(max_examples=40, deadline=None)
    @given(st.lists(usable, min_size=1, max_size=10))
    def check(texts: list[str]) -> None:
        source: object = texts
        if kind == "jsonl":
            source = folder / "a.jsonl"
            (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
        elif kind == "csv":
            source = folder / "a.csv"
            with (folder / "a.csv").open("w", encoding="utf-8", newline="") as out:
                csv.writer(out, quoting=csv.QUOTE_ALL).writerows([["text"], *([text] for text in texts)])
        elif kind == "parquet":
            source = folder / "a.parquet"
            pq.write_table(pa.table({"text": texts}), source)
        corpus = read_corpus(source, folder / "out", holdout=0.0)
        expected = list(dict.fromkeys(map(canonical, texts)))
        assert corpus.texts() == expected
        assert corpus.audit.duplicates == len(texts) - len(expected) and not corpus.audit.rejected
        assert np.array_equal(corpus.keys, content_keys(expected))
        assert corpus.texts(np.arange(len(expected))[::-1]) == expected[::-1]

    check()


@settings(deadline=None)
@given(
    st.lists(st.frozensets(st.sampled_from("abcdefghij"), max_size=8), max_size=25),
    st.sampled_from([0.3, 0.5, 0.7, 0.75, 1.0]),
)
def test_near_duplicates_are_those_that_comparing_all_pairs_finds(sets: list[frozenset[str]], threshold: float) -> None:
    found, seen = NearDuplicates(threshold), list[frozenset[str]]()
    for words in sets:
        expected = bool(words) and any(len(words & old) >= threshold * len(words | old) for old in seen)
        assert (words in found) is expected
        found.add(words)
        seen.append(words)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.floats(0, 0.9), st.randoms(use_true_random=False))
def test_leaks_are_those_that_sets_find(texts: list[int], share: float, chance: random.Random) -> None:
    keys = content_keys([f"text {number}" for number in texts])
    held = np.array([chance.random() < share for _ in texts])
    train, rest = np.flatnonzero(~held), np.flatnonzero(held)
    trained = {texts[row] for row in train}
    assert leaking(keys, train, rest).tolist() == [texts[row] in trained for row in rest]


@given(st.lists(anything, min_size=1, max_size=30), st.floats(0, 0.999), st.floats(0, 0.999))
def test_a_larger_share_holds_out_more_of_the_same(texts: list[str], one: float, other: float) -> None:
    keys = content_keys(texts)
    less, more = held_out(keys, min(one, other)), held_out(keys, max(one, other))
    assert not (less & ~more).any()
    assert held_out(keys[::-1], one).tolist() == held_out(keys, one).tolist()[::-1]


def test_a_text_is_never_on_both_sides(tmp_path: Path) -> None:
    rows = [{"a": f"question {number}", "p": f"answer {number % 400}"} for number in range(2000)]
    corpus = read_corpus(rows, tmp_path / "pairs", text=["a", "p"], holdout=0.1)
    train, held = corpus.texts(corpus.train_rows), corpus.texts(corpus.holdout_rows)
    assert not set(train) & set(held) and len(held) > 100
    assert corpus.audit.shared == len(corpus) - len(train) - len(held) > 100
    assert f"{corpus.audit.shared} held-out texts set aside" in str(corpus.audit)
    assert corpus.groups is not None
    assert not set(corpus.groups[corpus.train_rows]) & set(corpus.groups[corpus.holdout_rows])
    distinct = [{"a": f"question {number}", "p": f"answer {number}"} for number in range(2000)]
    apart = read_corpus(distinct, tmp_path / "apart", text=["a", "p"], holdout=0.1)
    assert apart.audit.shared == 0 and len(apart.train_rows) + len(apart.holdout_rows) == 4000


def test_the_split_of_pairs_survives_order_and_growth(tmp_path: Path) -> None:
    rows = [{"a": f"question {number}", "p": f"answer {number % 900}"} for number in range(1000)]
    mixed = random.Random(0).sample(rows, len(rows))
    more = [*rows, *({"a": f"new question {number}", "p": f"new answer {number}"} for number in range(500))]
    sides = []
    for number, source in enumerate((rows, mixed, more)):
        corpus = read_corpus(source, tmp_path / str(number), text=["a", "p"], holdout=0.2)
        sides.append((set(corpus.texts(corpus.train_rows)), set(corpus.texts(corpus.holdout_rows))))
    assert sides[0] == sides[1]
    assert sides[0][0] < sides[2][0] and sides[0][1] < sides[2][1]
