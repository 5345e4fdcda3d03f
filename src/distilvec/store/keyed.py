"""Parts of one signal, found by the keys of their items: what sentence vectors and token signals have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from distilvec.errors import DataError, DistilvecError
from distilvec.store.index import (
    DamagedIndexError,
    KeyedPart,
    KeyIndex,
    build_index,
    locate,
    locate_in_part,
    open_index,
)
from distilvec.store.layout import KEY_BYTES, key_words
from distilvec.store.scan import scan_parts

_CHUNK = 1 << 18

PartT = TypeVar("PartT", bound=KeyedPart)


class KeyedParts(Generic[PartT]):
    """The parts of one signal in a store's folder.

    Row numbers hold for this object: `refresh` appends new parts behind those that are open. Another opening orders
    all parts by name. Pickling gives the same rows to worker processes.

    Attributes:
        path: the folder.
        signal: for example "sentence".
        bad: name -> reason of the parts that this object has set aside.
    """

    def __init__(self, path: Path, signal: str) -> None:
        self.path, self.signal = path, signal
        self.bad: dict[str, str] = {}
        self._arrange([])

    def _open(self, name: str) -> PartT:
        """Map a part; `BadPart` with the reason where it is none."""
        raise NotImplementedError

    def _again(self) -> tuple[Any, ...]:
        """A function and its arguments that open the same signal, in whatever order its parts are then."""
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (*self._again(), self.parts)

    def __len__(self) -> int:
        return int(self._offsets[-1])

    @property
    def parts(self) -> list[str]:
        """Names of the open parts, in the order of the rows."""
        return [part.name for part in self._parts]

    def refresh(self) -> None:
        """Take in the parts that were added since, behind those that are open."""
        known = {part.name: part for part in self._parts}
        place = {name: number for number, name in enumerate(known)}
        parts, bad = scan_parts(self.path, self.signal, self._open, known)
        self.bad |= bad
        self._arrange(sorted(parts, key=lambda part: place.get(part.name, len(place))))

    def _arrange(self, parts: list[PartT]) -> None:
        self._parts = parts
        self._offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        # Equal keys: the first part by name wins, whatever the order in which this object met the parts.
        self._by_name = sorted(range(len(parts)), key=lambda number: parts[number].name)
        self._index: KeyIndex | None = open_index(self.path, self.signal, [parts[number] for number in self._by_name])

    def rows(self, keys: np.ndarray) -> np.ndarray:
        """Row numbers int64 [n] of keys uint8 [n, 16], -1 where the store has nothing; of equal keys the first."""
        query = key_words(keys)
        rows = np.full(len(query), -1, dtype=np.int64)
        for start in range(0, len(query), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            rows[chunk] = self._search(query[chunk])
        return rows

    def _search(self, query: np.ndarray) -> np.ndarray:
        rows = np.full(len(query), -1, dtype=np.int64)
        if (index := self._index) is not None:
            try:
                position = locate(index.first, lambda at: self._words(self._rows_at(index, at))[:, 1], query)
                rows[position >= 0] = self._rows_at(index, position[position >= 0])
                return rows
            except DamagedIndexError:
                index.remove()
                self._index = None
        for number in self._by_name:
            open_ones = np.flatnonzero(rows < 0)
            at = locate_in_part(self._parts[number], query[open_ones])
            rows[open_ones[at >= 0]] = at[at >= 0] + self._offsets[number]
        return rows

    def _rows_at(self, index: KeyIndex, position: np.ndarray) -> np.ndarray:
        number, local = index.places(position)
        rows: np.ndarray = self._offsets[self._by_name][number] + local
        return rows

    def missing(self, keys: np.ndarray) -> np.ndarray:
        """Return which keys uint8 [n, 16] the store has nothing for: bool [n]."""
        return self.rows(keys) < 0

    def missing_at(self, keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return which of keys [positions], uint8 [m, 16], are missing: bool [m]; without a copy of all of them."""
        missing = np.zeros(len(positions), bool)
        for start in range(0, len(positions), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            missing[chunk] = self.missing(keys[positions[chunk]])
        return missing

    def keys(self, rows: np.ndarray) -> np.ndarray:
        """Keys uint8 [n, 16] of rows, integers [n]."""
        return self._words(rows).view(np.uint8).reshape(-1, KEY_BYTES)

    def _words(self, rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), 2), dtype="<u8")
        for part, local, target in self._locate_rows(rows):
            out[target] = part.words[local]
        return out

    def _locate_rows(self, rows: np.ndarray) -> list[tuple[PartT, np.ndarray, np.ndarray]]:
        """Per part that is touched: the part, rows in it in ascending order, places in the result."""
        rows = np.asarray(rows)
        if rows.size == 0:
            return []
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
            raise DistilvecError(f"rows must be a list of integers, not {rows.dtype} {list(rows.shape)}")
        wrong = np.flatnonzero((rows < 0) | (rows >= len(self)))
        if len(wrong):
            raise DataError(
                f"row {rows[wrong[0]]} at position {wrong[0]} does not exist, the store has {len(self)} rows"
                + (" (-1 means that the key is missing)" if rows[wrong[0]] == -1 else ""),
                where=str(self.path),
                remedy="Teach the missing items first." if rows[wrong[0]] == -1 else None,
            )
        order = np.argsort(rows, kind="stable")
        cuts = np.searchsorted(rows[order], self._offsets)
        return [
            (part, rows[target] - self._offsets[number], target)
            for number, part in enumerate(self._parts)
            if len(target := order[cuts[number] : cuts[number + 1]])
        ]

    def build_index(self) -> None:
        """Write the table that makes `rows` fast, where it is missing. Writers do so when they close."""
        if self._index is None and self._parts:
            build_index(self.path, self.signal, lambda: scan_parts(self.path, self.signal, self._open)[0])
            self.refresh()


def _reopen(again: Any, arguments: tuple[Any, ...], names: list[str]) -> KeyedParts[Any]:
    signal: KeyedParts[Any] = again(*arguments)
    parts = {part.name: part for part in signal._parts}
    lost = [name for name in names if name not in parts]
    if lost:
        raise DataError(f"part {lost[0]} has gone since the store was opened", where=str(signal.path))
    signal._arrange([parts[name] for name in names])
    return signal
