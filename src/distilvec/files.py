"""Files that become visible whole or not at all, and folders that a process holds.

What is not whole yet has a random name with one prefix and a lock beside it, which the system drops with its process:
the next process that writes into the folder removes what no process holds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.errors import DistilvecError
from distilvec.system_errors import discard, disk_problems, of_the_system, system_problem

if TYPE_CHECKING:
    import numpy as np

logger = logging.getLogger(__name__)
_SCRATCH_BYTES = 4 << 20
#: What every name begins with that lasts until its file or folder is whole.
TEMPORARY = ".distilvec-tmp-"
TEMPORARY_NAME = re.compile(re.escape(TEMPORARY) + r"[0-9a-f]{16}(\.lock)?")
RUN_LOCK = "run.lock"
#: Keys under which records state their checksum.
_SUMS = {"own_checksum", "record_checksum"}


def home(path: str) -> str:
    """The path with the home folder in place of a leading "~"; as it is where there is no such user."""
    if not path.startswith("~"):
        return path
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        return path


@contextmanager
def held(file: Path, *, wait: bool) -> Iterator[bool]:
    """As `locked`, with the errors of the system as they are."""
    from filelock import FileLock, Timeout

    lock = FileLock(file, thread_local=False)
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:  # the next process takes it all the same
            logger.warning("%s: this lock cannot be removed (%s); it holds nobody up", file, error.strerror)
        lock.release()


@contextmanager
def locked(file: Path, *, wait: bool) -> Iterator[bool]:
    """Hold an exclusive lock, which the system drops when the process dies; yields whether it was got.

    The holder removes the file while it holds it; a process that waits on the removed file notices and tries again.

    Raises:
        EnvironmentProblem: the file cannot be made, or its file system takes no locks.
    """
    with ExitStack() as stack:
        with disk_problems("this cannot be locked", file):
            free = stack.enter_context(held(file, wait=wait))
        yield free


def is_locked(file: Path) -> bool:
    """Tell whether a process holds this lock, or another user's may; the file is neither made nor removed."""
    from filelock import FileLock, Timeout

    if not file.is_file():
        return False
    try:
        FileLock(file, thread_local=False).acquire(blocking=False).lock.release()
    except (Timeout, PermissionError):
        return True
    except OSError:  # a file system without locks
        return False
    return False


@contextmanager
def alone_in(folder: Path, name: str = RUN_LOCK) -> Iterator[None]:
    """Hold a folder that is written into; two runs would take each other's files for their own.

    Args:
        name: the lock's file in it.

    Raises:
        DistilvecError: another process holds it.
        EnvironmentProblem: it cannot be written.
    """
    with ExitStack() as stack:
        with writing("folder", folder):
            folder.mkdir(parents=True, exist_ok=True)
            free = stack.enter_context(held(folder / name, wait=False))
        if not free:
            raise DistilvecError(
                "another run is at work here", where=str(folder), remedy="Wait for it, or choose another output."
            )
        yield


@contextmanager
def writing(what: str, where: Path) -> Iterator[None]:
    """Turn what the system says while something is written into an error that names it.

    Raises:
        EnvironmentProblem: the place cannot be written, or the disk is full.
    """
    try:
        yield
    except Exception as error:
        if not of_the_system(error):
            raise
        raise system_problem(error, f"the {what} cannot be written", where) from error


