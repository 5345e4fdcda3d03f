"""The definitions in plain Python, cell by cell, that the library's alignment is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

Pair = tuple[int, int]


def edit_distance(a: str, b: str) -> int:
    """Levenshtein's, by its recurrence."""
    before = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y)))
        before = row
    return before[-1]


def path(a: Sequence[str], b: Sequence[str], distance: Callable[[str, str], int] = edit_distance) -> list[Pair]:
    """The warping path; ties diagonal, up, left."""
    far = float("inf")
    total = [[far] * (len(b) + 1) for _ in range(len(a) + 1)]
    total[0][0] = 0
    for i, x in enumerate(a, 1):
        for j, y in enumerate(b, 1):
            total[i][j] = distance(x, y) + min(total[i - 1][j - 1], total[i - 1][j], total[i][j - 1])
    i, j = len(a), len(b)
    cells = []
    while i and j:
        cells.append((i - 1, j - 1))
        diagonal, up, left = total[i - 1][j - 1], total[i - 1][j], total[i][j - 1]
        if diagonal <= up and diagonal <= left:
            i, j = i - 1, j - 1
        elif up <= left:
            i -= 1
        else:
            j -= 1
    return cells[::-1]


def pairs(a: Sequence[str], b: Sequence[str], mode: str) -> list[Pair]:
    """strict, path or full, by their definitions."""
    cells = path(a, b)
    if mode == "full":
        return cells
    rows, columns = Counter(i for i, _ in cells), Counter(j for _, j in cells)
    single = [(i, j) for i, j in cells if rows[i] == columns[j] == 1]
    return single if mode == "path" else [(i, j) for i, j in single if a[i] == b[j]]


def reciprocal(a: Sequence[str], b: Sequence[str], window: int) -> list[Pair]:
    """Mutual nearest strings within the window; ties by nearness to the path, then the earlier."""
    cells = path(a, b)

    def beside(i: int, j: int) -> int:
        in_row, in_column = [q for p, q in cells if p == i], [p for p, q in cells if q == j]
        return min(
            max(in_row[0] - j, j - in_row[-1], 0),
            max(in_column[0] - i, i - in_column[-1], 0),
        )

    near = {(i, j): beside(i, j) for i in range(len(a)) for j in range(len(b))}
    score = {cell: (edit_distance(a[cell[0]], b[cell[1]]), away) for cell, away in near.items() if away <= window}
    of_row = {i: min((*s, c[1]) for c, s in score.items() if c[0] == i)[2] for i in range(len(a))}
    of_column = {j: min((*s, c[0]) for c, s in score.items() if c[1] == j)[2] for j in range(len(b))}
    return [(i, j) for i, j in of_row.items() if of_column[j] == i]
