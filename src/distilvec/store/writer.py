"""Adding vectors to a store. Any number of writers add parts at once, each under a name of its own."""

from __future__ import annotations

import functools
import itertools
import logging
import re
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np

from distilvec.errors import DataError, DistilvecError
from distilvec.files import locked
from distilvec.store.codec import misfit, pack, unpack
from distilvec.store.index import build_index
from distilvec.store.layout import (
    DTYPES,
    KEY_BYTES,
    SIGNAL,
    WRITER_NAME,
    StoreFormat,
    check_same_format,
    key_words,
    read_signals,
)
from distilvec.store.part import PART_BYTES, PART_SECONDS, open_part, write_part
from distilvec.store.scan import clean_up, scan_parts
from distilvec.store.statistics import Moments

logger = logging.getLogger(__name__)

MOST_PART_BYTES = 256 << 20


class StoreWriter:
    """Collects vectors in memory and writes them as whole parts. A context manager.

    A part is written when it is full or old enough, and at the end, also where an error or Ctrl-C ends the
    block: what has been added is kept. Only a kill loses anything, at most the part in memory.

    Args:
        name: of this writer; letters, digits, dot, dash, underscore. None takes a free one.
        part_bytes: size of a part, at most 256 MiB.
        index: bring the table of keys up to date when it closes.

    Raises:
        DistilvecError: for a bad name or size, where an open writer has the name, or where the store was made anew.
    """

    def __init__(
        self,
        folder: Path,
        store: StoreFormat,
        name: str | None = None,
        part_bytes: int = PART_BYTES,
        *,
        index: bool = True,
    ) -> None:
        if not 1 <= part_bytes <= MOST_PART_BYTES:
            raise DistilvecError(f"a part has 1 to {MOST_PART_BYTES} bytes, not {part_bytes}")
        self._folder, self._store, self._index = folder, store, index
        row_bytes = KEY_BYTES + store.width * np.dtype(DTYPES[store.dtype]).itemsize
        self._part_rows = max(1, part_bytes // (row_bytes + 4 * (store.dtype == "int8")))
        self._exit = ExitStack()
        self.name = self._take_name(name)
        try:
            check_same_format(folder, store)
            self._next = clean_up(folder, self.name)
        except BaseException:
            self._exit.close()
            raise
        # One block for a whole part; pages are allocated on first use. Separate batches would fragment the heap.
        self._words = np.empty((self._part_rows, 2), np.uint64)
        self._values = np.empty((self._part_rows, store.width), DTYPES[store.dtype])
        self._scales = np.empty(self._part_rows, np.float32)
        self._usable = True
        self._clear()
        self.parts: list[str] = []

    def _take_name(self, name: str | None) -> str:
        if name is not None:
            if not WRITER_NAME.fullmatch(name):
                raise DistilvecError(f'"{name}" is no writer name: use letters, digits, and . _ -')
            if not self._lock(name):
                raise DistilvecError(
                    f'another process is writing to the store under the name "{name}"',
                    where=str(self._folder),
                    remedy="Give each writer a name of its own, or wait for the other.",
                )
            return name
        host = re.sub(r"[^A-Za-z0-9]+", "", socket.gethostname())[:40] or "host"
        own = next(name for n in itertools.count() if self._lock(name := f"{host}-{n}"))
        # Names given by number change hands, so the dead of this host are cleaned up by whoever comes next.
        for file in self._folder.glob(f"writer-{host}-*.lock"):
            other = file.name.removeprefix("writer-").removesuffix(".lock")
            if other != own and re.fullmatch(rf"{host}-\d+", other):
                with locked(file, wait=False) as its_owner_is_dead:
                    if its_owner_is_dead:
                        for signal in (SIGNAL, *read_signals(self._folder)):
                            clean_up(self._folder, other, signal)
        return own

    def _lock(self, name: str) -> bool:
        return self._exit.enter_context(locked(self._folder / f"writer-{name}.lock", wait=False))

    def _clear(self) -> None:
        self._moments = Moments.empty(self._store.width)
        self._since = time.monotonic()

    def add(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        """Add vectors. All of them, or none where an error is raised about them.

        Args:
            keys: uint8 [n, 16].
            vectors: [n, D], any float dtype.

        Raises:
            DataError: where a value is not finite (with the row), or too large for the stored dtype.
            DistilvecError: where shapes do not agree, or the writer is closed or has failed.
            EnvironmentProblem: where the disk is full. The parts written so far stay.
        """
        if not self._usable:
            raise DistilvecError(f'the writer "{self.name}" is closed or could not write', where=str(self._folder))
        words = key_words(keys)
        vectors = np.asarray(vectors, dtype=np.float32)
        if vectors.shape != (len(words), self._store.width):
            raise DistilvecError(
                f"expected vectors [{len(words)}, {self._store.width}], found {list(vectors.shape)}",
                where=str(self._folder),
            )
        # Checked as a whole before the first row is taken over.
        if (wrong := misfit(vectors, self._store.dtype)) is not None:
            place = f"row {wrong.row}, key {keys[wrong.row].tobytes().hex()}"
            told = f"{wrong.number} of {len(vectors)} vectors have {wrong.what}"
            raise DataError(told, where=place, remedy=wrong.remedy)
        values, scale = pack(vectors, self._store.dtype)
        start = 0
        while start < len(words):
            part = slice(start, start + self._part_rows - self._moments.count)
            self._take(words[part], vectors[part], values[part], None if scale is None else scale[part])
            start = part.stop
            if self._moments.count == self._part_rows or time.monotonic() - self._since > PART_SECONDS:
                self.flush()

    def _take(self, words: np.ndarray, vectors: np.ndarray, values: np.ndarray, scale: np.ndarray | None) -> None:
        if self._moments.count == 0:
            self._since = time.monotonic()
        rows = slice(self._moments.count, self._moments.count + len(words))
        self._words[rows], self._values[rows] = words, values
        self._scales[rows] = 1.0 if scale is None else scale
        self._moments += Moments.of(vectors, unpack(values, scale))

    def flush(self) -> None:
        """Write what is in memory as a part.

        Raises:
            EnvironmentProblem: where the disk is full; the writer takes nothing more then.
        """
        if not self._usable or self._moments.count == 0:
            return
        name = f"{SIGNAL}-{self.name}-{self._next:06d}"
        self._usable = False  # until the part is there
        rows = slice(self._moments.count)
        scales = self._scales[rows]
        needed = self._store.dtype == "int8" or bool((scales != 1).any())
        scale = scales if needed else None
        write_part(self._folder, name, self._store, self._words[rows], self._values[rows], scale, self._moments)
        self._usable = True
        self._next += 1
        self.parts.append(name)
        self._clear()

    def close(self) -> None:
        """Write the rest, bring the table of keys up to date where that was asked for, and give the name free."""
        with self._exit:
            self.flush()
            self._usable = False
            if self._index:
                opened = functools.partial(open_part, self._folder, store=self._store)
                build_index(self._folder, SIGNAL, lambda: scan_parts(self._folder, SIGNAL, opened)[0])

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
