"""The items on which student and teacher disagree most, to be read by a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.errors import DataError
from distilvec.judging.shared import shared_neighbours
from distilvec.judging.tasks import unit

Array = npt.NDArray[Any]


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

    Raises:
        DataError: different numbers of rows.
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
