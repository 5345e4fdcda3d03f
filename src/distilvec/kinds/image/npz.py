"""Images in .npz files, read a few at a time: the arrays may be larger than memory, and nothing is unpickled."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
from numpy.lib import format as npy

from distilvec.corpus.opening import reading
from distilvec.corpus.rows import Row, require_columns
from distilvec.errors import DataError
from distilvec.kinds.image.images import MAX_BYTES, MAX_PIXELS

OFFSETS = "offsets"
_AT_ONCE = 8 << 20
_LARGEST_COLUMN = 1 << 30
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError)


class _Array(NamedTuple):
    """The header of an array; `fault` is why it is not read."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    fault: str | None = None

    def __str__(self) -> str:
        return f'"{self.name}" {self.fault or f"{self.dtype} {list(self.shape)}"}'

    @property
    def bytes(self) -> int:
        """The size of its content."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


def npz_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """One row per image, with the other columns asked for.

    Args:
        path: .npz file.
        columns: all arrays asked for, that of the images first: uint8 [n, h, w], [n, h, w, 1] or [n, h, w, 3], or uint8
            [bytes] of image files in a row, with int [n + 1] "offsets" where each begins and ends. Where it is
            "image", a file without an array of this name has its only array of images taken.

    Raises:
        DataError: damaged or no .npz file, no such array or one of another shape, several arrays of images and none
            chosen.
    """
    try:
        with reading(path), zipfile.ZipFile(path) as archive:
            arrays = _arrays(archive)
            offsets = _offsets(archive, arrays, path)
            image = columns[0]
            chosen = _chosen(arrays, offsets, image, path)
            others = [name for name in columns if name != image]
            require_columns(others, list(arrays), str(path), first="")
            array = arrays[chosen]
            if offsets is not None and len(array.shape) == 1:
                images, count = _files(archive, array, offsets), len(offsets) - 1
            else:
                images, count = _pixels(archive, array), array.shape[0]
            values = {name: _column(archive, arrays[name], count, path) for name in others}
            for number, content in enumerate(images):
                row = {name: column[number] for name, column in values.items()}
                yield Row(str(path), number + 1, {**row, image: content})
    except _DAMAGED as error:
        raise DataError(
            f"the file is damaged, cut off or not what its name says ({error})",
            where=str(path),
            remedy="Make it again with numpy.savez.",
        ) from error


def _arrays(archive: zipfile.ZipFile) -> dict[str, _Array]:
    arrays = {}
    for entry in archive.infolist():
        if entry.filename.endswith(".npy"):
            name = entry.filename.removesuffix(".npy")
            with archive.open(entry) as source:
                arrays[name] = _header(name, cast(BinaryIO, source), entry.file_size)
    return arrays


def _header(name: str, source: BinaryIO, size: int) -> _Array:
    version = npy.read_magic(source)
    if version not in ((1, 0), (2, 0)):
        return _Array(name, (), np.dtype("V1"), "in a format that is not read")
    shape, fortran, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(source)
    if dtype.hasobject:
        return _Array(name, shape, dtype, "of pickled objects, which are not read")
    if fortran and len(shape) > 1:
        return _Array(name, shape, dtype, "in Fortran order: save numpy.ascontiguousarray of it")
    array = _Array(name, shape, dtype)
    if min(shape, default=0) < 0 or source.tell() + array.bytes != size:
        raise ValueError(f'the header of "{name}" does not fit its size')
    return array


def _is_candidate(array: _Array, offsets: np.ndarray | None) -> bool:
    if array.fault or array.dtype != np.uint8:
        return False
    shape = array.shape
    files = len(shape) == 1 and offsets is not None and shape[0] == offsets[-1]
    # An image without pixels takes no bytes: a header could claim any number of them.
    pixels = len(shape) in (3, 4) and shape[3:] in ((), (1,), (3,)) and 0 < shape[1] * shape[2] <= MAX_PIXELS
    return files or pixels


def _chosen(arrays: dict[str, _Array], offsets: np.ndarray | None, image: str, path: Path) -> str:
    candidates = [name for name, array in arrays.items() if _is_candidate(array, offsets)]
    if image in candidates:
        return image
    listed = ", ".join(str(array) for array in arrays.values()) or "none"
    if image in arrays:
        raise DataError(
            f"this array cannot be read as images: {arrays[image]}",
            where=str(path),
            remedy=f"Images are uint8 [n, h, w] or [n, h, w, 3], each of at most {MAX_PIXELS:,} pixels, "
            f'or uint8 [bytes] of image files with "{OFFSETS}" that go up from 0 to its length.',
        )
    if image != "image":
        require_columns([image], list(arrays), str(path))
    if len(candidates) != 1:
        what = "several arrays of images" if candidates else "no array of images (uint8 [n, h, w] or [n, h, w, 3])"
        choices = " or ".join(candidates)
        raise DataError(
            f"there is {what} here" if not candidates else f"there are {what} here",
            where=str(path),
            remedy=f"Set corpus.text to {choices}." if candidates else f"Arrays: {listed}.",
        )
    return candidates[0]


def _offsets(archive: zipfile.ZipFile, arrays: dict[str, _Array], path: Path) -> np.ndarray | None:
    """Return where each of the files in a row begins and ends; None where there is nothing of the kind."""
    described = arrays.get(OFFSETS)
    if described is None or described.dtype.kind not in "iu" or len(described.shape) != 1 or not described.shape[0]:
        return None
    offsets = _load(archive, described, path).astype(np.int64)
    return offsets if offsets[0] == 0 and (np.diff(offsets) >= 0).all() else None


def _opened(archive: zipfile.ZipFile, array: _Array) -> BinaryIO:
    source = cast(BinaryIO, archive.open(f"{array.name}.npy"))
    version = npy.read_magic(source)
    (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(source)
    return source


def _read(source: BinaryIO, size: int) -> bytes:
    content = source.read(size)
    if len(content) != size:
        raise EOFError("it ends too early")
    return content


def _pixels(archive: zipfile.ZipFile, array: _Array) -> Iterator[np.ndarray | bytes]:
    count, *shape = array.shape
    size = int(np.prod(shape, dtype=object))
    at_once = max(1, _AT_ONCE // max(1, size))
    with _opened(archive, array) as source:
        for start in range(0, count, at_once):
            some = min(at_once, count - start)
            yield from np.frombuffer(_read(source, some * size), np.uint8).reshape(some, *shape)


def _files(archive: zipfile.ZipFile, array: _Array, offsets: np.ndarray) -> Iterator[np.ndarray | bytes]:
    with _opened(archive, array) as source:
        for size in np.diff(offsets).tolist():
            # One byte too many is enough for the audit to refuse it; the rest is stepped over.
            content = _read(source, min(size, MAX_BYTES + 1))
            for left in range(size - len(content), 0, -_AT_ONCE):
                _read(source, min(left, _AT_ONCE))
            yield content


def _column(archive: zipfile.ZipFile, array: _Array, count: int, path: Path) -> list[Any]:
    """The values of a label or a domain, as many as there are images."""
    shape = array.shape[:1] if array.shape[1:] == (1,) else array.shape
    if array.fault or array.dtype.kind not in "biufU" or shape != (count,):
        raise DataError(
            f"this array cannot be read as a column of {count:,} values: {array}",
            where=str(path),
            remedy="It must have one number or text per image.",
        )
    return _load(archive, array, path).reshape(-1).tolist()


def _load(archive: zipfile.ZipFile, array: _Array, path: Path) -> np.ndarray:
    if array.fault or array.bytes > _LARGEST_COLUMN:
        raise DataError(f"this array cannot be read: {array}", where=str(path))
    with archive.open(f"{array.name}.npy") as source:
        return npy.read_array(cast(BinaryIO, source), allow_pickle=False)
