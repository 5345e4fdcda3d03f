"""Numbers of every corpus row, in one memory-mapped file: what is made once and read at random in every epoch."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from distilvec.files import scratch, temporary
from distilvec.folders import update

_CHUNK = 1 << 22


class Ragged:
    """Values of every corpus row, one row after the other; a row without values has length 0.

    Args:
        file: of `RaggedFile`, with its offsets `beside` it.
        dtype, width: as they were written.
    """

    def __init__(self, file: Path, dtype: npt.DTypeLike, width: int) -> None:
        offsets, _ = beside(file, dtype)
        # Behind the checksums of `whole_table`.
        self.offsets: np.ndarray = np.load(offsets, mmap_mode="r", allow_pickle=False)[2:]
        self.flat = mapped(file, dtype, (int(self.offsets[-1]), width))

    def read(self, rows: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """A view [length, width] of each row's values."""
        ends = self.offsets[np.asarray(rows, np.int64) + 1]
        return [self.flat[start:end] for start, end in zip(self.offsets[rows], ends, strict=True)]

    def pairs(self, rows: Sequence[int] | np.ndarray) -> Tensor:
        """int64 [B, P, 2] of rows of width 2, padded with -1; P is at least 1."""
        pairs = self.read(rows)
        return filled(pairs, (len(pairs), max(1, max(map(len, pairs), default=0)), 2), np.int64, fill=-1)

    def padded(self, rows: Sequence[int] | np.ndarray, length: int) -> Tensor:
        """[B, length] of rows of width 1, padded with 0."""
        return filled(self.read(rows), (len(rows), length, 1), self.flat.dtype).squeeze(-1)

    def squares(self, rows: Sequence[int] | np.ndarray, size: int) -> Tensor:
        """[B, size, size] of rows of width 1 that are square matrices, padded with 0."""
        return filled(map(square, self.read(rows)), (len(rows), size, size), self.flat.dtype)


def filled(
    values: Iterable[np.ndarray],
    shape: tuple[int, ...],
    dtype: npt.DTypeLike = np.float32,
    *,
    at: Iterable[int] | None = None,
    fill: int = 0,
) -> Tensor:
    """A table of rows whose beginnings are these values [length, ...], filled up behind their ends.

    Args:
        shape: of the table; values have one dimension less.
        at: the row of each; None = one after the other. Rows without values are filled.
    """
    table = np.full(shape, fill, dtype)
    for row, value in enumerate(values) if at is None else zip(at, values, strict=True):
        table[row][tuple(map(slice, value.shape))] = value
    return torch.from_numpy(table)


def square(values: np.ndarray) -> np.ndarray:
    """[n * n, 1] -> [n, n]."""
    side = math.isqrt(values.size)
    return values.reshape(side, side)


#: A file of offsets, and the files of values that they are of, with their types.
Place = tuple[Path, Mapping[Path, npt.DTypeLike]]


def beside(file: Path, dtype: npt.DTypeLike) -> Place:
    """One file of values with its offsets beside it."""
    return file.with_name(f"{file.name}-offsets.npy"), {file: dtype}


def whole_table(place: Place, notes: int = 0) -> np.ndarray | None:
    """The table of files that are there, and as they were written; None otherwise: they are made again.

    Args:
        notes: how many further numbers were kept.

    Returns:
        int64 [head + rows + 1]: checksums of the rest of the table and of each file, the notes, and where each row
        begins.
    """
    offsets, files = place
    try:
        table = np.load(offsets, mmap_mode="r", allow_pickle=False)
        known = table.dtype == np.int64 and table.ndim == 1 and len(table) > 1 + len(files) + notes
        if not known or zlib.crc32(table[1:].data) != table[0]:
            return None
        sums = [_sum(file) for file in files]
    except Exception:  # no such file; numpy meets damaged bytes with errors of many kinds
        return None
    return table if sums == table[1 : 1 + len(files)].tolist() else None


def _sum(file: Path) -> int:
    found = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            found = zlib.crc32(chunk, found)
    return found


def mapped(file: Path, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> np.ndarray:
    """The values of a file; an empty one cannot be mapped."""
    return np.memmap(file, dtype, "r", shape=shape) if shape[0] else np.zeros(shape, dtype)


class RaggedFile:
    """Writes what `Ragged` reads; the files are there when they are whole, or not at all.

    Args:
        made: folder that they are written in.
        count: number of corpus rows.
        notes: how many numbers are kept with the offsets; they are 0 until they are set.
    """

    def __init__(self, place: Place, made: Path, count: int, notes: int = 0) -> None:
        offsets, files = place
        self._types, self._sums = [np.dtype(each) for each in files.values()], [0] * len(files)
        self._places = {made / file.name: file for file in (*files, offsets)}
        # Not the file itself, mapped: a full disk would kill the process.
        self._table, self._head = scratch(1 + len(files) + notes + count + 1, np.int64), 1 + len(files) + notes
        self.notes = self._table[1 + len(files) : self._head]
        self.streams = [partial.open("wb") for partial in list(self._places)[:-1]]

    def add(self, row: int, *values: np.ndarray) -> None:
        """[length, width] for each file; rows come in ascending order."""
        self.extend(row, [len(values[0])], *values)

    def extend(self, row: int, lengths: Sequence[int] | np.ndarray, *values: np.ndarray) -> None:
        """Rows of these lengths from this one on; `values` have them one after the other, for each file."""
        start = self._head + row + 1
        self._table[start : start + len(lengths)] = lengths
        for number, (stream, dtype, each) in enumerate(zip(self.streams, self._types, values, strict=True)):
            content = np.ascontiguousarray(each, dtype).tobytes()
            self._sums[number] = zlib.crc32(content, self._sums[number])
            stream.write(content)

    def close(self) -> None:
        """Put the files in their places; the offsets last, because files without them do not exist."""
        for stream in self.streams:
            stream.close()
        ends = self._table[self._head :]
        np.cumsum(ends, out=ends)
        self._table[1 : 1 + len(self._sums)] = self._sums
        self._table[0] = zlib.crc32(self._table[1:].data)
        (*_, offsets) = self._places
        with offsets.open("wb") as out:
            np.save(out, self._table)
        names = [place.name for place in self._places.values()]
        update(self._places[offsets].parent, {"tokens": names}, more=True)
        for partial, place in self._places.items():
            partial.replace(place)


@contextmanager
def writing(places: Mapping[str, Place], count: int, notes: int = 0) -> Iterator[dict[str, RaggedFile]]:
    """Files of `count` rows that are put in their places together, or not at all where an error comes between."""
    folder = next(iter(places.values()))[0].parent
    with ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        made = stack.enter_context(temporary(folder))
        made.mkdir()
        outputs = {name: RaggedFile(place, made, count, notes) for name, place in places.items()}
        for stream in (each for output in outputs.values() for each in output.streams):
            stack.enter_context(stream)
        yield outputs
        for output in outputs.values():
            output.close()
