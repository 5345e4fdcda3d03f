"""Vectors from elsewhere need not cover a corpus: what they lack is counted, left out, and found missing."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np
import pytest

from distilvec.corpus import content_keys, read_corpus
from distilvec.errors import DataError
from distilvec.store import SignalStore, fill
from distilvec.teachers.vectors import VectorsTeacher
from distilvec.training import StoreSource

TEXTS = [f"sentence number {number} of some" for number in range(60)]
VECTORS = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)


def test_texts_without_a_vector_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    teacher = VectorsTeacher(VECTORS[:40], name="elsewhere", texts=TEXTS[:40])
    store = SignalStore.create(tmp_path, teacher.card, 8, "float32")
    mixed = [TEXTS[place] for place in np.random.default_rng(1).permutation(60)] + TEXTS[:5]
    seen: list[tuple[int, int]] = []
    with caplog.at_level(logging.WARNING):
        report = fill(store, teacher, mixed, content_keys(mixed), progress=lambda *now: seen.append(now))
    assert (report.items, report.distinct, report.present, report.taught, report.absent) == (65, 60, 0, 40, 20)
    assert seen[0] == (0, 60) and seen[-1] == (60, 60)
    assert "nothing for 20 of 60 items" in caplog.text
    rows = store.rows(content_keys(TEXTS))
    assert (rows[:40] >= 0).all() and (rows[40:] == -1).all() and len(store) == 40
    np.testing.assert_array_equal(store.read(rows[:40]), VECTORS[:40])
    again = fill(store, teacher, TEXTS, content_keys(TEXTS))
    assert (again.present, again.taught, again.absent, again.parts) == (40, 0, 20, [])


def test_shards_count_their_own_absent_texts(tmp_path: Path) -> None:
    teacher = VectorsTeacher(VECTORS[:40], name="elsewhere", texts=TEXTS[:40])
    store = SignalStore.create(tmp_path, teacher.card, 8)
    reports = [fill(store, teacher, TEXTS, content_keys(TEXTS), shard=(number, 2)) for number in range(2)]
    assert sum(report.taught for report in reports) == 40 and sum(report.absent for report in reports) == 20
    assert min(report.absent for report in reports) > 0


def test_training_gets_which_vectors_are_absent(tmp_path: Path) -> None:
    corpus = read_corpus(TEXTS, tmp_path / "corpus", holdout=0.0)
    teacher = VectorsTeacher(VECTORS[:40], name="elsewhere", texts=TEXTS[:40])
    store = SignalStore.create(tmp_path / "store", teacher.card, 8, "float32")
    fill(store, teacher, corpus.teacher_texts(), corpus.teacher_keys)
    found = StoreSource(store, corpus).fetch([0, 50, 39])
    assert found["present"].tolist() == [True, False, True]
    np.testing.assert_array_equal(found["sentence"].numpy(), [VECTORS[0], np.zeros(8), VECTORS[39]])


def test_a_teacher_of_other_texts_altogether(tmp_path: Path) -> None:
    corpus = read_corpus(TEXTS, tmp_path / "corpus", holdout=0.0)
    teacher = VectorsTeacher(VECTORS, name="elsewhere", texts=[f"other {text}" for text in TEXTS])
    store = SignalStore.create(tmp_path / "store", teacher.card, 8)
    report = fill(store, teacher, corpus.teacher_texts(), corpus.teacher_keys)
    assert (report.taught, report.absent, len(store)) == (0, 60, 0)
    with pytest.raises(DataError, match=re.escape(f"{store.path}: ") + ".*`distilvec teach`"):
        StoreSource(store, corpus)


def test_a_vector_that_is_there_but_not_finite_is_still_an_error(tmp_path: Path) -> None:
    broken = VECTORS.copy()
    broken[7, 3] = np.inf
    teacher = VectorsTeacher(broken, name="elsewhere", texts=TEXTS)
    store = SignalStore.create(tmp_path, teacher.card, 8)
    with pytest.raises(DataError, match=r"^array: .*row 7\b"):
        fill(store, teacher, TEXTS, content_keys(TEXTS))
