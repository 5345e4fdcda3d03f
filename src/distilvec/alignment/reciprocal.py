"""Pairs of tokens of which each is the other's nearest string near the warping path."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["WINDOW", "reciprocal_pairs"]

#: A cell this many tokens beside the warping path may still pair.
WINDOW = 4


def reciprocal_pairs(cost: NDArray[np.integer], path: NDArray[np.integer]) -> NDArray[np.int32]:
    """Mutual nearest tokens within `WINDOW` rows or columns of the path.

    Among equally near strings the one nearer to the path counts, then the earlier. Exact matches that the path glued
    to a neighbour are found again; that the window follows the path, not the diagonal of the grid, keeps it right
    where one side is truncated.

    Args:
        cost: [n, m] edit distances, n and m at least 1.
        path: int [P, 2] the warping path.

    Returns:
        int32 [Q, 2] (student index, teacher index), by student.

    Source: EMO; its published code does this over sets of strings, without positions.
    """
    away = np.minimum(_beside(path[:, 0], path[:, 1], cost.shape), _beside(path[:, 1], path[:, 0], cost.shape[::-1]).T)
    score = np.where(away <= WINDOW, cost.astype(np.int64) * (WINDOW + 1) + away, np.iinfo(np.int64).max)
    nearest_teacher, nearest_student = score.argmin(1), score.argmin(0)
    student = np.arange(len(cost))
    mutual = nearest_student[nearest_teacher] == student
    return np.stack([student[mutual], nearest_teacher[mutual]], axis=1).astype(np.int32)


def _beside(row: NDArray[np.integer], column: NDArray[np.integer], shape: tuple[int, ...]) -> NDArray[np.integer]:
    """[n, m] how many columns each cell lies beside the columns that the path visits in its row."""
    each = np.arange(shape[0])
    first = column[np.searchsorted(row, each)][:, None]
    last = column[np.searchsorted(row, each, side="right") - 1][:, None]
    place = np.arange(shape[1])
    return np.maximum(np.maximum(first - place, place - last), 0)
