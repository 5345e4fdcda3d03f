"""The answers of a paid service, on disk before anything else is done with them: a kill costs none that came."""

from __future__ import annotations

import re
import secrets
import zlib
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from distilvec.files import locked

ROTATE_ROWS = 50_000
_ATTEMPTS = 100


class Answers:
    """Vectors by key, appended as they come, until a store has them. A context manager.

    Each process appends to files of its own, whose lock says that it lives; what a dead one left is taken over.

    Args:
        folder: of the files; made when missing.
        teacher: fingerprint of who answered; answers of others stay aside.
        width: D.
    """

    def __init__(self, folder: Path, teacher: str, width: int) -> None:
        if not re.fullmatch(r"[0-9a-f]+", teacher):
            raise ValueError(f"{teacher!r} is no fingerprint")
        self.folder, self._start = folder, f"answers-{teacher[:16]}-"
        self._row = np.dtype([("key", "u1", 16), ("vector", "<f4", width), ("sum", "<u4")])
        self._exit = ExitStack()
        self._known: dict[bytes, tuple[np.ndarray, int]] = {}
        self._taken_over: dict[Path, set[bytes]] = {}
        self._own: list[tuple[Path, int]] = []  # file, number of rows given out until its end
        self._file: BinaryIO | None = None
        self._rows = self._given = 0

    def __enter__(self) -> Answers:
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(self.folder.glob(f"{self._start}*.bin")):
            # What is gone by now was its process' own, which has ended since.
            with suppress(FileNotFoundError):
                if self._exit.enter_context(locked(file.with_suffix(".lock"), wait=False)):
                    self._take_over(file)
        return self

    @property
    def left(self) -> bool:
        """Tell whether answers of dead processes were taken over."""
        return any(self._taken_over.values())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        self._exit.close()
        with suppress(OSError):  # others write there, or what is kept waits for the next
            self.folder.rmdir()

    def _take_over(self, file: Path) -> None:
        count = file.stat().st_size // self._row.itemsize  # a last row that was cut short is left out
        self._taken_over[file] = set()
        if not count:
            return
        rows = np.memmap(file, dtype=self._row, mode="r", shape=(count,))
        for number, row in enumerate(rows):
            if _sum(row["key"].tobytes(), row["vector"].tobytes()) == int(row["sum"]):
                self._known[row["key"].tobytes()] = rows["vector"], number
                self._taken_over[file].add(row["key"].tobytes())

    def __len__(self) -> int:
        return len(self._known)

    def find(self, keys: Iterable[bytes]) -> list[np.ndarray | None]:
        """The vector of each key, float32 [D], where a dead process left it."""
        found = (self._known.get(key) for key in keys)
        return [None if each is None else np.array(each[0][each[1]]) for each in found]

    def add(self, keys: Iterable[bytes], vectors: np.ndarray) -> None:
        """Append answers float32 [n, D]; they are the system's to keep when this returns."""
        out = np.zeros(len(vectors), self._row)
        for row, key, vector in zip(out, keys, vectors.astype("<f4"), strict=True):
            row["key"] = np.frombuffer(key, np.uint8)
            row["vector"] = vector
            row["sum"] = _sum(key, vector.tobytes())
        if self._file is None or self._rows >= ROTATE_ROWS:
            self._begin()
        assert self._file is not None
        content = memoryview(out.tobytes())
        while content:
            content = content[self._file.write(content) :]
        self._rows += len(out)
        self._given += len(out)

    def given(self, rows: int) -> None:
        """So many rows were given out that never were added, because a dead process had left them."""
        self._given += rows

    def _begin(self) -> None:
        if self._file is not None:
            self._file.close()
            self._own[-1] = (self._own[-1][0], self._given)
        file = self.folder / f"{self._start}{secrets.token_hex(8)}.bin"
        for attempt in range(1, _ATTEMPTS + 1):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._exit.enter_context(locked(file.with_suffix(".lock"), wait=False))
                break
            except FileNotFoundError:  # another process ended just now, and took the folder away because it was empty
                if attempt == _ATTEMPTS:
                    raise
        self._file, self._rows = file.open("ab", buffering=0), 0
        self._own.append((file, -1))

    def kept(self, rows: int) -> None:
        """The store has the first so many rows of all that were given out; files of these alone can go."""
        for file, end in [each for each in self._own if 0 <= each[1] <= rows]:
            self._own.remove((file, end))
            file.unlink(missing_ok=True)

    def all_kept(self, keys: Iterable[bytes]) -> None:
        """The store has everything that was given out, and the vectors of these keys; a dead process' file with others
        stays for those who ask about them.
        """
        if self._file is not None:
            self._file.close()
            self._file = None
        needed = set().union(*self._taken_over.values())
        if needed:
            needed.difference_update(keys)
        done = [file for file, told in self._taken_over.items() if told.isdisjoint(needed)]
        for file in [*done, *(file for file, _ in self._own)]:
            file.unlink(missing_ok=True)
        self._known, self._own, self._taken_over = {}, [], {}


def _sum(key: bytes, vector: bytes) -> int:
    return zlib.crc32(vector, zlib.crc32(key))
