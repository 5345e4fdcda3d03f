"""Locks that die with their process, wherever it runs: the system holds them, no process number is looked at."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.system_errors import disk_problems, system_problem

logger = logging.getLogger(__name__)


@contextmanager
def locked(file: Path, *, wait: bool) -> Iterator[bool]:
    """Hold an exclusive lock that the system drops when the process dies. Yields whether it was got.

    The file is removed again by the holder. A process that was waiting on a removed file sees that the name
    means another file (or none) by then, and tries again.

    Raises:
        EnvironmentProblem: this system has no such locks, the file cannot be made, or its file system takes no locks.
        OSError: there is no such folder.
    """
    try:
        import fcntl
    except ImportError as error:
        raise EnvironmentProblem("writing here needs POSIX file locks, which this system lacks") from error
    while True:
        with disk_problems("this cannot be locked", file):
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                with disk_problems("this cannot be locked", file):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            if not _still_named(file, descriptor):
                continue
            try:
                yield True
            finally:
                _remove(file)
            return
        finally:
            with suppress(OSError):  # as NFS may say; the lock is gone with it
                os.close(descriptor)


def _remove(file: Path) -> None:
    """Remove the file of a lock. One that stays holds nobody up, and what was done under it is done."""
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("%s: this lock cannot be removed (%s); it holds nobody up", file, error.strerror)


def is_locked(file: Path) -> bool:
    """Whether a process holds this lock; the file is neither made nor removed."""
    try:
        import fcntl

        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False


@contextmanager
def alone_in(folder: Path, name: str = "run.lock") -> Iterator[None]:
    """Hold a folder that is written into; two runs would take each other's files for their own.

    Args:
        name: of the lock's file in it, which is there as long as the block runs.

    Raises:
        DistilvecError: another process holds it.
        EnvironmentProblem: it cannot be written.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            free = stack.enter_context(locked(folder / name, wait=False))
        except OSError as error:
            raise system_problem(error, "the folder cannot be written", folder) from error
        if not free:
            raise DistilvecError(
                "another run is at work here", where=str(folder), remedy="Wait for it, or choose another output."
            )
        yield


def _still_named(file: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(file), os.fstat(descriptor))
    except FileNotFoundError:
        return False
