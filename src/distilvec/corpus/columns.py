"""The columns of a prepared corpus on disk: raw numbers beside Arrow text, all of them memory-mapped."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from distilvec.corpus.problem import Problem

logger = logging.getLogger(__name__)
ITEMS = "items.arrow"
_CHUNK = 1 << 20


class NumberColumn:
    """Appends rows of one number type to a raw file."""

    def __init__(self, folder: Path, name: str, dtype: str, width: int | None = None) -> None:
        self.name, self.dtype, self.width = name, dtype, width
        self.path = folder / f"{name}.bin"
        self._out: BinaryIO = self.path.open("wb")
        self.rows = 0

    def write(self, values: np.ndarray) -> None:
        """Append values [n] or [n, width]."""
        self._out.write(np.ascontiguousarray(values, dtype=self.dtype).tobytes())
        self.rows += len(values)

    def so_far(self) -> np.ndarray:
        """A view of what has been written, [n] or [n, width]."""
        self._out.flush()
        return open_numbers(self.path.parent, self.name, self._described())

    def keep(self, chosen: np.ndarray) -> None:
        """Drop the rows that are not chosen, bool [n]."""
        values = np.array(self.so_far()[chosen])
        self._out.close()
        self._out, self.rows = self.path.open("wb"), 0
        self.write(values)

    def close(self) -> dict[str, Any]:
        """Finish the file; returns what `open_numbers` needs."""
        self._out.close()
        return self._described()

    def _described(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "shape": [self.rows] if self.width is None else [self.rows, self.width]}

    def recode(self, recoded: Callable[[np.ndarray], np.ndarray], dtype: np.dtype) -> dict[str, Any]:
        """Finish the file as `close` does, with other numbers of 8 bytes in place of those that were written."""
        self._out.close()
        values = np.memmap(self.path, np.dtype(self.dtype), "r+")
        for start in range(0, self.rows, _CHUNK):
            part = slice(start, start + _CHUNK)
            values.view(dtype)[part] = recoded(values[part])
        values.flush()
        self.dtype = dtype.str
        return self._described()


def open_numbers(folder: Path, name: str, described: dict[str, Any]) -> np.ndarray:
    """A read-only view of a column that costs no memory."""
    shape = tuple(described["shape"])
    if not all(shape):
        return np.zeros(shape, described["dtype"])
    return np.asarray(np.memmap(folder / f"{name}.bin", np.dtype(described["dtype"]), "r", shape=shape))


class NamedColumn:
    """Names as numbers: coded in order of appearance while reading, in sorted order at the end."""

    def __init__(self, folder: Path, name: str) -> None:
        self._column = NumberColumn(folder, name, "<i8")
        self._codes: dict[str, int] = {}

    def write(self, names: Sequence[str]) -> np.ndarray:
        """Append names; returns their codes."""
        codes = np.fromiter((self._codes.setdefault(name, len(self._codes)) for name in names), np.int64, len(names))
        self._column.write(codes)
        return codes

    @property
    def names(self) -> list[str]:
        """In order of their codes."""
        return list(self._codes)

    def close(self) -> tuple[dict[str, Any], list[str]]:
        """(description, sorted names)."""
        names = sorted(self._codes)
        table = np.zeros(len(names), np.int64)
        table[[self._codes[name] for name in names]] = np.arange(len(names))
        return self._column.recode(table.__getitem__, table.dtype), names

    def close_as_numbers(self) -> dict[str, Any] | None:
        """The description, with numbers in place of the names: integers where all are whole.

        None, and nothing is finished, where one of the names is no number, a code like 007 or 2024_01, or too long for
        one (more than 18 digits).
        """
        if any("_" in name for name in self._codes):
            return None
        whole = [name for name in self._codes if _is_whole(name)]
        if any(len(name) > 18 or str(int(name)) != name.removeprefix("+") for name in whole):
            return None
        odd = [name for name in self._codes if not _is_number(name)]
        if odd and len(odd) <= len(self._codes) // 10:
            shown = ", ".join(f'"{name[:40]}"' for name in odd[:3])
            logger.warning("labels are numbers but for %s, so that all of them are taken as names of classes", shown)
        if odd:
            return None
        numbers = [int(name) if _is_whole(name) else float(name) for name in self._codes]
        table = np.array(numbers, np.int64 if len(whole) == len(numbers) else np.float64)
        return self._column.recode(table.__getitem__, table.dtype)


class LabelColumn:
    """Labels: names become class indices; numbers stay what they are, also those a CSV file spells as text."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: NamedColumn | None = None
        self._numbers: NumberColumn | None = None
        self._whole = True

    def accept(self, label: str | float) -> str | float:
        """Return a label as it is kept; the first one decides between names and numbers, which may be spelt as text.

        Raises:
            Problem: a name among numbers.
        """
        if self._names is None and self._numbers is None:
            if isinstance(label, str):
                self._names = NamedColumn(self._folder, "labels")
            else:
                self._numbers = NumberColumn(self._folder, "labels", "<f8")
        elif self._numbers is not None and isinstance(label, str):
            return _number(label)
        return label

    def write(self, labels: Sequence[str | float]) -> np.ndarray:
        """Append accepted labels; returns codes or numbers."""
        if self._names is not None:
            return self._names.write([_name_of(label) for label in labels])
        values = np.array(labels, np.float64)
        if self._numbers is not None:
            self._numbers.write(values)
        self._whole = self._whole and all(isinstance(label, int) for label in labels)
        return values

    @property
    def names(self) -> list[str]:
        """The class names of the codes, in their order; empty if labels came as numbers."""
        return [] if self._names is None else self._names.names

    def close(self) -> tuple[dict[str, Any] | None, list[str] | None]:
        """(description, names or None)."""
        if self._names is not None:
            described = self._names.close_as_numbers()
            return self._names.close() if described is None else (described, None)
        if self._numbers is None:
            return None, None
        if self._whole:
            return self._numbers.recode(lambda values: values.astype(np.int64), np.dtype(np.int64)), None
        return self._numbers.close(), None


