"""The files of a prepared corpus: written under a temporary name, moved into place, `corpus.json` last."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from distilvec.errors import DataError
from distilvec.files import checksum_of, read_small, temporary, writing
from distilvec.folders import reserve
from distilvec.system_errors import REMEDIES, disk_problems, system_problem

FORMAT = 2
MANIFEST = "corpus.json"
_UNWRITABLE = {*REMEDIES, errno.EEXIST, errno.ENOTDIR}
#: Bytes of a manifest, in which the names of all labels are.
_LARGEST = 1 << 30


@contextmanager
def new_files(folder: Path) -> Iterator[Path]:
    """A folder below `folder` to write in, which disappears again however this ends."""
    with ExitStack() as stack:
        try:
            with writing("corpus", folder):
                folder.mkdir(parents=True, exist_ok=True)
                partial = stack.enter_context(temporary(folder))
                partial.mkdir()
            yield partial
        except OSError as error:
            own = error.filename is None or Path(os.fsdecode(error.filename)).is_relative_to(folder)
            if error.errno not in _UNWRITABLE or not own:
                raise  # not of these files: a source given as an iterator may raise what it likes
            raise system_problem(error, "the corpus cannot be written", folder) from error


def publish(partial: Path, folder: Path, manifest: dict[str, Any]) -> None:
    """Move all files of `partial` into `folder`; the manifest, with their sizes and checksums, goes last."""
    files = sorted(partial.iterdir())
    sizes = {file.name: file.stat().st_size for file in files}
    sums = {file.name: {"checksum": file_checksum(file), "modified": file.stat().st_mtime_ns} for file in files}
    new = partial / MANIFEST
    reserve(folder, "corpus", [MANIFEST, *sizes], more=True)
    _write_manifest(new, {"format": FORMAT, **manifest, "files": sizes, "checksums": sums})
    digest = manifest["source"]["digest"]
    with writing("corpus", folder):  # a folder may have the name of one of the files
        if digest is None or source_digest(folder) != digest:
            # Killed between two moves, a mixture of old and new must not pass for a corpus. Where the source is the
            # same, so are the files, and a process that prepares it at the same time may be opening them now.
            (folder / MANIFEST).unlink(missing_ok=True)
        for file in files:
            os.replace(file, folder / file.name)
        os.replace(new, folder / MANIFEST)


def _write_manifest(file: Path, manifest: dict[str, Any]) -> None:
    content = {**manifest, "own_checksum": checksum_of(manifest)}
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def file_checksum(file: Path) -> str:
    """The checksum of a file's bytes, as corpora and stores write it down."""
    with open(file, "rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


def source_digest(folder: Path) -> str | None:
    """Return what a prepared corpus says of its source and settings; None where no whole corpus says any."""
    try:
        return read_manifest(folder)["source"]["digest"]
    except (DataError, KeyError, TypeError):
        return None


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a prepared corpus whose files are all there.

    Raises:
        DataError: there is none, or a file is missing or has another size.
    """
    place = folder / MANIFEST
    remedy = "Remove the folder and read the corpus again."
    try:
        with disk_problems("the manifest cannot be read", place):
            manifest = json.loads(read_small(place, _LARGEST))
        if manifest["format"] != FORMAT:
            raise DataError(
                f"this corpus has format {manifest['format']}, not {FORMAT}", where=str(place), remedy=remedy
            )
        sizes = dict(manifest["files"])
    except FileNotFoundError as error:
        raise DataError(f"this folder holds no prepared corpus ({MANIFEST} is missing)", where=str(folder)) from error
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise DataError(f"the manifest is damaged ({error})", where=str(place), remedy=remedy) from error
    if "checksums" in manifest and manifest.get("own_checksum") != checksum_of(manifest):
        raise DataError("the manifest is damaged (its checksum does not agree)", where=str(place), remedy=remedy)
    for name, size in sizes.items():
        file = folder / name
        actual = file.stat().st_size if file.is_file() else None
        if actual != size:
            what = "is missing" if actual is None else f"has {actual:,} bytes, not {size:,}"
            raise DataError(f"a file of the corpus {what}", where=str(file), remedy=remedy)
    _verify(folder, manifest, remedy)
    return dict(manifest)


def _verify(folder: Path, manifest: dict[str, Any], remedy: str) -> None:
    """Compare the checksums of files that were written or copied since they last agreed, by the time of that."""
    changed = False
    for name, known in manifest.get("checksums", {}).items():  # a corpus of before there were any has none
        file = folder / name
        modified = file.stat().st_mtime_ns
        if modified == known["modified"]:
            continue
        try:
            agrees = file_checksum(file) == known["checksum"]
        except OSError as error:
            raise system_problem(error, "a file of the corpus cannot be read", file) from error
        if not agrees:
            raise DataError(
                "a file of the corpus is damaged (its checksum does not agree)", where=str(file), remedy=remedy
            )
        known["modified"], changed = modified, True
    if changed:
        with suppress(OSError), temporary(folder) as partial:  # else it is read again the next time
            _write_manifest(partial, manifest)
            os.replace(partial, folder / MANIFEST)
