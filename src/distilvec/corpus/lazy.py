"""Texts of many rows without holding them all: read from the mapped corpus a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from distilvec.evenly import sampled_rows

#: Rows that are read at once.
BLOCK = 10_000


def take(texts: Sequence[str], places: np.ndarray) -> list[str]:
    """Texts at int64 [n] places of any sequence, in that order; of `LazyTexts` read at once."""
    if isinstance(texts, LazyTexts):
        return texts.take(places)
    return [texts[place] for place in places.tolist()]


class LazyTexts(Sequence[str]):
    """Texts of corpus rows, read when they are asked for; memory does not grow with their number.

    Args:
        read: rows int64 [n] -> their texts, as `Corpus.texts` and `Corpus.teacher_texts`.
        rows: which, in order; a range costs no memory.
    """

    def __init__(self, read: Callable[[np.ndarray], list[str]], rows: np.ndarray | Sequence[int]) -> None:
        self._read, self._rows = read, rows if isinstance(rows, range) else np.asarray(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return self._read(np.asarray(self._rows[place]))
        return self._read(np.asarray([self._rows[place]]))[0]

    def take(self, places: np.ndarray) -> list[str]:
        """Texts at int64 [n] places, in that order, read at once."""
        rows = self._rows
        return self._read(rows.start + rows.step * places if isinstance(rows, range) else rows[places])

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), BLOCK):
            yield from self[start : start + BLOCK]

    def sampled(self, most: int) -> LazyTexts:
        """At most so many of them, a seeded sample in their order."""
        return self if len(self) <= most else LazyTexts(self._read, sampled_rows(np.asarray(self._rows), most))
