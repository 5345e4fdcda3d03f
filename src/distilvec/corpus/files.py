"""The files of a prepared corpus: written under a temporary name, moved into place, `corpus.json` last."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distilvec.errors import DataError, EnvironmentProblem

FORMAT = 2
MANIFEST = "corpus.json"
_PARTIAL = ".partial-"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.EEXIST, errno.ENOTDIR}


@contextmanager
def new_files(folder: Path) -> Iterator[Path]:
    """A folder below `folder` to write in, which disappears again however this ends.

    What a killed process left there is removed by the next one on the same machine.

    Raises:
        EnvironmentProblem: no permission, or the disk is full.
    """
    host = "".join(char if char.isalnum() else "-" for char in socket.gethostname())
    partial = folder / f"{_PARTIAL}{host}-{os.getpid()}"
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(folder, f"{_PARTIAL}{host}-")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
        except OSError as error:
            raise _unwritable(folder, error) from error
        yield partial
    except OSError as error:
        if error.errno not in _FULL | _FORBIDDEN:
            raise  # not of these files: a source given as an iterator may raise what it likes
        raise _unwritable(folder, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unwritable(folder: Path, error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"the corpus cannot be written ({error.strerror})",
        where=str(folder),
        remedy="Free disk space." if error.errno in _FULL else "Choose another folder.",
    )


def publish(partial: Path, folder: Path, manifest: dict[str, Any]) -> None:
    """Move all files of `partial` into `folder`; the manifest, with their sizes, goes last."""
    files = sorted(partial.iterdir())
    sizes = {file.name: file.stat().st_size for file in files}
    content = json.dumps({"format": FORMAT, **manifest, "files": sizes}, indent=1, ensure_ascii=False)
    new = partial / MANIFEST
    new.write_text(content + "\n", encoding="utf-8")
    if not _same_source(folder, manifest):
        # Killed between two moves, a mixture of old and new must not pass for a corpus. Where the source is the
        # same, so are the files, and a process that prepares it at the same time may be opening them now.
        (folder / MANIFEST).unlink(missing_ok=True)
    for file in files:
        os.replace(file, folder / file.name)
    os.replace(new, folder / MANIFEST)


def _same_source(folder: Path, manifest: dict[str, Any]) -> bool:
    try:
        digest = read_manifest(folder)["source"]["digest"]
    except (DataError, KeyError, TypeError):
        return False
    return digest is not None and digest == manifest["source"]["digest"]


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a prepared corpus whose files are all there.

    Raises:
        DataError: there is none, or a file is missing or has another size.
    """
    place = folder / MANIFEST
    remedy = "Remove the folder and read the corpus again."
    try:
        manifest = json.loads(place.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise DataError(
                f"this corpus has format {manifest['format']}, not {FORMAT}", where=str(place), remedy=remedy
            )
        sizes = dict(manifest["files"])
    except FileNotFoundError as error:
        raise DataError("this folder holds no prepared corpus", where=str(folder)) from error
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise DataError(f"the manifest is damaged ({error})", where=str(place), remedy=remedy) from error
    for name, size in sizes.items():
        file = folder / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            what = "is missing" if found is None else f"has {found:,} bytes, not {size:,}"
            raise DataError(f"a file of the corpus {what}", where=str(file), remedy=remedy)
    return dict(manifest)


def _remove_abandoned(folder: Path, prefix: str) -> None:
    for left in folder.glob(f"{prefix}*"):
        number = left.name.removeprefix(prefix)
        if number.isdigit() and not _alive(int(number)):
            shutil.rmtree(left, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
