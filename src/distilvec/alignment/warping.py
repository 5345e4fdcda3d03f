"""Dynamic time warping of many token sequences at once, one anti-diagonal of all their grids at a time.

    D(i, j) = cost(i, j) + min(D(i-1, j-1), D(i-1, j), D(i, j-1)),    D(0, 0) = cost(0, 0)

i counts student tokens (rows), j teacher tokens (columns). The path runs from the last cell to the first and prefers
diagonal, then up (the row before), then left (the column before). No cell looks to its right or below, so grids of
different sizes stand in one array: what lies beyond a text's own corner is computed and never looked at.

Source: FuseLLM (Wan et al. 2024), minimum-edit-distance alignment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
_FAR = 1 << 29


@dataclass(frozen=True)
class Paths:
    """The warping paths of B texts, each from its first cell to its last, right-aligned in [B, P].

    Attributes:
        student, teacher: int64 [B, P] row and column of each cell.
        cost: int32 [B, P].
        real: bool [B, P] False = before the path's beginning.
        single: bool [B, P] the cell's row and column occur in no other cell of the path.
    """

    student: Integers
    teacher: Integers
    cost: NDArray[np.int32]
    real: NDArray[np.bool_]
    single: NDArray[np.bool_]


def warp(
    rows: Integers,
    columns: Integers,
    sizes: tuple[Integers, Integers],
    costs: Callable[[Integers], NDArray[np.integer]],
) -> Paths:
    """The cheapest warping path of each of B texts.

    Args:
        rows: [S, B] what row i of text b adds to the index of a cost; anything beyond the text's own rows.
        columns: [T, B] the same for columns.
        sizes: ([B], [B]) rows and columns of each text, at least 1.
        costs: takes indices rows + columns, of any shape, to costs >= 0 below 2^29 / (S + T) each.
    """
    grid = _accumulate(rows, columns, costs)
    flat, steps = grid.reshape(-1), sizes[0] + sizes[1] - 1
    height, lanes = grid.shape[1:]
    # Flat positions of a cell's three predecessors before it, in the order of preference.
    before = np.array([2 * height * lanes + lanes, height * lanes + lanes, height * lanes])
    ahead = before[:, None]
    at = (steps + 1) * (height * lanes) + sizes[0] * lanes + np.arange(lanes)
    cells = np.empty((int(steps.max()) + 1, lanes), dtype=np.int64)
    cells[0] = at
    for step in range(1, len(cells)):
        # The first of equal minima is the preferred one. From (0, 0) a path goes out at the corner, where D is 0, and
        # on into nowhere, which reads as 0 too.
        at = at - before.take(flat.take(at - ahead, mode="clip").argmin(0))
        cells[step] = at
    real = cells[:-1] >= lanes
    diagonal = np.ones(cells.shape, dtype=bool)
    diagonal[1:] = cells[:-1] - cells[1:] == before[0]
    distance = flat.take(cells, mode="clip")
    place, row = np.divmod(cells[:-1] // lanes, height)
    return Paths(
        student=_forward(row - 1),
        teacher=_forward(place - 2 - (row - 1)),
        cost=_forward(distance[:-1] - distance[1:]),
        real=_forward(real),
        single=_forward(real & diagonal[1:] & diagonal[:-1]),
    )


def _accumulate(
    rows: Integers, columns: Integers, costs: Callable[[Integers], NDArray[np.integer]]
) -> NDArray[np.int32]:
    """D of cell (i, j) at [i + j + 2, i + 1], with a border of far cells around it; int32 [S + T + 1, S + 1, B]."""
    (height, lanes), width = rows.shape, len(columns)
    grid = np.empty((height + width + 1, height + 1, lanes), dtype=np.int32)
    grid[:, 0] = _FAR
    border = np.arange(1, height + 1)
    grid[border, border] = _FAR
    grid[0, 0] = 0
    backwards = columns[::-1].copy()
    for number in range(height + width - 1):
        first, end = max(0, number - width + 1), min(number + 1, height)
        shift = width - 1 - number
        before, best = grid[number + 1], grid[number + 2, first + 1 : end + 1]
        np.minimum(before[first:end], before[first + 1 : end + 1], out=best)
        np.minimum(best, grid[number, first:end], out=best)
        best += costs(rows[first:end] + backwards[first + shift : end + shift])
    return grid


def _forward(backwards: NDArray) -> NDArray:
    """[P, B] from a path's end to its beginning -> [B, P] from its beginning to its end."""
    return np.ascontiguousarray(backwards[::-1].T)
