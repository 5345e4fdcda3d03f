"""One teacher opened, asked for its signals, and its store filled.

What trains is imported where it is needed: workers that only teach start in a fraction of the time without it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np
import torch

from distilvec.corpus import Corpus
from distilvec.corpus.lazy import BLOCK, LazyTexts
from distilvec.errors import DataError, DistilvecError
from distilvec.evenly import evenly_spaced, sampled_rows
from distilvec.interruption import StopSignals
from distilvec.progress import Ticker
from distilvec.recipe import TeacherSection
from distilvec.store import FillOptions, FillReport, SignalStore, fill
from distilvec.store.fill import distinct_positions
from distilvec.store.layout import key_words, note_precision
from distilvec.store.statistics import Statistics
from distilvec.store.turns import alone
from distilvec.teachers import Reading, Teacher, TeacherInfo
from distilvec.teachers.describe import TeacherReport, check_teacher
from distilvec.teachers.precision import settle_precision
from distilvec.teachers.sections import ModelSection
from distilvec.teachers.signals import NOTHING, Wanted
from distilvec.teachers.table import open_teacher

if TYPE_CHECKING:
    from distilvec.judging import CachedEncoder
    from distilvec.tasks.base import Task
    from distilvec.training import SignalSource

logger = logging.getLogger(__name__)
#: Of a corpus that is a part of a store so many texts are looked at, for mean and deviation.
_MEASURED = 200_000


@dataclass
class Taught:
    """A teacher, what was seen of it beforehand, its store, and what teaching cost.

    Attributes:
        live: whether token signals come from the teacher itself while training.
        wanted: what the method asks of it besides sentence vectors.
        weight: how much it counts beside the other teachers.
    """

    teacher: Teacher
    seen: TeacherReport
    store: SignalStore
    filled: FillReport
    live: bool = False
    wanted: Wanted = NOTHING
    weight: float = 1.0

    def encoder(self, corpus: Corpus) -> CachedEncoder:
        """The teacher as it is judged: what its store holds is neither encoded nor paid again.

        But for what a model's store holds rounded to eight bits, which is encoded again. Queries and documents begin
        with the prompts of the corpus, with which it taught.
        """
        from distilvec.flow.stored import StoredTeacher
        from distilvec.judging import CachedEncoder

        card = self.teacher.card
        rounded = self.store.dtype == "int8" and not self.teacher.can.paid
        stored = StoredTeacher(self.teacher, None if rounded else self.store, corpus.modality, corpus.prompts)
        return CachedEncoder(stored, name=card.name)

    def info_on(self, corpus: Corpus) -> TeacherInfo:
        """As `info`, with the statistics of this corpus' vectors: what else was ever taught into the store (by another
        recipe with the same cache, or of texts that have left the corpus) decides nothing.
        """
        if self.filled.present + self.filled.taught == len(self.store):
            return self.info
        places = evenly_spaced(len(corpus), _MEASURED)
        rows = np.unique(self.store.rows(corpus.teacher_keys[places]))
        return self._info(self.store.statistics(rows[rows >= 0]) if rows[-1] >= 0 else self.store.statistics())

    @property
    def info(self) -> TeacherInfo:
        """The facts about the teacher that a method may know."""
        return self._info(self.store.statistics())

    def _info(self, statistics: Statistics) -> TeacherInfo:
        from distilvec.store.axes import axes_of

        return replace(
            teacher_info(self.teacher, self.wanted.axes),
            mean=torch.from_numpy(np.asarray(statistics.mean)).float(),
            std=torch.from_numpy(np.asarray(statistics.std)).float(),
            weight=self.weight,
            axes={layer: torch.from_numpy(each.matrix) for layer, each in axes_of(self.store.path).items()},
        )

    def source(self, corpus: Corpus, rows: np.ndarray, cache: Path, task: Task | None = None) -> SignalSource:
        """Return where training gets its signals from."""
        from distilvec.training import LiveSource, StoreSource

        classes = class_order(self.teacher, self.wanted, task)
        if self.live:
            return LiveSource(self.teacher, corpus, cache / "alignments", classes)
        return StoreSource(self.store, corpus, rows, classes)


def class_order(teacher: Teacher, wanted: Wanted, task: Task | None) -> np.ndarray | None:
    """Column of the teacher's logits for each class of the task; None where it has none, or nobody asks."""
    labels = None if teacher.head is None else teacher.head.labels
    if task is None or task.head is None or task.head.labels is None or labels is None or not wanted.logits:
        return None
    if not wanted.same_classes and set(labels) != set(task.head.labels):
        return None
    from distilvec.tasks.labels import teacher_order

    return teacher_order(task.head.labels, labels, teacher.card.name)


def teacher_info(teacher: Teacher, axes: int | None = None) -> TeacherInfo:
    """Return what a method may know of a teacher before it teaches; its token states are kept on `axes` axes."""
    card = teacher.card
    return TeacherInfo(
        name=card.name,
        width=card.width,
        layers=card.layers,
        hidden=axes or teacher.hidden,
        causal=teacher.causal,
        classes=teacher.classes,
        pieces=teacher.pieces,
        head=teacher.output_head,
    )


