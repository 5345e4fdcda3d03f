"""From keys to rows: every part is sorted by key, and one table over all parts is kept beside them.

The table is derived data: two columns, sorted by key, mapped and never loaded. Without
it (parts were added by a writer that was killed, say) the parts are searched one after the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distilvec.errors import EnvironmentProblem
from distilvec.files import locked, temporary
from distilvec.store.layout import SIGNAL

logger = logging.getLogger(__name__)

BUCKET_ROWS = 1 << 20
_TABLE = re.compile(r"-[0-9a-f]{16,24}\.npy")


@dataclass(frozen=True)
class KeyedPart:
    """A part that is open: what all signals' parts have.

    Attributes:
        name: file name without suffix.
        words: uint64 [n, 2], the keys; rows are sorted by them.
        checksum: of the Arrow file's bytes.
    """

    name: str
    words: np.ndarray
    checksum: str

    def __len__(self) -> int:
        return len(self.words)


def locate(first: np.ndarray, second_at: Callable[[np.ndarray], np.ndarray], query: np.ndarray) -> np.ndarray:
    """The first position, int64 [n], of each key uint64 [n, 2] in a table that is sorted by both words, -1 if none.

    Args:
        first: uint64 [N], first words of the table's keys.
        second_at: positions [k] -> uint64 [k], second words of the keys there.
    """
    positions = np.full(len(query), -1, dtype=np.int64)
    order = np.argsort(query[:, 0])  # neighbours in the query then touch neighbouring pages
    wanted = query[order]
    low = np.searchsorted(first, wanted[:, 0])
    while len(order):  # once, as hashes hardly ever agree in one word only
        inside = np.flatnonzero(low < len(first))
        inside = inside[first[low[inside]] == wanted[inside, 0]]
        order, wanted, low = order[inside], wanted[inside], low[inside]
        hit = second_at(low) == wanted[:, 1]
        positions[order[hit]] = low[hit]
        order, wanted, low = order[~hit], wanted[~hit], low[~hit] + 1
    return positions


def locate_in_part(part: KeyedPart, query: np.ndarray) -> np.ndarray:
    """Positions of keys uint64 [n, 2] in one part, int64 [n], -1 where it has none."""
    return locate(np.ascontiguousarray(part.words[:, 0]), lambda at: part.words[at, 1], query)


def _signature(parts: Sequence[KeyedPart]) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        digest.update(f"{part.name} {len(part)} {part.checksum}\n".encode())
    return digest.hexdigest()


class DamagedIndexError(Exception):
    """The table of keys names rows that there are not."""


class KeyIndex:
    """The mapped table of all keys.

    Attributes:
        first: uint64 [N], first words; rows are sorted by both words, equal keys by the order of the parts.
        place: uint64 [N], number of the part in the upper half, row in the part in the lower half.
    """

    def __init__(self, table: np.ndarray, file: Path, parts: Sequence[KeyedPart]) -> None:
        self.first, self.place = table[0], table[1]
        self._file, self._lengths = file, np.array([len(part) for part in parts])

    def places(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the parts and rows in them, int64 [k] each, at positions [k] of the table.

        Raises:
            DamagedIndexError: the table names others than there are.
        """
        packed = self.place[position]
        number, local = (packed >> np.uint64(32)).astype(np.int64), (packed & np.uint64(0xFFFFFFFF)).astype(np.int64)
        if (number >= len(self._lengths)).any() or (local >= self._lengths[number]).any():
            raise DamagedIndexError
        return number, local

    def remove(self) -> None:
        """Away with its file, so that the next who builds one builds it anew."""
        logger.warning("%s is damaged and is not used; it is made again when the store is next written", self._file)
        with contextlib.suppress(OSError):
            self._file.unlink()


def _stem(signal: str) -> str:
    return "index" if signal == SIGNAL else f"{signal}-index"


def open_index(folder: Path, signal: str, parts: Sequence[KeyedPart]) -> KeyIndex | None:
    """The table of exactly these parts (in the order of their names), or None where there is none."""
    rows = sum(map(len, parts))
    file = folder / "derived" / f"{_stem(signal)}-{_signature(parts)}.npy"
    try:
        table = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception:  # damaged bytes lead numpy to errors of zipfile and of Python's tokenizer, too
        return None
    if not isinstance(table, np.ndarray) or table.shape != (2, rows) or table.dtype != np.uint64:
        return None
    return KeyIndex(table.view(np.ndarray), file, parts)


def build_index(folder: Path, signal: str, scan: Callable[[], Sequence[KeyedPart]]) -> None:
    """Write the table of the parts that exist and remove the tables of other states.

    A table that cannot be written costs speed only, so a full disk is a warning here.

    Args:
        scan: gives the parts in the order of their names; called under the lock, so that of several writers
            that end together the last one sees the parts of all.
    """
    derived = folder / "derived"
    try:
        derived.mkdir(exist_ok=True)
        with locked(derived / "index.lock", wait=True):
            parts = scan()
            target = derived / f"{_stem(signal)}-{_signature(parts)}.npy"
            if parts and not target.exists():
                with temporary(derived) as partial:
                    _write_table(partial, parts)
                    os.replace(partial, target)
            for other in derived.glob(f"{_stem(signal)}-*.npy"):
                if other != target and _TABLE.fullmatch(other.name.removeprefix(_stem(signal))):
                    other.unlink(missing_ok=True)
    except (OSError, EnvironmentProblem) as error:
        logger.warning("%s: the table of keys was not written (%s); reading works without it", folder, error)


def _write_table(file: Path, parts: Sequence[KeyedPart]) -> None:
    total = sum(map(len, parts))
    # Keys are hashes: equal ranges of the first word hold about equally many rows.
    buckets = max(1, total // BUCKET_ROWS)
    edges = np.array([(2**64 * bucket) // buckets for bucket in range(1, buckets)], dtype=np.uint64)
    bounds = np.empty((len(parts), buckets + 1), dtype=np.int64)
    for number, part in enumerate(parts):
        inner = np.searchsorted(np.ascontiguousarray(part.words[:, 0]), edges)
        bounds[number] = [0, *inner, len(part)]
    with open(file, "wb") as handle:
        header = {"descr": "<u8", "fortran_order": False, "shape": (2, total)}
        np.lib.format.write_array_header_1_0(handle, header)
        start, done = handle.tell(), 0
        for bucket in range(buckets):
            spans = [slice(low, high) for low, high in bounds[:, bucket : bucket + 2].tolist()]
            words = [part.words[span] for part, span in zip(parts, spans, strict=True)]
            first = np.concatenate([pair[:, 0] for pair in words])
            place = np.concatenate(
                [np.arange(span.start, span.stop, dtype=np.uint64) + (n << 32) for n, span in enumerate(spans)]
            )
            order = np.argsort(first, kind="stable")
            if (first[order[1:]] == first[order[:-1]]).any():
                order = np.lexsort((np.concatenate([pair[:, 1] for pair in words]), first))
            handle.seek(start + 8 * done)
            handle.write(first[order].tobytes())
            handle.seek(start + 8 * (total + done))
            handle.write(place[order].tobytes())
            done += len(order)
        handle.flush()
        os.fsync(handle.fileno())
