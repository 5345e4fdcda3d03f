"""Signals with one row per token: hidden states, attention maps, token ids; and class logits.

They lie beside the sentence vectors in files of their own, `<signal>-<writer>-<n>.arrow`: a key and a large list of
values per item. Parts are written whole, their record last, as those of sentence vectors are.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from distilvec.errors import DataError
from distilvec.store.codec import BEYOND
from distilvec.store.index import KeyedPart
from distilvec.store.keyed import KeyedParts
from distilvec.store.layout import KEY_BYTES, add_signal, key_words, read_format, read_signals
from distilvec.store.part import PART_SECONDS, BadPart, open_file, view, write_file
from distilvec.store.scan import clean_up

_TYPES = {"float16": (pa.float16(), np.float16), "float32": (pa.float32(), np.float32), "int32": (pa.int32(), np.int32)}


@dataclass(frozen=True)
class RaggedPart(KeyedPart):
    """Views of one mapped file: offsets int64 [n + 1] into the values."""

    offsets: np.ndarray
    values: np.ndarray


def _schema(dtype: str) -> pa.Schema:
    return pa.schema(
        [
            pa.field("key", pa.binary(KEY_BYTES), nullable=False),
            pa.field("values", pa.large_list(pa.field("item", _TYPES[dtype][0], nullable=False)), nullable=False),
        ]
    )


class RaggedSignal(KeyedParts[RaggedPart]):
    """One signal of a store, found by the keys of its texts.

    Attributes:
        width: values per row of an item (H for token states; 1 where an item is one flat list).

    Raises:
        DataError: where the store has no such signal.
    """

    def __init__(self, folder: Path, signal: str) -> None:
        entry = read_signals(folder).get(signal)
        if entry is None:
            raise DataError(
                f"the store holds no {signal}",
                where=str(folder),
                remedy="Run `distilvec teach` with the recipe that needs it: what is there is kept.",
            )
        super().__init__(folder, signal)
        self.width, self.dtype = int(entry["width"]), str(entry["dtype"])
        self._fingerprint = read_format(folder).fingerprint
        self.refresh()

    @classmethod
    def create(cls, folder: Path, signal: str, width: int, dtype: str, fingerprint: str | None = None) -> RaggedSignal:
        """Enter the signal in the store, or open it where it is there already.

        Args:
            dtype: "float16", "float32" or "int32".
            fingerprint: of what the signal is, where the teacher's does not say it all.

        Raises:
            DistilvecError: where it is there with another width, dtype or fingerprint.
        """
        add_signal(folder, signal, width, dtype, fingerprint)
        return cls(folder, signal)

    def _again(self) -> tuple[Any, ...]:
        return RaggedSignal, (self.path, self.signal)

    def _open(self, name: str) -> RaggedPart:
        record, words, batch = open_file(self.path, name, self._fingerprint, _schema(self.dtype))
        column = batch.column(1)
        offsets = view(column.buffers()[1], "<i8", len(words) + 1, 1)[:, 0]
        if offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise BadPart("the lengths of its rows do not make sense")
        values = view(column.values.buffers()[1], _TYPES[self.dtype][1], int(offsets[-1]), 1)[:, 0]
        return RaggedPart(name, words, str(record["checksum"]), offsets, values)

    def read(self, rows: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Views of the items' values, each [length, width] in the stored dtype; rows as `rows` gives them, no -1.

        Raises:
            DataError: the store lacks the signal for an item.
        """
        numbers = np.searchsorted(self._offsets, rows, side="right") - 1
        views = []
        for row, number in zip(np.asarray(rows), numbers, strict=True):
            if row < 0:
                raise DataError(f"the store has no {self.signal} for an item", where=str(self.path))
            part, local = self._parts[number], row - self._offsets[number]
            views.append(part.values[part.offsets[local] : part.offsets[local + 1]].reshape(-1, self.width))
        return views

    def writer(self, name: str, part_bytes: int) -> RaggedWriter:
        """A writer; `name` is that of the store's writer that is open at the same time and holds the lock."""
        return RaggedWriter(self, name, part_bytes)


def _fitting(values: np.ndarray, dtype: str, signal: str) -> np.ndarray:
    """Values [n, width] in the stored dtype, which has no scales here: some zeros are right, an item of them is not."""
    if dtype != "float16":
        return values
    largest, wrong = np.abs(values).max(initial=0), ""
    if 0 < largest < 2.0**-14:
        wrong = f"{signal} has no value above {largest:.4g}, float16 begins at 6.1e-05"
    elif largest >= BEYOND:
        wrong = f"{signal} has a value of {largest:.4g}, float16 ends at 65504"
    if wrong:
        raise DataError(
            wrong, where="teacher", remedy="Let the teacher give them while training (live: true in a recipe)."
        )
    return values.astype(np.float16)


class RaggedWriter:
    """Collects items and writes them as whole parts: when one is full or old enough, and with `flush`."""

    def __init__(self, signal: RaggedSignal, name: str, part_bytes: int) -> None:
        self._signal, self._name, self._limit = signal, name, part_bytes
        self._next = clean_up(signal.path, name, signal.signal)
        self._clear()

    def _clear(self) -> None:
        self._words: list[np.ndarray] = []
        self._items: list[np.ndarray] = []
        self._bytes, self._since = 0, time.monotonic()

    def add(self, keys: np.ndarray, items: Sequence[np.ndarray]) -> None:
        """Add n items, arrays [length, width], under their keys uint8 [n, 16].

        Raises:
            DataError: where a value is not finite, or does not fit into the stored dtype.
            EnvironmentProblem: where the disk is full. The parts written so far stay.
        """
        dtype = self._signal.dtype
        if not self._words:
            self._since = time.monotonic()
        for words, item in zip(key_words(keys), items, strict=True):
            values = np.asarray(item).reshape(-1, self._signal.width)
            if dtype != "int32":
                if not np.isfinite(values).all():
                    raise DataError(f"{self._signal.signal} has values that are not finite", where="teacher")
                values = _fitting(values.astype(np.float32, copy=False), dtype, self._signal.signal)
            self._words.append(words.copy())
            self._items.append(values.astype(_TYPES[dtype][1]).reshape(-1))
            self._bytes += self._items[-1].nbytes
        if self._bytes >= self._limit or time.monotonic() - self._since > PART_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what is in memory as a part."""
        if not self._words:
            return
        words, items = np.stack(self._words), self._items
        order = np.lexsort((words[:, 1], words[:, 0]))
        items = [items[position] for position in order]
        schema = _schema(self._signal.dtype)
        offsets = np.cumsum([0, *map(len, items)], dtype=np.int64)
        values = pa.array(np.concatenate(items), type=_TYPES[self._signal.dtype][0])
        column = pa.LargeListArray.from_arrays(pa.array(offsets), values).cast(schema.field("values").type)
        arrow = self._signal.path / f"{self._signal.signal}-{self._name}-{self._next:06d}.arrow"
        write_file(arrow, words[order], [column], schema, {"fingerprint": self._signal._fingerprint})
        self._next += 1
        self._clear()
