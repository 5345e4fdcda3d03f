"""Files of a store: whole and on disk, or not there at all; and errors that speak of the store."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from distilvec.errors import EnvironmentProblem
from distilvec.files import FULL, temporary
from distilvec.files import locked as held

_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


def write_json(file: Path, content: Mapping[str, Any], indent: int | None = None) -> None:
    """Write a JSON file that is either absent or complete, whatever happens meanwhile."""
    with temporary(file.parent) as partial:
        with open(partial, "w", encoding="utf-8") as handle:
            handle.write(json.dumps(content, indent=indent, default=str))
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(partial, file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_problems(where: Path) -> Iterator[None]:
    """Turn a full disk or a missing permission into an `EnvironmentProblem`; let other errors through.

    Raises:
        EnvironmentProblem: no room, or no permission.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise EnvironmentProblem(
                f"no room to write the store ({error.strerror})",
                where=str(where),
                remedy="Free disk space or raise the limit, then start again: what is complete is kept.",
            ) from error
        if error.errno in _FORBIDDEN:
            raise EnvironmentProblem(
                f"the store cannot be written ({error.strerror})",
                where=str(where),
                remedy="Check the permissions of the folder.",
            ) from error
        raise


@contextmanager
def locked(file: Path, *, wait: bool) -> Iterator[bool]:
    """As `distilvec.files.locked`, with errors that speak of the store."""
    with ExitStack() as stack:
        with disk_problems(file):
            got = stack.enter_context(held(file, wait=wait))
        yield got
