"""Recognition of repeated keys, in 8 to 16 bytes a key."""

from __future__ import annotations

import numpy as np


def first_of_equal(keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return per row the position in `rows` of the first with the same first 8 bytes of its key [n, 16]: int64 [m]."""
    halves = np.ascontiguousarray(keys[rows, :8]).view(np.uint64)[:, 0]
    _, first, kind = np.unique(halves, return_index=True, return_inverse=True)
    return np.asarray(first[kind])


def distinct_rows(keys: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Those of the rows, int64 [m], whose key, of uint8 [n, 16], no row before them has."""
    rows = np.asarray(rows)
    return np.asarray(rows[first_of_equal(keys, rows) == np.arange(len(rows))])


class SeenKeys:
    """A growing set of keys, kept as a few sorted arrays of 64-bit halves.

    Half a key is enough: among 100 million texts the chance that any two share it by accident is 3 in 10,000, and
    the harm would be one text fewer. Arrays are merged when they reach half the size of their neighbour, so that there
    are about log2(n) of them and memory stays at 8 bytes a key, 16 while merging.
    """

    def __init__(self) -> None:
        self._sorted: list[np.ndarray] = []

    def add(self, keys: np.ndarray) -> np.ndarray:
        """Add keys uint8 [n, 16]; bool [n], True where a key was not there before, nor earlier in this call."""
        halves = np.ascontiguousarray(keys[:, :8]).view(np.uint64)[:, 0]
        fresh, first = np.unique(halves, return_index=True)
        known = np.zeros(len(fresh), bool)
        for older in self._sorted:
            place = np.searchsorted(older, fresh)
            place[place == len(older)] = 0
            known |= older[place] == fresh
        result = np.zeros(len(halves), bool)
        result[first[~known]] = True
        if not known.all():
            self._push(fresh[~known])
        return result

    def _push(self, fresh: np.ndarray) -> None:
        self._sorted.append(fresh)
        while len(self._sorted) > 1 and 2 * len(self._sorted[-1]) >= len(self._sorted[-2]):
            last, before = self._sorted.pop(), self._sorted.pop()
            merged = np.concatenate([before, last])
            del before, last
            merged.sort()
            self._sorted.append(merged)