def _name_of(label: str | float) -> str:
    """Name a label among names: a whole number or a truth value without a fraction."""
    return str(int(label) if not isinstance(label, str) and float(label).is_integer() else label)


def _number(label: str) -> float:
    if _is_whole(label) and label.removeprefix("+") != str(int(label)):  # a code such as 007
        raise Problem("bad label")
    if _is_whole(label) and len(label) < 16:
        return int(label)
    try:
        number = math.nan if "_" in label else float(label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise Problem("bad label")
    return number


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def _is_whole(label: str) -> bool:
    return label.isascii() and label.lstrip("+-").isdigit() and label.lstrip("+-") in (label, label[1:])


class TextColumn:
    """Texts of a memory-mapped Arrow file, by row, decoded from views of its buffers."""

    def __init__(self, batches: Sequence[Any], name: str) -> None:
        sizes = [batch.num_rows for batch in batches]
        self._ends = np.cumsum(sizes)
        self._parts: list[tuple[np.ndarray, memoryview]] = []
        for batch in batches:
            column = batch.column(name)
            _, offsets, data = column.buffers()
            first = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
            self._parts.append((first, memoryview(data) if data is not None else memoryview(b"")))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def get(self, rows: Sequence[int] | np.ndarray | None) -> list[str]:
        """Texts of rows in the given order; all where None.

        Raises:
            IndexError: a row that does not exist.
        """
        if rows is None:
            return [text for part in range(len(self._parts)) for text in self._some(part, None)]
        wanted = np.asarray(rows, np.int64).reshape(-1)
        if len(wanted) == 0:
            return []
        if wanted.min() < 0 or wanted.max() >= len(self):
            raise IndexError(f"rows are between 0 and {len(self) - 1}, not {wanted.min()} to {wanted.max()}")
        parts = np.searchsorted(self._ends, wanted, side="right")
        inside = wanted - np.concatenate([[0], self._ends])[parts]
        if parts[0] == parts[-1] and (parts == parts[0]).all():
            return self._some(int(parts[0]), inside)
        return [self._one(part, place) for part, place in zip(parts.tolist(), inside.tolist(), strict=True)]

    def _some(self, part: int, inside: np.ndarray | None) -> list[str]:
        offsets, data = self._parts[part]
        starts = (offsets[:-1] if inside is None else offsets[inside]).tolist()
        ends = (offsets[1:] if inside is None else offsets[inside + 1]).tolist()
        return [str(data[start:end], "utf-8") for start, end in zip(starts, ends, strict=True)]

    def _one(self, part: int, place: int) -> str:
        offsets, data = self._parts[part]
        return str(data[offsets[place] : offsets[place + 1]], "utf-8")
