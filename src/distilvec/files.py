"""Where a file is, and how it becomes visible: whole, or not at all."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.errors import DistilvecError
from distilvec.system_errors import discard, of_the_system, system_problem

if TYPE_CHECKING:
    import numpy as np

_SCRATCH_BYTES = 4 << 20


def home(path: str) -> str:
    """The path with the home folder in place of a leading "~"; as it is where there is no such user."""
    if not path.startswith("~"):
        return path
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        return path


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
    except Exception as error:
        if not of_the_system(error):
            raise
        raise system_problem(error, "the file cannot be written", file) from error
    finally:
        if temporary is not None:
            discard(temporary)


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


def spilled(array: np.ndarray) -> np.ndarray:
    """The values of an array [n] as `scratch` keeps them."""
    if array.nbytes < _SCRATCH_BYTES:
        return array
    kept = scratch(len(array), array.dtype)
    kept[:] = array
    return kept


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


def refuse_foreign(place: Path, names: Iterable[str], ours: Callable[[Path], bool]) -> None:
    """Refuse to write where something of somebody else's would be replaced; nothing is changed.

    Args:
        place: a folder, which need not exist.
        names: what would be replaced in it.
        ours: whether distilvec wrote what lies in this folder.

    Raises:
        DistilvecError: a file lies where the folder should be, or it holds such names, and they are not ours.
        EnvironmentProblem: nobody may look.
    """
    try:
        is_file = place.exists() and not place.is_dir()
        there = sorted(name for name in names if os.path.lexists(place / name))
        foreign = bool(there) and not is_file and not ours(place)
    except OSError as error:
        raise system_problem(error, "the place cannot be looked at", place) from error
    if is_file:
        raise DistilvecError("this is a file, and a folder is needed", where=str(place)[:300], remedy="Choose another.")
    if foreign:
        raise DistilvecError(
            f"this folder holds {', '.join(there[:3])}, which this command did not write",
            where=str(place)[:300],
            remedy="Choose an empty or a new folder (-o); nothing was changed.",
        )


def write_text(file: Path, content: str) -> None:
    """Write a text file as UTF-8, whole or not at all.

    Raises:
        EnvironmentProblem: the place cannot be written, or the disk is full.
    """
    with whole(file) as temporary:
        temporary.write_text(content, encoding="utf-8")


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
