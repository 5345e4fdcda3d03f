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

from distilvec.files import temporary
from distilvec.folders import update
from distilvec.store.files import disk_problems

#: What stands before the offsets: checksums of the rest of their file, and of the values.
_HEAD = 2
_CHUNK = 1 << 22


class Ragged:
    """Values of every corpus row, one row after the other; a row without values has length 0.

    Args:
        file: of `RaggedFile`.
        dtype, width: as they were written.
    """

    def __init__(self, file: Path, dtype: npt.DTypeLike, width: int) -> None:
        self.offsets: np.ndarray = np.load(_offsets(file), mmap_mode="r", allow_pickle=False)[_HEAD:]
        shape = int(self.offsets[-1]), width
        # An empty file cannot be mapped.
        self.flat = np.memmap(file, dtype, "r", shape=shape) if shape[0] else np.zeros(shape, dtype)

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


class RaggedFile:
    """Writes what `Ragged` reads; the file is there when it is whole, or not at all.

    Args:
        file: its offsets come to lie beside it.
        made: folder that it is written in.
        count: number of corpus rows.
    """

    def __init__(self, file: Path, made: Path, count: int, dtype: npt.DTypeLike) -> None:
        self.file, self._dtype = file, np.dtype(dtype)
        self._lengths = np.zeros(count, np.int64)
        self._sum = 0
        self._partial = made / file.name
        self.stream = self._partial.open("wb")

    @staticmethod
    def exists(file: Path) -> bool:
        """Tell whether it is there, and as it was written; one that is damaged is made again."""
        try:
            table = np.load(_offsets(file), mmap_mode="r", allow_pickle=False)
            known = table.dtype == np.int64 and table.ndim == 1 and len(table) > _HEAD
            if not known or zlib.crc32(table[1:].tobytes()) != table[0]:
                return False
            sums = 0
            with file.open("rb") as stream:
                while chunk := stream.read(_CHUNK):
                    sums = zlib.crc32(chunk, sums)
        except Exception:  # no such file; numpy meets damaged bytes with errors of many kinds
            return False
        return bool(sums == table[1])

    def add(self, row: int, values: np.ndarray) -> None:
        """[length, width]; rows come in ascending order."""
        self._lengths[row] = len(values)
        content = np.ascontiguousarray(values, self._dtype).tobytes()
        self._sum = zlib.crc32(content, self._sum)
        self.stream.write(content)

    def close(self) -> None:
        """Put the file in its place; its offsets last, because a file without them does not exist."""
        self.stream.close()
        partial = _offsets(self._partial)
        table = np.concatenate([[self._sum, 0], np.cumsum(self._lengths)]).astype(np.int64)
        np.save(partial, np.concatenate([[zlib.crc32(table.tobytes())], table]))
        update(self.file.parent, {"tokens": [self.file.name, _offsets(self.file).name]}, more=True)
        self._partial.replace(self.file)
        partial.replace(_offsets(self.file))


@contextmanager
def writing(files: Mapping[str, tuple[Path, npt.DTypeLike]], count: int) -> Iterator[dict[str, RaggedFile]]:
    """Files of `count` rows that are put in their places together, or not at all where an error comes between."""
    folder = next(iter(files.values()))[0].parent
    with disk_problems(folder), ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        made = stack.enter_context(temporary(folder))
        made.mkdir()
        outputs = {name: RaggedFile(file, made, count, dtype) for name, (file, dtype) in files.items()}
        for output in outputs.values():
            stack.enter_context(output.stream)
        yield outputs
        for output in outputs.values():
            output.close()


def _offsets(file: Path) -> Path:
    return file.with_name(f"{file.name}-offsets.npy")
