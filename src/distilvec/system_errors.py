"""Errors of the system about files, and what a person can do about them: one place for every command."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distilvec.errors import DistilvecError, EnvironmentProblem

#: Numbers of the errors that say that there is no room.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_AWAY = "The machine that the files lie on does not answer as it should: start again when it does."
_FAILS = "The disk, or the connection to it, fails: look at the system's log, and start again when it works."
_FORBIDDEN = "Check the permissions, or choose another place."
#: Number of an error -> what to do. Other numbers (no such file, say) mean something to those who call.
REMEDIES = {
    errno.ENOSPC: "Make room there, or choose another place.",
    errno.EDQUOT: "Make room there, raise the quota, or choose another place.",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f), or choose another place.",
    errno.EIO: _FAILS,
    errno.ENXIO: _FAILS,
    errno.ENODEV: _FAILS,
    errno.EUCLEAN: _FAILS,
    errno.ESTALE: _AWAY,
    errno.EREMOTEIO: _AWAY,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EROFS: "This file system is read-only: choose another place.",
    errno.ENOLCK: "This file system takes no locks: choose a place on another one.",
    errno.EMFILE: "Raise the limit on open files (ulimit -n).",
    errno.ENFILE: "Too many files are open on this machine: close other programs.",
}
#: As pyarrow, and libraries in Rust, write the number into their own errors.
_LONGEST = 1000  # of a path in a message
_WRITTEN = re.compile(r"\(os error (\d+)\)|\[errno (\d+)\]", re.IGNORECASE)


def number_of(error: Exception) -> int | None:
    """The number that the system gave an error, also where another library has wrapped it."""
    found = _WRITTEN.search(str(error))
    if isinstance(error, DistilvecError):
        return None
    return getattr(error, "errno", None) or (int(next(filter(None, found.groups()))) if found else None)


def of_the_system(error: Exception) -> bool:
    """Tell whether an error while something is written is the system's: a full disk, no permission."""
    return isinstance(error, OSError) or number_of(error) is not None


def is_full(error: Exception) -> bool:
    """Tell whether an error says that there is no room on a disk, in its own words or in those of safetensors."""
    return number_of(error) in FULL


def system_problem(error: Exception, what: str, where: str | Path | None, after: str = "") -> EnvironmentProblem:
    """An error of the system as one that says the file and what to do.

    Args:
        what: cannot be done: "the report cannot be written".
        where: the file or folder that the work was about; None = the file that the error names.
        after: a further sentence of the remedy, for instance what is kept.
    """
    number = number_of(error)
    said = os.strerror(number) if number else " ".join(str(error).split())[:300] or type(error).__name__
    remedy = REMEDIES.get(number or 0, "Choose another place, or make room.")
    if number == errno.ENAMETOOLONG:
        remedy = "Shorten it."
    name = getattr(error, "filename2", None) or getattr(error, "filename", None)
    file = Path(os.fsdecode(name)) if isinstance(name, str | bytes) else None
    at = "" if file is None or where is None or _says_nothing(file, Path(where)) else f": {str(file)[:_LONGEST]}"
    place = str(where or file)[:_LONGEST] if where or file else None
    return EnvironmentProblem(f"{what} ({said}{at})", where=place, remedy=f"{remedy} {after}".rstrip())


def _says_nothing(file: Path, where: Path) -> bool:
    """Tell whether a name is that of the place itself, or of an unfinished file next to it, which begins with a dot."""
    file, where = file.absolute(), where.absolute()
    inside = file.relative_to(where.parent).parts if file.is_relative_to(where.parent) else ()
    return file == where or any(part.startswith(".") for part in inside)


@contextmanager
def disk_problems(what: str, where: str | Path, after: str = "") -> Iterator[None]:
    """Turn what the system says of a disk into an `EnvironmentProblem`; let other errors through.

    Raises:
        EnvironmentProblem: one of the `REMEDIES` is meant.
    """
    try:
        yield
    except OSError as error:
        if number_of(error) not in REMEDIES:
            raise
        raise system_problem(error, what, where, after) from error


def discard(file: Path) -> None:
    """Remove what is left of an unfinished file, if possible: the error that is under way says more than this one's."""
    with suppress(OSError):
        file.unlink(missing_ok=True)
