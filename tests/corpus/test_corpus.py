"""Splits, duplicates, pairs, keys, overlap, and using again what was prepared."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

from distilvec.corpus import Corpus, content_key, content_keys, read_corpus
from distilvec.corpus.keys import SeenKeys
from distilvec.errors import DataError, EnvironmentProblem


def held(corpus: Corpus) -> set[str]:
    return set(corpus.texts(corpus.holdout_rows))


def test_the_split_is_a_property_of_the_text(tmp_path: Path, sentences: list[str]) -> None:
    texts = [f"{text} {number}" for number in range(20) for text in sentences]
    whole = read_corpus(texts, tmp_path / "whole", holdout=0.1)
    mixed = random.Random(0).sample(texts, len(texts))
    small = read_corpus(texts[:1500], tmp_path / "small", holdout=0.1)
    reordered = read_corpus(mixed, tmp_path / "mixed", holdout=0.1)
    wider = read_corpus(texts, tmp_path / "wider", holdout=0.3)
    assert held(reordered) == held(whole)
    assert held(small) == held(whole) & set(small.texts())
    assert held(whole) < held(wider)
    assert abs(len(whole.holdout_rows) / len(whole) - 0.1) < 0.02
    for corpus in (whole, small, reordered, wider):
        rows = np.concatenate([corpus.train_rows, corpus.holdout_rows])
        assert np.array_equal(np.sort(rows), np.arange(len(corpus)))
    assert len(read_corpus(texts, tmp_path / "none", holdout=0.0).holdout_rows) == 0


def test_pairs_are_flattened_and_stay_together(tmp_path: Path) -> None:
    rows = [{"a": f"question {i}", "p": f"answer {i}", "n": f"wrong {i}" if i % 3 else None} for i in range(900)]
    rows[5] = {"a": "question 5", "p": None, "n": "wrong 5"}
    rows[7]["p"] = "answer 6"
    corpus = read_corpus(rows, tmp_path, text=["a", "p", "n"], holdout=0.2)
    assert corpus.groups is not None and corpus.roles is not None
    assert corpus.audit.rejected == {"missing text": 1} and corpus.audit.duplicates == 1
    by_group: dict[int, list[tuple[int, str]]] = {}
    for group, role, text in zip(corpus.groups.tolist(), corpus.roles.tolist(), corpus.texts(), strict=True):
        by_group.setdefault(group, []).append((role, text))
    good = [row for row in rows if row["p"]]
    expected = [[(role, row[name]) for role, name in enumerate("apn") if row[name]] for row in good]
    assert list(by_group.values()) == expected
    keys = corpus.keys
    twice = [row for row, text in enumerate(corpus.texts()) if text == "answer 6"]
    assert len(twice) == 2 and np.array_equal(keys[twice[0]], keys[twice[1]])
    train, rest = set(corpus.groups[corpus.train_rows].tolist()), set(corpus.groups[corpus.holdout_rows].tolist())
    assert not train & rest and train and rest
    anchors = [row["a"] for row in good]
    alone = read_corpus(anchors, tmp_path / "anchors", holdout=0.2)
    assert held(alone) == {text for text in held(corpus) if text.startswith("question")}


def test_a_column_for_the_teacher(tmp_path: Path) -> None:
    rows = [{"de": "Guten Morgen", "en": " Good morning"}, {"de": "Danke", "en": "Thanks"}, {"de": "Ja", "en": None}]
    corpus = read_corpus(rows, tmp_path, text="de", teacher_text="en", holdout=0.0)
    assert corpus.texts() == ["Guten Morgen", "Danke"]
    assert corpus.teacher_texts([1, 0]) == ["Thanks", "Good morning"]
    assert np.array_equal(corpus.teacher_keys, content_keys(["Good morning", "Thanks"]))
    assert np.array_equal(corpus.keys, content_keys(["Guten Morgen", "Danke"]))


def test_several_languages_have_one_lesson(tmp_path: Path) -> None:
    rows = [{"en": "Good day", "de": "Guten Tag", "fr": "Bonjour"}, {"en": "Thanks", "de": "Danke", "fr": ""}]
    corpus = read_corpus(rows, tmp_path, text=["en", "de", "fr"], teacher_text="en", holdout=0.0)
    assert corpus.texts() == ["Good day", "Guten Tag", "Bonjour", "Thanks", "Danke"]
    assert corpus.teacher_texts() == ["Good day"] * 3 + ["Thanks"] * 2
    assert corpus.roles is not None and corpus.roles.tolist() == [0, 1, 1, 0, 1], "a translation is no negative"
    assert corpus.groups is not None and corpus.groups.tolist() == [0, 0, 0, 1, 1]


def test_keys_tell_apart_what_differs() -> None:
    parts = [
        ("a", "", "text"),
        ("a", "b", "text"),
        ("ab", "", "text"),
        ("b", "a", "text"),
        ("C", "", "text"),
        ("C", "", "molecule"),
        ("", "a", "text"),
    ]
    assert len({content_key(*part) for part in parts}) == len(parts)
    assert len(content_key("x")) == 16
    keys = content_keys(["x", " y\n", "\ud800"])
    assert keys.shape == (3, 16) and keys.dtype == np.uint8
    assert keys[1].tobytes() == content_key("y")
    assert content_keys([]).shape == (0, 16)
    # Stores on disk depend on it: this value must never change.
    assert content_key("distilvec").hex() == "aba8fe3a1b286fc1f174221e48c6258c"


def test_duplicates_across_batches_are_kept_once(tmp_path: Path) -> None:
    texts = [f"text {number % 9000}" for number in range(30_000)]
    corpus = read_corpus(texts, tmp_path, holdout=0.0)
    assert corpus.texts() == texts[:9000]
    assert corpus.audit.duplicates == 21_000 and corpus.audit.read == 30_000


def test_repeated_texts_are_kept_where_they_are_wanted_and_on_one_side(tmp_path: Path) -> None:
    rows = [{"text": f"text {number % 9000}", "label": number} for number in range(20_000)]
    corpus = read_corpus(rows, tmp_path, label="label", repeated=True, holdout=0.2)
    assert len(corpus) == 20_000 and corpus.labels is not None and corpus.labels.tolist() == list(range(20_000))
    assert corpus.audit.duplicates == 11_000 and not corpus.audit.rejected
    held, trained = (set(corpus.texts(rows)) for rows in (corpus.holdout_rows, corpus.train_rows))
    assert held and trained and not held & trained
    assert len(read_corpus(rows, tmp_path, label="label", holdout=0.2)) == 9000, "another corpus"


def test_the_duplicate_check_is_right_and_small() -> None:
    generator = np.random.default_rng(0)
    pool = generator.integers(0, 256, (60_000, 16)).astype(np.uint8)
    seen, known = SeenKeys(), set()
    for _ in range(40):
        keys = pool[generator.integers(0, len(pool), 3000)]
        expected = []
        for key in map(bytes, keys):
            expected.append(key not in known)
            known.add(key)
        assert seen.add(keys).tolist() == expected
    assert sum(part.nbytes for part in seen._sorted) == 8 * len(known)


def test_limit_stops_reading(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n\ntwo\nthree\n")
    corpus = read_corpus(tmp_path / "a.txt", tmp_path / "out", limit=3, holdout=0.0)
    assert corpus.texts() == ["one", "two"] and corpus.audit.read == 3


def test_overlap_counts_distinct_training_texts(tmp_path: Path) -> None:
    texts = ["One text", "ANOTHER text", "another Text", "third", "fourth"]
    corpus = read_corpus(texts, tmp_path / "a", holdout=0.0)
    assert corpus.overlap(["one TEXT ", "another text", "third", "third", "none of these"]) == 3
    assert corpus.overlap([]) == 0
    lists = {"one": ["Third", "fourth"], "none": ["fifth"], "two": ["third"], "empty": []}
    assert corpus.overlaps(lists) == {"one": 2, "none": 0, "two": 1, "empty": 0}
    many = [f"text {number}" for number in range(1000)]
    corpus = read_corpus(many, tmp_path / "b", holdout=0.3)
    assert corpus.overlap(many) == len(corpus.train_rows) < 1000


def test_an_unchanged_source_is_not_read_again(tmp_path: Path) -> None:
    file, out = tmp_path / "a.txt", tmp_path / "out"
    file.write_text("one\ntwo\nthree\n")
    first = read_corpus(file, out, holdout=0.0)
    written = (out / "corpus.json").stat().st_mtime_ns
    again = read_corpus(file, out, holdout=0.0)
    assert (out / "corpus.json").stat().st_mtime_ns == written
    assert again.texts() == first.texts() and again.fingerprint == first.fingerprint
    assert again.audit == first.audit and Corpus.open(out).texts() == first.texts()
    assert read_corpus(file, out, holdout=0.0, max_characters=3).texts() == ["one", "two"]
    file.write_text("one\ntwo\nfour\n")
    changed = read_corpus(file, out, holdout=0.0)
    assert changed.texts() == ["one", "two", "four"] and changed.fingerprint != first.fingerprint
    assert first.texts() == ["one", "two", "three"], "who has it open keeps it"
    listed = read_corpus(["a", "b"], tmp_path / "list", holdout=0.0)
    written = (tmp_path / "list" / "corpus.json").stat().st_mtime_ns
    read_corpus(["a", "b"], tmp_path / "list", holdout=0.0)
    assert (tmp_path / "list" / "corpus.json").stat().st_mtime_ns == written
    assert read_corpus(["a", "c"], tmp_path / "list", holdout=0.0).texts() == ["a", "c"] != listed.texts()


def test_the_fingerprint_is_that_of_the_content(tmp_path: Path) -> None:
    rows = [{"text": "a", "domain": "x"}, {"text": "b", "domain": "y"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    one = read_corpus(rows, tmp_path / "1", domain="domain", holdout=0.0)
    same = read_corpus(tmp_path / "a.jsonl", tmp_path / "2", domain="domain", holdout=0.0)
    plain = read_corpus(rows, tmp_path / "3", holdout=0.0)
    turned = read_corpus(rows[::-1], tmp_path / "4", domain="domain", holdout=0.0)
    renamed = read_corpus([rows[0], {"text": "b", "domain": "z"}], tmp_path / "5", domain="domain", holdout=0.0)
    assert one.fingerprint == same.fingerprint
    assert len({corpus.fingerprint for corpus in (one, plain, turned, renamed)}) == 4


@pytest.mark.parametrize("name", ["items.arrow", "keys.bin", "train_rows.bin", "corpus.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_corpus_is_refused_and_read_again(tmp_path: Path, name: str, damage: str) -> None:
    out = tmp_path / "out"
    read_corpus(["one", "two"], out, holdout=0.0)
    file = out / name
    if damage == "cut":
        os.truncate(file, file.stat().st_size // 2)
    else:
        file.unlink()
    with pytest.raises(DataError):
        Corpus.open(out)
    assert read_corpus(["one", "two"], out, holdout=0.0).texts() == ["one", "two"]


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    read_corpus(["one"], tmp_path, holdout=0.0)
    assert (tmp_path / "mine.txt").read_text() == "keep"


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(EnvironmentProblem):
        read_corpus(["one"], tmp_path / "file")


def test_two_parquet_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [pa.array(["a", "b"]), pa.array(["c", "d"]), pa.array([1, 2]), pa.array([1, 2])]
    pq.write_table(pa.table(columns, names=["text", "text", "n", "n"]), tmp_path / "twice.parquet")
    with pytest.raises(DataError, match=r'twice\.parquet: two columns are called "text"'):
        read_corpus(tmp_path / "twice.parquet", tmp_path / "out")
    pq.write_table(pa.table(columns[1:], names=["text", "n", "n"]), tmp_path / "other.parquet")
    assert read_corpus(tmp_path / "other.parquet", tmp_path / "more", holdout=0).texts() == ["c", "d"]
