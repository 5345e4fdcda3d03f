"""How a file becomes visible: whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distilvec.errors import EnvironmentProblem


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """A temporary name beside `file` to write to; renamed to `file` at the end, and gone if the block raises.

    The folder is made where it is missing. Nobody ever sees half of the file, and a killed process leaves the old one.

    Raises:
        EnvironmentProblem: the place cannot be written, or the disk is full.
    """
    temporary = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{file.name[:100]}.", suffix=".tmp", dir=file.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        temporary.chmod(0o666 & ~_mask())
        os.replace(temporary, file)
    except OSError as error:
        raise EnvironmentProblem(
            f"the file cannot be written ({error.strerror or error})",
            where=str(file)[:300],
            remedy="Choose another place, or make room.",
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_text(file: Path, content: str) -> None:
    """Write a text file as UTF-8, whole or not at all.

    Raises:
        EnvironmentProblem: the place cannot be written, or the disk is full.
    """
    with whole(file) as temporary:
        temporary.write_text(content, encoding="utf-8")


def _mask() -> int:
    """The permissions that this process takes away from new files; asking means setting it for a moment."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
