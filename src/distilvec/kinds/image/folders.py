"""A folder of images, recursively: what lies in it, and as rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from distilvec.corpus.rows import Row, require_columns, unchanged
from distilvec.errors import DataError
from distilvec.kinds.image import Image
from distilvec.system_errors import system_problem

_READ = (*Image.members, ".tif", ".jfif")
_LOOKED_AT = 10_000


def holds_images(folder: Path) -> bool:
    """Tell whether there is a file with an image's suffix among the first files of a folder, however deep."""
    return any(_is_image(path) for path in islice(_walk(folder), _LOOKED_AT))


def folder_fingerprint(folder: Path) -> str:
    """Equal where no file was added, removed, or written to."""
    state = hashlib.blake2b(str(folder.absolute()).encode("utf-8", "surrogatepass"), digest_size=16)
    for path in _walk(folder):
        name = str(path.relative_to(folder)).encode("utf-8", "surrogatepass")
        try:
            status = path.stat()
        except OSError:  # a link that leads nowhere; reading says so
            state.update(name + b"|\n")
        else:
            state.update(name + f"|{unchanged(status)}\n".encode())
    return state.hexdigest()


def image_rows(folder: Path, columns: Sequence[str], longest: int) -> Iterator[Row]:
    """One row per file: "image" and "path" (its absolute path) and "folder" (the sub-folder of `folder`, "" for none).

    Raises:
        DataError: there is no file with an image's suffix.
        EnvironmentProblem: a folder cannot be read.
    """
    require_columns(columns, ["image", "path", "folder"], str(folder))
    any_image = False
    for path in _walk(folder):
        name = str(path.absolute())
        if not _is_image(path):
            yield Row(name, 1, path.name, "not an image")
            continue
        any_image = True
        inside = path.relative_to(folder).parts
        yield Row(name, 1, {"image": name, "path": name, "folder": inside[0] if len(inside) > 1 else ""})
    if not any_image:
        raise DataError("there is no image in this folder", where=str(folder), remedy=f"Known: {', '.join(_READ)}.")


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in _READ


def _walk(folder: Path) -> Iterator[Path]:
    """All files by name, links followed but not in a circle; hidden files and folders are left out."""
    waiting = [(folder, frozenset[tuple[int, int]]())]
    while waiting:
        path, above = waiting.pop()
        if path is not folder and not path.is_dir():
            yield path
            continue
        try:
            status = path.stat()
            entries = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
        except OSError as error:
            raise system_problem(error, "the folder cannot be read", path) from error
        place = (status.st_dev, status.st_ino)
        if place not in above:
            waiting += [(entry, above | {place}) for entry in sorted(entries, reverse=True)]
