"""Teaching: encode what a store lacks, and only that."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np

from distilvec.errors import DistilvecError
from distilvec.files import spilled
from distilvec.store.layout import card_dict, check_same_teacher, key_words
from distilvec.store.part import PART_BYTES
from distilvec.store.reader import SignalStore
from distilvec.store.signals import Filling
from distilvec.store.writer import StoreWriter
from distilvec.teachers.base import Teacher
from distilvec.teachers.signals import NOTHING, Wanted

logger = logging.getLogger(__name__)

#: Keys whose neighbours are compared at once.
COMPARED = 1 << 18


@dataclass(frozen=True)
class FillReport:
    """The report of one call of `fill`.

    Attributes:
        items: texts given.
        distinct: different keys among them that belong to the shard.
        present: of these, how many the store had.
        taught: of these, how many the teacher encoded now.
        absent: of these, how many the teacher has nothing for (vectors from elsewhere may not cover a corpus).
        seconds: time for encoding and writing.
        parts: names of the parts written.
        set_aside: name -> reason of the bad parts found on the way; their items count as missing.
    """

    items: int
    distinct: int
    present: int
    taught: int
    seconds: float
    parts: list[str]
    set_aside: dict[str, str]
    absent: int = 0


class FillOptions(TypedDict, total=False):
    """The options of `fill`; all may be left out.

    Attributes:
        shard: (i, n): only the keys with hash i modulo n, 0 <= i < n.
        progress: called with (done, total) distinct items, first with what was there already.
        stop: asked after every batch; once it says yes, what is encoded is written and the report covers that much.
        part_bytes: size of a part, at most 256 MiB; what a kill can cost is one part, or five minutes.
        index: write the table of keys at the end (True). Of many short calls only the last needs to.
    """

    shard: tuple[int, int] | None
    progress: Callable[[int, int], None] | None
    stop: Callable[[], bool]
    part_bytes: int
    index: bool


def fill(
    store: SignalStore,
    teacher: Teacher,
    texts: Sequence[str],
    keys: np.ndarray,
    wanted: Wanted = NOTHING,
    **options: Unpack[FillOptions],
) -> FillReport:
    """Let the teacher read the texts of which the store lacks something. Killed and started again, it goes on.

    Encoding and writing overlap. Several processes or machines fill one store at once, each with its shard. Shards cut
    other batches, and a text that is padded to another length gets its sums in another order: in float32 a vector
    differs by 1e-6 of its largest number at most, in float16 mostly not at all (docs/store.md has what was measured).

    Args:
        teacher: texts that it lacks by `has`, or by rows of NaN where it can have gaps, are left out of the store, and
            readers find them missing.
        texts: what the teacher reads; anything with a length and integer indexing.
        keys: uint8 [n, 16], their keys. A key that occurs more often is encoded once.
        wanted: signals besides sentence vectors; those of a text come from one forward pass.

    Raises:
        DistilvecError: where the teacher is not the store's or cannot give what is wanted, or shapes do not agree.
        DataError: where the teacher gives what is not finite or does not fit into float16, naming the text.
        EnvironmentProblem: where the disk is full. What was complete stays.
    """
    part_bytes, index = options.get("part_bytes", PART_BYTES), options.get("index", True)
    card = card_dict(teacher.card)
    check_same_teacher(str(store.card["fingerprint"]), card["fingerprint"], store.path, card)
    filling = Filling(store, teacher, texts, keys, wanted)
    store.refresh()
    distinct = distinct_positions(key_words(keys), options.get("shard"))
    total, missing = len(distinct), filling.missing(distinct)
    todo = spilled(distinct if missing.all() else distinct[missing])
    present = total - len(todo)
    del distinct, missing

    def goes_on(covered: int) -> bool:
        if (progress := options.get("progress")) is not None:
            progress(present + covered, total)
        return not ("stop" in options and options["stop"]())

    goes_on(0)
    began, covered, absent, parts = time.monotonic(), 0, 0, list[str]()
    if len(todo):
        with (
            store.writer(part_bytes=part_bytes, index=index) as writer,
            filling.writing(writer, part_bytes) as add,
            # Closed here, whatever ends it: answers of a service that are under way then find who keeps them.
            closing(filling.batches(todo)) as batches,
        ):
            covered, absent = _write(batches, add, writer, teacher.kept, goes_on)
        parts = writer.parts
        store.refresh()
    if absent:
        logger.warning("%s has nothing for %s of %s items", teacher.card.name, f"{absent:,}", f"{total:,}")
    if index:
        store.build_index()  # a killed run may have left none
    taught, seconds, set_aside = covered - absent, time.monotonic() - began, dict(store.bad)
    return FillReport(len(texts), total, present, taught, seconds, parts, set_aside, absent)


def _write(
    batches: Iterable[tuple[np.ndarray, Any]],
    add: Callable[[np.ndarray, Any], None],
    writer: StoreWriter,
    kept: Callable[[int], None],
    goes_on: Callable[[int], bool],
) -> tuple[int, int]:
    """Write all batches, or as much as `goes_on(covered)` allows, in another thread than that in which they are made.

    Args:
        batches: positions, and what there is of them, or None.
        kept: hears how many positions are on disk.

    Returns:
        How many positions are covered, and of how many of these the teacher has nothing.
    """
    covered = absent = 0
    with ThreadPoolExecutor(1, "distilvec-store") as pool:
        writing: Future[None] | None = None
        parts = added = 0
        for rows, items in batches:
            if writing is not None:
                writing.result()
            if len(writer.parts) > parts:
                kept(added)  # what the last call of add brought may be in memory still
            parts, added = len(writer.parts), covered
            if items is None:
                absent += len(rows)
            else:
                writing = pool.submit(add, rows, items)
            covered += len(rows)
            if not goes_on(covered):
                break
        if writing is not None:
            writing.result()
    return covered, absent


def distinct_positions(words: np.ndarray, shard: tuple[int, int] | None) -> np.ndarray:
    """Positions int64 [m] of the first occurrence of each key of the shard, ascending."""
    positions = np.arange(len(words)) if _all_differ(words[:, 0]) else _firsts(words)
    if shard is None:
        return positions
    number, shards = shard
    if not 0 <= number < shards:
        raise DistilvecError(f"shard {number} of {shards} does not exist, shards count from 0")
    own: np.ndarray = positions[words[positions, 0] % np.uint64(shards) == number]
    return own


def _all_differ(numbers: np.ndarray) -> bool:
    ordered = np.sort(numbers)
    return bool((ordered[1:] != ordered[:-1]).all())


def _firsts(words: np.ndarray) -> np.ndarray:
    """Positions int64 [m] of the first of equal keys; in twice the memory that it takes to see that none are equal."""
    order = np.lexsort((words[:, 1], words[:, 0]))  # stable: equal keys stay in their order
    first = np.ones(len(order), dtype=bool)
    for start in range(1, len(order), COMPARED):  # without a copy of all keys in order
        block = words[order[start - 1 : start + COMPARED]]
        first[start : start + COMPARED] = (block[1:] != block[:-1]).any(axis=1)
    positions: np.ndarray = order[first]
    del order
    positions.sort()
    return positions