@contextmanager
def temporary(folder: Path) -> Iterator[Path]:
    """A name in `folder` for a file or folder that is not whole yet; what has it when the block ends is removed.

    Raises:
        OSError: the folder is missing or cannot be written.
    """
    for name in {name.removesuffix(".lock") for name in os.listdir(folder) if TEMPORARY_NAME.fullmatch(name)}:
        with suppress(OSError), held(folder / f"{name}.lock", wait=False) as dead:
            if dead:
                _discard(folder / name)
    path = folder / f"{TEMPORARY}{secrets.token_hex(8)}"
    with held(path.with_name(f"{path.name}.lock"), wait=True):  # before the path, so that it never lacks one
        try:
            yield path
        finally:
            _discard(path)


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """A temporary name to write to, which becomes `file` at the end of the block, and is removed if the block raises.

    The folder is made if it is missing. A killed process leaves the old file as it was.

    Raises:
        EnvironmentProblem: the place cannot be written, or the disk is full.
    """
    with writing("file", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary(file.parent) as partial:
            yield partial
            partial.chmod(0o666 & ~_mask())  # safetensors lets nobody else read its files
            os.replace(partial, file)


def write_text(file: Path, content: str) -> None:
    """Write a text file as UTF-8, whole or not at all."""
    with whole(file) as partial:
        partial.write_text(content, encoding="utf-8")


def try_place(place: Path) -> None:
    """Write and remove a small file where a folder is or will be, so that a place that takes none is refused now."""
    there = next(each for each in (place.absolute(), *place.absolute().parents) if os.path.lexists(each))
    with temporary(there) as partial:
        partial.write_bytes(bytes(4096))


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        discard(path)


def scratch(count: int, dtype: Any) -> np.ndarray:
    """Zeros [count] in a temporary file without a name: the system can take such memory back.

    For what grows with a corpus and is looked at here and there. Few of them, or those for which there is no room, lie
    in memory as any other array.
    """
    import numpy as np

    left = count * np.dtype(dtype).itemsize
    if left < _SCRATCH_BYTES:
        return np.zeros(count, dtype)
    try:
        with tempfile.TemporaryFile() as file:
            while left > 0:  # written, not only declared: a full disk is met here and not at some later access
                left -= file.write(bytes(min(left, _SCRATCH_BYTES)))
            file.flush()
            return np.memmap(file, dtype, "r+", shape=(count,)).view(np.ndarray)
    except OSError:
        return np.zeros(count, dtype)


def spilled(*arrays: np.ndarray) -> np.ndarray:
    """The values of arrays [n] of one dtype, one after the other, as `scratch` keeps them."""
    import numpy as np

    if sum(array.nbytes for array in arrays) < _SCRATCH_BYTES:
        return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
    kept, start = scratch(sum(map(len, arrays)), arrays[0].dtype), 0
    for array in arrays:
        kept[start : start + len(array)] = array
        start += len(array)
    return kept


def check_regular(folder: Path, *, deep: bool = False) -> None:
    """Refuse a folder with a pipe, a socket or a device in it: whoever reads one may wait for ever.

    Args:
        deep: look into the folders below it too.
    """
    for path in sorted(folder.rglob("*") if deep else folder.iterdir()):
        with suppress(OSError):  # a link that leads nowhere, or in a circle
            mode = path.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise DistilvecError(
                    "expected a file or a folder, found a pipe, a socket or a device",
                    where=str(path),
                    remedy="Take it out of the folder, or copy the folder again.",
                )


def read_small(file: Path, most: int = 1 << 20) -> str:
    """The text of a file that is small by its nature; nothing is opened that may never end.

    Raises:
        OSError, UnicodeDecodeError: as `Path.read_text`; it is a pipe or a device, or has more bytes than `most`.
    """
    status = file.stat()
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise OSError("it is a pipe, a device or a socket, not a file")
    if status.st_size > most:
        raise OSError(f"it has {status.st_size:,} bytes, and files of its kind at most {most:,}")
    return file.read_text(encoding="utf-8")


def read_object(file: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none, where it is a link, or where it holds something else."""
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() and not file.is_symlink() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def checksum_of(record: Mapping[str, Any]) -> str:
    """The checksum of an object of JSON, over all but the checksum that it states itself."""
    content = json.dumps({key: record[key] for key in sorted(record) if key not in _SUMS})
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def write_record(file: Path, record: Mapping[str, Any]) -> None:
    """Write an object of JSON with its checksum, whole or not at all."""
    content = {**record, "own_checksum": checksum_of(record)}
    write_text(file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_record(file: Path) -> dict[str, Any]:
    """Read what `write_record` wrote; empty where that is not there, or is damaged: then its work is done again.

    Records of versions that wrote no checksum are taken as they are.
    """
    content = read_object(file)
    return content if content.get("own_checksum", checksum_of(content)) == checksum_of(content) else {}


def readable(folder: Path) -> None:
    """Give the files of a folder the permissions of new ones: safetensors lets nobody else read its files."""
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(0o666 & ~_mask())


def _mask() -> int:
    """The permissions that this process takes away from new files; asking means setting it for a moment."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
