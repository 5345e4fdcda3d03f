"""Edit distances between the entries of two vocabularies: each is computed once, when texts first hold both."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

Integers = NDArray[np.int64]
#: Rows [S, B], columns [T, B], and what takes sums of them, of any shape, to distances.
Grid = tuple[Integers, Integers, Callable[[Integers], NDArray[np.signedinteger]]]
#: Places of each side at first and at most: with 8,192 of either, strings below 128 characters take 64 MB.
FIRST, MOST = 1024, 8192
#: Tokens from which a text looks each of its pairs of entries up several times.
_LONG = 100


class EditDistances:
    """A table of Levenshtein distances between two sides' distinct strings; it grows with the entries that texts hold.

    An entry gets a place when a text first holds it, and its distances to all entries with a place are computed in
    blocks, which costs a twentieth of asking for the needed ones singly. A full table starts anew, so memory stays
    bounded. What is found never depends on what was asked before.
    """

    def __init__(self, students: Sequence[str], teachers: Sequence[str]) -> None:
        self._strings = students, teachers
        longest = max(map(len, [*students, *teachers]), default=0)
        self._dtype = np.int8 if longest < 128 else np.int16 if longest < 32_768 else np.int32
        self._start()

    def _start(self) -> None:
        """An empty table. Place 0 of either side is padding, at distance 0 from everything."""
        self._table: NDArray[np.signedinteger] = np.zeros((FIRST, FIRST), dtype=self._dtype)
        # One more than entries: -1, padding, is the last and keeps its place 0.
        self._places = tuple(np.zeros(len(strings) + 1, dtype=np.int64) for strings in self._strings)
        self._placed: tuple[list[str], list[str]] = ([], [])

    def grids(self, students: Integers, teachers: Integers) -> Grid:
        """Return what the warping of B texts needs, of their entries int64 [S, B] and [T, B], -1 padded; valid until
        the next call.
        """
        new = self._new(0, students), self._new(1, teachers)
        if any(1 + len(placed) + len(more) > MOST for placed, more in zip(self._placed, new)):
            self._start()
            new = self._new(0, students), self._new(1, teachers)
        if len(new[0]) or len(new[1]):
            self._place(new)
        rows, columns = self._places[0][students], self._places[1][teachers]
        if min(len(rows), len(columns)) >= _LONG:
            # Few entries, each of them looked up often: a small table of their own stays in the cache.
            used_rows, rows = np.unique(rows, return_inverse=True)
            used_columns, columns = np.unique(columns, return_inverse=True)
            table = self._table[np.ix_(used_rows, used_columns)]
        else:
            table = self._table
        return rows * table.shape[1], columns, table.take

    def _new(self, side: int, entries: Integers) -> Integers:
        missing = entries[self._places[side][entries] == 0]
        return np.unique(missing[missing >= 0])

    def _place(self, new: tuple[Integers, Integers]) -> None:
        """Give places to entries that have none, and compute what that adds to the table."""
        more = [[self._strings[side][entry] for entry in new[side].tolist()] for side in (0, 1)]
        rows, columns = (1 + len(placed) for placed in self._placed)
        for side, first in enumerate((rows, columns)):
            self._places[side][new[side]] = np.arange(first, first + len(new[side]))
            self._placed[side].extend(more[side])
        # Sides double, so that the table seldom grows.
        lacking = [
            max(0, (1 << len(placed).bit_length()) - size) for size, placed in zip(self._table.shape, self._placed)
        ]
        if any(lacking):
            self._table = np.pad(self._table, [(0, count) for count in lacking])
        self._block(more[0], self._placed[1], rows, 1)
        self._block(self._placed[0][: rows - 1], more[1], 1, columns)

    def _block(self, students: list[str], teachers: list[str], row: int, column: int) -> None:
        if students and teachers:
            block = cdist(students, teachers, scorer=Levenshtein.distance, dtype=self._dtype)
            self._table[row : row + len(students), column : column + len(teachers)] = block
