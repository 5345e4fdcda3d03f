"""A corpus on object storage or another machine: one of its files at a time is fetched, read and removed again."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from distilvec.corpus.rows import Row
from distilvec.errors import DataError, DistilvecError
from distilvec.files import temporary
from distilvec.storage import opened_storage
from distilvec.system_errors import disk_problems

WHAT = "a corpus"


def find_files(url: str, is_read: Callable[[Path], bool]) -> tuple[list[str], str]:
    """The addresses of the files that are read, in order of their names, and what changes when one of them does.

    Args:
        url: of a file, or of a folder of files; its sub-folders are not read, as on the disk.
        is_read: tells by a file's name.

    Raises:
        DistilvecError: it is no address of a storage, or holds a password, which recipes and reports would keep.
        DataError: nothing is there that can be read.
        EnvironmentProblem: the storage cannot be reached.
    """
    parts = urlsplit(url)
    if parts.password:
        raise DistilvecError(
            "the address holds a password, which recipes and reports would keep",
            where=f"{parts.scheme}://{parts.hostname}",
            remedy="Leave it out: the storage's package reads keys from the environment or from its own files.",
        )
    with opened_storage(url, WHAT) as (system, root):
        single = system.isfile(root)
        if not single and not system.exists(root):
            raise DataError("there is no such file or folder", where=url, remedy="Check the address.")
        there = [root] if single else [each["name"] for each in system.ls(root, detail=True) if each["type"] == "file"]
        paths = sorted(path for path in there if single or is_read(Path(path)))
        marks = [_mark(system.info(path)) for path in paths]
        addresses = [url] if single else [system.unstrip_protocol(path) for path in paths]
    if not addresses:
        raise DataError("no file in this folder can be read", where=url, remedy="Sub-folders are not read.")
    return addresses, hashlib.blake2b("\n".join([*addresses, *marks]).encode(), digest_size=16).hexdigest()


def _mark(about: dict[str, object]) -> str:
    """What a storage says of a file but for when it was last read (which SFTP calls time)."""
    return repr(sorted((key, str(value)) for key, value in about.items() if key != "time" and "access" not in key))


def fetched_rows(addresses: Sequence[str], folder: Path | None, read: Callable[[Path], Iterator[Row]]) -> Iterator[Row]:
    """The rows of files that are fetched one after the other; each lies on the disk while it is read.

    Args:
        folder: where they lie; None = the system's folder for temporary files.
        read: the rows of a file of this machine.

    Raises:
        DataError: a file is damaged.
        EnvironmentProblem: the storage cannot be reached any more, or the disk is full.
    """
    for address in addresses:
        with _fetched(address, folder or Path(tempfile.gettempdir())) as file, _named(str(file), address):
            for row in read(file):
                yield row._replace(file=address)


@contextmanager
def _fetched(address: str, folder: Path) -> Iterator[Path]:
    with temporary(folder) as place:
        file = place / Path(address).name
        with opened_storage(address, WHAT) as (system, path), disk_problems("the file cannot be fetched", folder):
            place.mkdir()
            system.get_file(path, str(file))
        yield file


@contextmanager
def _named(file: str, address: str) -> Iterator[None]:
    """Errors name the address, not the copy."""
    try:
        yield
    except DistilvecError as error:
        where, remedy = (text and text.replace(file, address) for text in (error.where, error.remedy))
        raise type(error)(error.what.replace(file, address), where=where, remedy=remedy) from error