def teach_one(
    section: TeacherSection,
    corpus: Corpus,
    stores: Path,
    shard: tuple[int, int] | None = None,
    *,
    teacher: Teacher | None = None,
    wanted: Wanted = NOTHING,
) -> Taught:
    """Fill the store of one teacher with what it lacks for this corpus.

    Args:
        teacher: the section's, where it is open already.
        wanted: signals besides sentence vectors; not stored where the section says `live`.
    """
    teacher = open_teacher(section, Reading(corpus.modality)) if teacher is None else teacher
    seen, store = open_store(section, corpus, stores, teacher)
    ticker = Ticker(f"teaching with {section.name}", corpus.kind.noun)
    stored = NOTHING if section.live else wanted
    with StopSignals() as signals, alone(store.path, signals) if shard is None else nullcontext():
        filled = fill_store(store, teacher, corpus, stored, shard=shard, progress=ticker, stop=signals.came)
    finish(section, store, filled, corpus.modality, signals)
    return Taught(teacher, seen, store, filled, section.live, wanted, section.weight)


def open_store(
    section: TeacherSection, corpus: Corpus, stores: Path, teacher: Teacher
) -> tuple[TeacherReport, SignalStore]:
    """Return a teacher's description and its store, which is created if missing and checked for damage."""
    texts = corpus.teacher_texts(sampled_rows(corpus.train_rows, 256))
    folder = stores / section.name
    held = held_precision(folder)
    if said := settle_precision(teacher, texts, held):
        logger.info("%s", said)
    seen = check_teacher(teacher, texts, corpus.modality)
    store = SignalStore.create(folder, teacher.card, teacher.card.width, section.storage)
    if isinstance(section, ModelSection) and section.dtype == "float32" and held not in (None, "float32"):
        raise DistilvecError(
            f"the store holds vectors that the teacher computed in {held}, and dtype asks for float32",
            where=str(folder),
            remedy="Leave dtype out to go on with them, or give the teacher another name to compute all again.",
        )
    if held == "float32" != teacher.card.dtype:
        note_precision(folder, teacher.card.dtype)
    store.verify(changed=True)
    return seen, store


def held_precision(folder: Path) -> str | None:
    """The coarsest precision that a teacher computed a store's vectors in; None where there are none."""
    if not (folder / "store.json").exists():
        return None
    store = SignalStore.open(folder)
    return str(store.card.get("dtype") or "float32") if len(store) else None


def fill_store(
    store: SignalStore,
    teacher: Teacher,
    corpus: Corpus,
    wanted: Wanted = NOTHING,
    rows: np.ndarray | None = None,
    **options: Unpack[FillOptions],
) -> FillReport:
    """Teach what a store lacks of a corpus, or of some rows of it; options are those of `fill`."""
    texts = LazyTexts(corpus.teacher_texts, range(len(corpus)) if rows is None else rows)
    keys = corpus.teacher_keys if rows is None else corpus.teacher_keys[rows]
    teacher.stop, pending = options.get("stop"), None
    if teacher.can.later and (rows is not None or options.get("shard") is not None):
        remedy = "Leave out --shard and --engine ray."
        raise DistilvecError("one process alone sends batch jobs", where=teacher.card.name, remedy=remedy)
    try:
        if teacher.can.later:
            pending = teacher.order(store.path, lacking_texts(corpus, store))
        with teacher.keeping(store.path / "answers") as all_kept:
            filled = fill(store, teacher, texts, keys, wanted, **options)
            if filled.present + filled.taught + filled.absent == filled.distinct:  # else it was stopped, and some wait
                all_kept(_stored(store, texts, keys))
    finally:
        teacher.stop = None
    if pending is not None:
        raise pending
    return filled


def lacking_texts(corpus: Corpus, store: SignalStore | None) -> LazyTexts:
    """The texts of which a store lacks the vector, each once; all without a store."""
    keys = corpus.teacher_keys
    distinct = distinct_positions(key_words(keys), None)
    return LazyTexts(corpus.teacher_texts, distinct if store is None else distinct[store.missing_at(keys, distinct)])


def _stored(store: SignalStore, texts: LazyTexts, keys: np.ndarray) -> Iterator[str]:
    """The texts that the store has; another shard's may wait for it."""
    for start in range(0, len(texts), BLOCK):
        here = np.flatnonzero(store.rows(keys[start : start + BLOCK]) >= 0)
        yield from texts.take(start + here)


def finish(
    section: TeacherSection, store: SignalStore, filled: FillReport, modality: str, signals: StopSignals
) -> None:
    """Say so where teaching was stopped, or where there is nothing to learn from what was taught."""
    signals.check(
        f"teaching was stopped by {signals.name}; the vectors of {filled.present + filled.taught:,} of "
        f"{filled.distinct:,} {modality}s are kept",
        store.path,
    )
    if filled.absent == filled.distinct > 0:
        raise DataError(
            f"it has nothing for any of the {filled.distinct:,} {modality}s",
            where=f"teacher {section.name}",
            remedy="Do its texts name the items as the corpus does, with the prompts of its parts? Paths of images "
            "start where the file lies that names them.",
        )
    if not len(store):  # a share of a small corpus may be empty
        return
    statistics = store.statistics()
    if statistics.count > 1 and not np.asarray(statistics.std).any():
        raise DataError(
            f"all its {statistics.count:,} vectors are the same, so there is nothing to learn from it",
            where=f"teacher {section.name}",
            remedy="Look at what it is given and what it returns.",
        )
