"""Files as bytes and lines: compressed or not, never a whole file at once, never an unbounded line."""

from __future__ import annotations

import errno
import gzip
import io
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from distilvec.corpus.forms import check_form, check_line_ends
from distilvec.errors import DataError, nearest
from distilvec.system_errors import system_problem

COMPRESSED = (".gz", ".zst")
_BLOCK = 1 << 20
#: Of a line that is too long; beyond them it is none.
_SKIPPED = 1 << 28
#: Texts shrink to a fifth, much repeated ones to a fiftieth; what is small is not looked at.
MOST_UNPACKED, UNPACKED_FREELY = 300, 16 << 20
_BOM = b"\xef\xbb\xbf"
_COPY = "Write what it gives into a file, and give that."


class Line(NamedTuple):
    """One physical line; `whole` is False where it was longer than allowed and was cut.

    Attributes:
        number: from 1.
        content: without its end.
        end: a line feed, with the carriage returns before it.
    """

    number: int
    content: bytes
    whole: bool
    end: str = "\n"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what a missing, forbidden or damaged file raises into an error that names it.

    Raises:
        DataError: missing, a pipe or a device, truncated or not what its name says.
        EnvironmentProblem: no permission, or a failing device.
    """
    import pyarrow as pa

    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # which may never end, and may never begin
            raise DataError("this is a pipe, a device or a socket, not a file", where=str(path), remedy=_COPY)
        yield
    except FileNotFoundError as error:
        gone = f'this link leads nowhere ("{path.readlink()}")' if path.is_symlink() else ""
        what = gone or "there is no such file"
        raise DataError(what, where=str(path), remedy=None if gone else _neighbour(path)) from error
    except (OSError, EOFError, zlib.error, UnicodeError, pa.ArrowException) as error:
        number = getattr(error, "errno", None)
        if number == errno.EISDIR:
            raise DataError(f"the file cannot be read ({error})", where=str(path)) from error
        if number is not None:
            raise system_problem(error, "the file cannot be read", path) from error
        raise DataError(  # what gzip and pyarrow find wrong with the content has no number
            f"the file is damaged, cut off or not what its name says ({error})",
            where=str(path),
            remedy="Copy or make it again.",
        ) from error


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The decompressed bytes of a file; the suffix says how it is packed."""
    import pyarrow as pa

    with reading(path), open(path, "rb") as raw:
        if path.suffix.lower() == ".gz":
            with gzip.open(raw) as unpacked:
                yield io.BufferedReader(_Bounded(unpacked, raw, path), _BLOCK)
        elif path.suffix.lower() == ".zst":
            yield io.BufferedReader(_Bounded(pa.CompressedInputStream(raw, "zstd"), raw, path), _BLOCK)
        else:
            yield raw


def lines(path: Path, longest: int) -> Iterator[Line]:
    r"""The lines of a file, split at "\n" only (texts may hold other separators), without byte order mark.

    Args:
        path: plain, .gz or .zst.
        longest: bytes of a line that are kept; what follows is skipped without being held.

    Raises:
        DataError: see `reading`; the file is no text in UTF-8, or its lines end in carriage returns alone.
    """
    with opened(path) as source:
        number = 0
        while content := source.readline(longest):
            number += 1
            whole = content.endswith(b"\n") or len(content) < longest
            if number == 1:
                check_form(content, path)
                check_line_ends(content, path)
                content = content.removeprefix(_BOM)
            if not whole:
                _skip_line(source, path, number)
            kept = content.rstrip(b"\r\n")
            yield Line(number, kept, whole, content[len(kept) :].decode())


def _skip_line(source: BinaryIO, path: Path, number: int) -> None:
    """Read the rest of a line; one that goes on and on is no line of texts, and a file of zeros may have a terabyte."""
    for _ in range(_SKIPPED // _BLOCK):
        rest = source.readline(_BLOCK)
        if not rest or rest.endswith(b"\n"):
            return
    raise DataError(
        f"this line has more than {_SKIPPED >> 20:,} MiB",
        where=f"{path}, line {number}",
        remedy="Is it a text file? One text or row belongs on one line.",
    )


class _Bounded(io.RawIOBase):
    """Unpacked bytes, as long as there are not absurdly many for the packed ones: a few kilobytes could fill a disk."""

    def __init__(self, unpacked: Any, packed: BinaryIO, path: Path) -> None:
        self._unpacked, self._packed, self._path, self._count = unpacked, packed, path, 0

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        length: int = self._unpacked.readinto(target)
        self._count += length
        if self._count > max(UNPACKED_FREELY, MOST_UNPACKED * self._packed.tell()):
            raise DataError(
                f"{self._packed.tell():,} packed bytes unpack to more than {self._count:,}, which no texts do",
                where=str(self._path),
                remedy="Unpack it yourself and give that file, if it is what it should be.",
            )
        return length


def _neighbour(path: Path) -> str | None:
    if not path.parent.is_dir():
        return f"There is no folder {path.parent} either."
    names = [entry.name for entry, _ in zip(path.parent.iterdir(), range(1000))]
    hint = nearest(path.name, names)
    return hint if hint.startswith("Did") else None
