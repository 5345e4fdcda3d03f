"""Rows of an index: which are sampled, which are near, and how a set of them is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distilvec.judging.tasks import unit
from distilvec.mining.nearest import nearest

Rows = npt.NDArray[np.int64]
Marks = npt.NDArray[np.bool_]
#: Rows of an index that are looked at together, and vectors that are searched for at a time: an index may have millions
#: of rows, and all of them may be asked.
BLOCK, _ASKED = 8192, 1024
#: What `unusable` finds.
BROKEN, EMPTY = "NaN, infinity or numbers beyond float32", "nothing but zeros"
#: More changes than that between right and wrong rows are no blocks.
_BLOCKS = 16


def spread(count: int, wanted: int | None, seed: int) -> Rows:
    """The first row, the last, and a random one out of each equal stretch between them, ascending.

    Args:
        count: rows of the index.
        wanted: how many; all where None or where there are fewer.

    >>> spread(3, 10, 0).tolist()
    [0, 1, 2]
    """
    if wanted is None or wanted >= count:
        return np.arange(count)
    edges = np.linspace(0, count, wanted + 1).astype(np.int64)
    rows = np.random.default_rng(seed).integers(edges[:-1], edges[1:])
    rows[[0, -1]] = 0, count - 1
    return np.asarray(rows)


def unusable(vectors: npt.NDArray[np.floating]) -> tuple[Marks, Marks]:
    """bool [n] twice: rows with NaN or infinity, and rows of nothing but zeros; read block by block.

    Numbers of float64 that are infinity or zero in float32, in which everything is computed, count as such.
    """
    broken, empty = np.zeros(len(vectors), bool), np.zeros(len(vectors), bool)
    for start in range(0, len(vectors), BLOCK):
        with np.errstate(over="ignore", under="ignore"):
            block = np.asarray(vectors[start : start + BLOCK], np.float32)
        broken[start : start + BLOCK] = ~np.isfinite(block).all(axis=1)
        empty[start : start + BLOCK] = ~block.any(axis=1)
    return broken, empty


def top(
    asked: npt.NDArray[np.floating], vectors: npt.NDArray[np.floating], depth: int = 10, own: Rows | None = None
) -> Rows:
    """int64 [q, min(depth, n)]: the stored rows of the highest cosines, best first, found block by block.

    Args:
        asked: [q, D].
        vectors: [n, D].
        depth: how many.
        own: [q], a row that each leaves out; that leaves n - 1.
    """
    count = min(depth + (own is not None), len(vectors))
    blocks = []
    for start in range(0, len(asked), _ASKED):
        met = nearest(np.nan_to_num(unit(asked[start : start + _ASKED])), _Index(vectors), count)
        assert met is not None  # nothing stops it
        blocks.append(met[1])
    found = np.concatenate(blocks)
    if own is None:
        return found
    order = np.argsort(found == own[:, None], axis=1, kind="stable")  # its own row last, if it is there
    return np.take_along_axis(found, order[:, : count - 1], axis=1)


@dataclass(frozen=True)
class _Index:
    """The rows of an index, of unit length as they are read; one with NaN is near nothing."""

    vectors: npt.NDArray[np.floating]

    def __len__(self) -> int:
        return len(self.vectors)

    def read(self, numbers: Rows) -> npt.NDArray[np.float32]:
        return np.nan_to_num(unit(self.vectors[numbers]))


def located(rows: Rows, wrong: Marks, is_wrong: Callable[[Rows], Marks]) -> list[tuple[int, int]] | None:
    """The blocks (first row, last row) of an index that are wrong, their ends found by bisection.

    Args:
        rows: sampled rows, ascending, that were looked at.
        wrong: bool [m], which of these are wrong.
        is_wrong: looks at further rows.

    Returns:
        None where right and wrong rows alternate too often, or wrong ones stand too much alone, for blocks.
    """
    changes = np.flatnonzero(wrong[1:] != wrong[:-1])
    stretches = int(wrong[0]) + int(wrong[changes + 1].sum())
    # A stretch that one sampled row alone fell into is short, and others of its kind were missed then.
    if len(changes) > _BLOCKS or wrong.sum() < 2 * stretches:
        return None
    low, high = rows[changes].copy(), rows[changes + 1].copy()
    while len(changes) and (high - low > 1).any():
        middle = (low + high) // 2
        same = is_wrong(middle) == wrong[changes]
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    first = [int(rows[0])] * bool(wrong[0]) + [
        int(row) for row, then in zip(high, wrong[changes + 1], strict=True) if then
    ]
    last = [int(row) for row, before in zip(low, wrong[changes], strict=True) if before]
    last += [int(rows[-1])] * bool(wrong[-1])
    return list(zip(first, last, strict=True))


def ranges(rows: Sequence[int] | Rows) -> list[tuple[int, int]]:
    """Ascending rows as stretches (first, last).

    >>> ranges([1, 2, 3, 7])
    [(1, 3), (7, 7)]
    """
    ascending = np.asarray(rows, np.int64)
    if not len(ascending):
        return []
    cuts = np.flatnonzero(np.diff(ascending) > 1)
    first, last = ascending[np.r_[0, cuts + 1]], ascending[np.r_[cuts, len(ascending) - 1]]
    return [(int(a), int(b)) for a, b in zip(first, last, strict=True)]


def in_words(stretches: Sequence[tuple[int, int]], most: int = 5) -> str:
    """Stretches of rows for a person.

    >>> in_words([(1, 3), (7, 7)])
    '1 to 3, 7'
    """
    shown = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in stretches[:most]]
    return ", ".join(shown) + (f" and {len(stretches) - most:,} more" if len(stretches) > most else "")
