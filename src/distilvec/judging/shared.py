"""The share of the teacher's nearest neighbours that a model finds, and its interval.

An item counts twice: its own neighbours are asked for, and it may be a neighbour of others. Drawing items again as if
they were independent leaves the second out, and intervals are a third too narrow. So neighbours are looked for again
without a part of the items, on both sides (the delete-d jackknife: Shao and Wu 1989).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.errors import DataError
from distilvec.judging.scores import Difference
from distilvec.judging.tasks import nearest_others, unit

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]
#: How often a part is left out, and which; ranks that are kept, so that enough stay whatever is left out.
TIMES, PART, RANKS = 100, 0.3, 60
#: Size of the neighbourhoods.
NEIGHBOURS = 10


@dataclass(frozen=True)
class SharedNeighbours:
    """A teacher's neighbourhoods among m items, and a model's.

    Attributes:
        rows: int64 [m], the items looked at; fewer than three have no neighbourhoods.
        ranked: of the teacher and of the model int64 [m, r], each item's nearest others, nearest first.
    """

    rows: Rows
    ranked: tuple[Rows, Rows]
    k: int

    @cached_property
    def shares(self) -> Array:
        """[m], of each item the share of its k nearest that both have."""
        return self._shares(np.ones(len(self.rows), bool))

    @property
    def value(self) -> float:
        """The mean share, 0 to 1."""
        return float(self.shares.mean())

    @cached_property
    def drawn(self) -> Array:
        """[TIMES, m], the shares without a part of the items; NaN for those left out. Equal parts for equal m."""
        rng, count = np.random.default_rng(0), len(self.rows)
        found = np.full((TIMES, count), np.nan)
        for number in range(TIMES):
            kept = np.ones(count, bool)
            kept[rng.choice(count, round(PART * count), replace=False)] = False
            found[number, kept] = self._shares(kept)[kept]
        return found

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the mean share, over items as those asked for and as those found."""
        low, high = _interval(self.value, self.drawn)
        return max(0.0, low), min(1.0, high)

    def minus(self, other: SharedNeighbours) -> Difference:
        """Return how many more of the same neighbours this model finds than another, with its interval."""
        gap = self.value - other.value
        return Difference(gap, _interval(gap, self.drawn - other.drawn), ("neighbours",), len(self.rows))

    def error_of(self, inside: Array) -> tuple[float, float]:
        """Standard errors of the mean share of some items (bool [m]), and of its distance to that of all others."""
        own, others = (np.nanmean(self.drawn[:, mask], axis=1) for mask in (inside, ~inside))
        return _error(own, len(self.rows)), _error(own - others, len(self.rows))

    def _shares(self, kept: Array) -> Array:
        """[m], among the items that are kept."""
        k = min(self.k, int(kept.sum()) - 1)
        near = [stays & (np.cumsum(stays, axis=1) <= k) for stays in (kept[side] for side in self.ranked)]
        place = self._place
        also = np.take_along_axis(near[1], np.maximum(place, 0), axis=1) & (place >= 0)
        return np.asarray((near[0] & also).sum(1) / k)

    @cached_property
    def _place(self) -> Rows:
        """[m, r], where the model ranks each of the teacher's; -1 = not among its r."""
        teacher, model = self.ranked
        place = np.full(teacher.shape, -1)
        for rank in range(model.shape[1]):
            place[teacher == model[:, rank, None]] = rank
        return place


def shared_neighbours(
    teacher_vectors: Array, student_vectors: Array, *, sample: int = 2_000, seed: int = 0
) -> SharedNeighbours:
    """Find each item's ten neighbours among the same items, for a teacher and a model.

    Args:
        teacher_vectors, student_vectors: [n, D], [n, d], in the same order.
        sample: a seeded sample of so many items is looked at.

    Raises:
        DataError: different numbers of rows.
    """
    if len(teacher_vectors) != len(student_vectors):
        raise DataError(
            f"{len(teacher_vectors)} vectors of the teacher and {len(student_vectors)} of the student do not belong "
            "together"
        )
    rows = np.arange(len(teacher_vectors))
    if len(rows) > sample:
        rows = np.sort(np.random.default_rng(seed).choice(len(rows), sample, replace=False))
    if len(rows) < 3:
        return SharedNeighbours(rows, (np.zeros((len(rows), 0), np.int64),) * 2, 0)
    sides = [unit(np.asarray(vectors)[rows]) for vectors in (teacher_vectors, student_vectors)]
    first, second = (nearest_others(side, side, min(RANKS, len(rows) - 1)) for side in sides)
    return SharedNeighbours(rows, (first, second), min(NEIGHBOURS, len(rows) - 1))


@dataclass(frozen=True)
class HardItem:
    """One item.

    Attributes:
        overlap: share of its nearest neighbours that both models have, 0 to 1.
        teacher, student: the text that each model finds nearest.
    """

    text: str
    overlap: float
    teacher: str
    student: str


def hardest(texts: Sequence[str], teacher_vectors: Array, student_vectors: Array, *, count: int = 10) -> list[HardItem]:
    """Items whose nearest neighbours among the others differ most between the two models, worst first.

    Neighbourhoods need no map between the two spaces. Of items with equal overlap those come first whose nearest item
    in the teacher's space is furthest down in the student's order of the items.

    Args:
        texts: n of them.
        teacher_vectors, student_vectors: [n, D], [n, d], in the same order.
        count: how many are returned; a sample of 2,000 items is looked at.

    Returns:
        At most `count`; none where there are fewer than three items.
    """
    if len(texts) != len(teacher_vectors):
        raise DataError(f"{len(texts)} texts and {len(teacher_vectors)} vectors of the teacher do not belong together")
    found = shared_neighbours(teacher_vectors, student_vectors)
    rows = found.rows
    if len(rows) < 3:
        return []
    theirs, ours = (side[:, 0] for side in found.ranked)
    own = unit(np.asarray(student_vectors)[rows])
    similarity = own @ own.T
    place = (similarity > similarity[np.arange(len(rows)), theirs][:, None]).sum(1)
    order = np.lexsort((-place, found.shares))[:count]
    return [
        HardItem(texts[rows[i]], float(found.shares[i]), texts[rows[theirs[i]]], texts[rows[ours[i]]]) for i in order
    ]


def _interval(value: float, drawn: Array) -> tuple[float, float]:
    """Return the interval of a mean over items, from their values without a part of the items, [TIMES, m] with NaN."""
    width = 1.96 * _error(np.nanmean(drawn, axis=1), drawn.shape[1])
    return value - width, value + width


def _error(means: Array, count: int) -> float:
    left_out = round(PART * count)
    return float(means.std() * np.sqrt((count - left_out) / left_out))
