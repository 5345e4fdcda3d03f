"""Rows of an index: sampled, searched, told."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from distilvec.indexes.rows import Rows, in_words, located, ranges, spread, top, unusable
from distilvec.judging.tasks import cosines, unit


def test_a_sample_has_both_ends_and_one_row_of_every_stretch() -> None:
    rows = spread(1000, 20, seed=3)
    assert rows[0] == 0 and rows[-1] == 999 and (np.diff(rows) > 0).all()
    assert (rows[1:-1] // 50).tolist() == list(range(1, 19))
    assert not np.array_equal(rows, spread(1000, 20, seed=4))
    assert spread(5, None, 0).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("blocks", [[(0, 999)], [(0, 60)], [(31, 500), (702, 999)], [(250, 421)]])
def test_the_ends_of_blocks_are_found_exactly(blocks: list[tuple[int, int]]) -> None:
    wrong = np.zeros(1000, bool)
    for first, last in blocks:
        wrong[first : last + 1] = True
    rows = spread(1000, 60, seed=0)
    asked: list[int] = []

    def look(more: Rows) -> np.ndarray:
        asked.extend(more.tolist())
        return wrong[more]

    assert located(rows, wrong[rows], look) == blocks
    assert len(asked) < 40


def test_scattered_rows_are_not_blocks() -> None:
    wrong = np.arange(1000) % 2 == 0
    rows = spread(1000, 60, seed=0)
    assert located(rows, wrong[rows], lambda more: wrong[more]) is None


def test_a_search_over_blocks_is_a_search_over_all(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    index, asked = random.normal(size=(101, 8)), random.normal(size=(7, 8))
    products = asked @ (index / np.linalg.norm(index, axis=1, keepdims=True)).T
    wanted = np.argsort(-products, axis=1)
    own = wanted[:, 1]
    monkeypatch.setattr("distilvec.indexes.rows.BLOCK", 13)
    assert np.array_equal(top(asked, index, 5), wanted[:, :5])
    assert np.array_equal(top(asked, index, 3, own), wanted[:, [0, 2, 3]])
    assert np.array_equal(top(asked, index, 1), wanted[:, :1])


def test_rows_without_a_vector_are_seen() -> None:
    vectors = np.ones((5, 2), np.float16)
    vectors[1, 1], vectors[3, 0], vectors[4] = np.nan, np.inf, 0
    broken, empty = unusable(vectors)
    assert broken.tolist() == [False, True, False, True, False] and empty.tolist() == [False] * 4 + [True]


def test_rows_in_words() -> None:
    assert in_words(ranges([0, 1, 2, 7, 1000, 1001])) == "0 to 2, 7, 1,000 to 1,001"
    assert in_words(ranges(np.arange(0, 14, 2))) == "0, 2, 4, 6, 8 and 2 more"
    assert ranges([]) == []


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_float32_are_seen() -> None:
    """In which everything is computed."""
    vectors = np.ones((6, 2))
    vectors[1], vectors[2], vectors[3], vectors[4] = (1e300, 1), (1.7e308, -1.7e308), (5e-324, 1e-60), (3e38, 0)
    broken, empty = unusable(vectors)
    assert np.flatnonzero(broken).tolist() == [1, 2] and np.flatnonzero(empty).tolist() == [3]


@pytest.mark.filterwarnings("error")
def test_lengths_whose_squares_leave_float32_are_right() -> None:
    plain = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    for factor in (1e-38, 1e-25, 1e-19, 1e19, 1e30, 1e37):
        assert np.allclose(unit(plain * np.float32(factor)), unit(plain), atol=1e-6), factor
    assert not unit(np.zeros((2, 3))).any()


MIB = 1 << 20


def peak(work: Callable[[], Any]) -> int:
    """Bytes that are taken at most."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_of_a_search_does_not_grow_with_the_queries() -> None:
    vectors = np.random.default_rng(0).normal(size=(4096, 4)).astype(np.float32)
    assert peak(lambda: top(vectors, vectors, 1)) < 1.2 * peak(lambda: top(vectors[:512], vectors, 1)) + MIB


def test_cosines_are_computed_in_blocks() -> None:
    vectors = np.ones((200_000, 16), np.float16)
    assert peak(lambda: cosines(vectors, vectors)) < 20 * MIB
