"""The items on which student and teacher disagree most, to be read by a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.errors import DataError
from distilvec.judging.retrieval import top_rows
from distilvec.judging.tasks import unit

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class HardItem:
    """One item.

    Attributes:
        text: of the item.
        overlap: share of its nearest neighbours that both models have, 0 to 1.
        teacher, student: the text that each model finds nearest.
    """

    text: str
    overlap: float
    teacher: str
    student: str


def hardest(
    texts: Sequence[str],
    teacher_vectors: Array,
    student_vectors: Array,
    *,
    count: int = 10,
    neighbours: int = 10,
    sample: int = 2_000,
    seed: int = 0,
) -> list[HardItem]:
    """Items whose nearest neighbours among the others differ most between the two models, worst first.

    Neighbourhoods need no map between the two spaces. Of items with equal overlap those come first whose nearest item
    in the teacher's space is furthest down in the student's order of the items.

    Args:
        texts: n of them.
        teacher_vectors, student_vectors: [n, D], [n, d], in the same order.
        count: how many are returned.
        neighbours: size of the neighbourhoods.
        sample: a seeded sample of so many items is looked at.

    Returns:
        At most `count`; none where there are fewer than three items.

    Raises:
        DataError: different numbers of rows.
    """
    if len(texts) != len(teacher_vectors):
        raise DataError(f"{len(texts)} texts and {len(teacher_vectors)} vectors of the teacher do not belong together")
    rows, sides, near, overlap = _neighbourhoods(teacher_vectors, student_vectors, neighbours, sample, seed)
    if not len(overlap):
        return []
    first = near[0][:, 0]
    similarity = sides[1] @ sides[1].T
    place = (similarity > similarity[np.arange(len(rows)), first][:, None]).sum(1)
    order = np.lexsort((-place, overlap))[:count]
    return [
        HardItem(texts[rows[i]], float(overlap[i]), texts[rows[near[0][i, 0]]], texts[rows[near[1][i, 0]]])
        for i in order
    ]


def shared_neighbours(
    teacher_vectors: Array, student_vectors: Array, *, neighbours: int = 10, sample: int = 2_000, seed: int = 0
) -> tuple[npt.NDArray[np.int64], Array]:
    """Of each item the share of its nearest neighbours among the others that both models have.

    Args:
        teacher_vectors, student_vectors: [n, D], [n, d], in the same order.
        neighbours: size of the neighbourhoods.
        sample: a seeded sample of so many items is looked at.

    Returns:
        Numbers of the items looked at, int64 [m], and their shares, [m]; both empty where there are fewer than three
        items.

    Raises:
        DataError: different numbers of rows.
    """
    rows, _, _, overlap = _neighbourhoods(teacher_vectors, student_vectors, neighbours, sample, seed)
    return rows[: len(overlap)], overlap


def _neighbourhoods(
    teacher_vectors: Array, student_vectors: Array, neighbours: int, sample: int, seed: int
) -> tuple[npt.NDArray[np.int64], list[Array], list[npt.NDArray[np.int64]], Array]:
    """Items looked at; unit vectors of both models; each one's nearest of each item; the share that both have."""
    if len(teacher_vectors) != len(student_vectors):
        raise DataError(
            f"{len(teacher_vectors)} vectors of the teacher and {len(student_vectors)} of the student do not belong "
            "together"
        )
    rows = np.arange(len(teacher_vectors))
    if len(rows) > sample:
        rows = np.sort(np.random.default_rng(seed).choice(len(rows), sample, replace=False))
    sides = [unit(np.asarray(vectors)[rows]) for vectors in (teacher_vectors, student_vectors)]
    if len(rows) < 3:
        return rows, sides, [], np.zeros(0)
    k = min(neighbours, len(rows) - 1)
    near = [_others(top_rows(side, side, k + 1)) for side in sides]
    overlap = np.array([len(set(ours) & set(theirs)) / k for theirs, ours in zip(*near, strict=True)])
    return rows, sides, near, overlap


def _others(ranked: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Ranked rows [n, k + 1] without each row's own number, [n, k]."""
    itself = ranked == np.arange(len(ranked))[:, None]
    itself[~itself.any(1), -1] = True  # equal vectors may crowd an item out of its own list
    return ranked[~itself].reshape(len(ranked), -1)
