"""A corpus on object storage or another machine: one of its files at a time is fetched, read and removed again."""

from __future__ import annotations

import errno
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from distilvec.corpus.rows import Row
from distilvec.errors import DataError, DistilvecError
from distilvec.files import temporary
from distilvec.storage import opened_storage
from distilvec.system_errors import disk_problems, system_problem

WHAT = "a corpus"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Files(NamedTuple):
    """Files in a storage: their paths there by their addresses, what is not read, and what changes when they do."""

    url: str
    paths: dict[str, str]
    left_out: list[str]
    state: str


def find_files(url: str, is_read: Callable[[Path], bool]) -> Files:
    """The files that are read, in order of their names.

    Args:
        url: of a file, or of a folder of files; its sub-folders are not read, as on the disk.
        is_read: tells by a file's name.
    """
    if url.startswith(("http://", "https://")):
        raise DistilvecError("texts are not read from web addresses", where=url, remedy="Download the file first.")
    with opened_storage(url, WHAT) as (system, root):
        single = system.isfile(root)
        if not single and not system.exists(root):
            raise DataError("there is no such file or folder", where=url, remedy="Check the address.")
        there = {root: "file"} if single else {each["name"]: each["type"] for each in system.ls(root, detail=True)}
        read = [path for path, kind in sorted(there.items()) if single or (kind == "file" and is_read(Path(path)))]
        marks = [_mark(system.info(path)) for path in read]
    # Not as the storage writes them: some leave the host out.
    paths = {url if single else f"{url.rstrip('/')}/{Path(path).name}": path for path in read}
    if not paths:
        raise DataError("no file in this folder can be read", where=url, remedy="Sub-folders are not read.")
    state = hashlib.blake2b("\n".join([*paths, *marks]).encode(), digest_size=16).hexdigest()
    names = sorted(Path(path).name for path in there.keys() - {*read, root})
    return Files(url, paths, [name for name in names if not name.startswith(".")], state)


def _mark(about: dict[str, object]) -> str:
    """All that a storage says of a file but for when it was last read (which SFTP calls time)."""
    return repr(sorted((key, str(value)) for key, value in about.items() if key != "time" and "access" not in key))


def fetched_rows(files: Files, folder: Path | None, read: Callable[[Path], Iterator[Row]]) -> Iterator[Row]:
    """The rows of files that are fetched one after the other; each lies on the disk while it is read.

    Args:
        folder: where they lie; None = the system's folder for temporary files.
        read: the rows of a file of this machine.
    """
    for address, path in files.paths.items():
        fetched = _fetched(files.url, address, path, folder or Path(tempfile.gettempdir()))
        with fetched as file, _named(str(file), address):
            for row in read(file):
                yield row._replace(file=address)


@contextmanager
def _fetched(url: str, address: str, path: str, folder: Path) -> Iterator[Path]:
    with temporary(folder) as place:
        file = place / Path(path).name
        with disk_problems("the file cannot be fetched", folder):
            place.mkdir()
        with opened_storage(url, WHAT, address) as (system, _):
            try:
                system.get_file(path, str(file))
            except OSError as error:  # the same numbers come from the storage
                if error.errno in _FULL or error.filename == str(file):
                    raise system_problem(error, "the file cannot be fetched", folder) from error
                raise
        yield file


@contextmanager
def _named(file: str, address: str) -> Iterator[None]:
    """Errors name the address, not the copy."""
    try:
        yield
    except DistilvecError as error:
        where, remedy = (text and text.replace(file, address) for text in (error.where, error.remedy))
        raise type(error)(error.what.replace(file, address), where=where, remedy=remedy) from error
