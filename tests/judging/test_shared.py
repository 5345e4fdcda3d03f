"""How many of the teacher's neighbours a model finds, and how sure that is."""

from __future__ import annotations

import numpy as np
import pytest

from distilvec.errors import DataError
from distilvec.judging import Outputs, Score, agreement, make_score, paired_bootstrap
from distilvec.judging.shared import SharedNeighbours, shared_neighbours


def one(rng: np.random.Generator, items: int, noise: tuple[float, ...]) -> list[SharedNeighbours]:
    """What students find that see a teacher through so much noise each."""
    teacher = rng.standard_normal((items, 24))
    return [shared_neighbours(teacher, teacher + each * rng.standard_normal(teacher.shape)) for each in noise]


def score(shares: np.ndarray) -> Score:
    outputs = Outputs("mean", np.zeros(len(shares), np.int8), shares)
    return make_score(task="neighbours", kind="neighbours", domain=None, outputs=outputs)


def test_the_mean_is_that_of_agreement() -> None:
    rng = np.random.default_rng(0)
    teacher = rng.standard_normal((150, 16)).astype(np.float32)
    student = teacher + 0.5 * rng.standard_normal(teacher.shape).astype(np.float32)
    found = shared_neighbours(teacher, student)
    assert found.value == pytest.approx(agreement(teacher, student)["neighbours"], abs=1e-6)
    assert found.interval[0] < found.value < found.interval[1]
    assert shared_neighbours(teacher, 2 * teacher).value == 1 and len(shared_neighbours(teacher, teacher).rows) == 150


def test_without_a_part_of_the_items_it_is_what_these_alone_would_give() -> None:
    rng = np.random.default_rng(1)
    teacher, student = rng.standard_normal((2, 90, 8))
    found = shared_neighbours(teacher, student)
    for drawn in found.drawn[:5]:
        kept = ~np.isnan(drawn)
        assert kept.sum() == 63
        np.testing.assert_allclose(drawn[kept], shared_neighbours(teacher[kept], student[kept]).shares)


def test_equal_students_rarely_differ_and_intervals_cover_the_mean() -> None:
    """Items drawn as if they were independent have many winners, as an item is also found by others."""
    rng = np.random.default_rng(2)
    pairs = [one(rng, 60, (0.8, 0.8)) for _ in range(100)]
    mean = np.mean([each.value for pair in pairs for each in pair])
    assert sum(first.minus(second).supported for first, second in pairs) <= 5
    drawn = [[score(each.shares) for each in pair] for pair in pairs]
    assert sum(paired_bootstrap(*pair, resamples=300).supported for pair in drawn) >= 10
    assert sum(low <= mean <= high for low, high in (pair[0].interval for pair in pairs)) >= 93


def test_a_better_student_wins_significantly() -> None:
    rng = np.random.default_rng(3)
    better, worse = one(rng, 200, (0.5, 0.9))
    gap = better.minus(worse)
    assert gap.supported and gap.value == pytest.approx(better.value - worse.value)
    assert worse.minus(better).interval == tuple(-edge for edge in gap.interval[::-1])


def test_few_items() -> None:
    assert len(shared_neighbours(np.eye(2), np.eye(2)).ranked[0]) == 2
    assert shared_neighbours(np.ones((4, 3)), np.ones((4, 3))).value == 1
    with pytest.raises(DataError, match=r"\b3 .*\b2 "):
        shared_neighbours(np.eye(3), np.eye(3)[:2])
