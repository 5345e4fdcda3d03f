"""Teachers opened, asked what the method wants of them, and their stores filled."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from distilvec.combining import combine
from distilvec.corpus import Corpus
from distilvec.corpus.keys import Modality
from distilvec.errors import DataError, DistilvecError, Interrupted
from distilvec.interruption import StopSignals
from distilvec.methods.base import wanted_of
from distilvec.methods.table import build_method
from distilvec.preparing import make_student, make_task, prepare_corpus
from distilvec.recipe import CorpusSection, Recipe, TeacherSection
from distilvec.store import FillReport, SignalStore, fill, fill_signals
from distilvec.store.remote import mirrored
from distilvec.students import StudentTap
from distilvec.students.output import StudentInfo
from distilvec.tasks.base import Task
from distilvec.tasks.labels import teacher_order
from distilvec.teachers import Teacher, TeacherInfo, TeacherReport, check_teacher, load_teacher
from distilvec.teachers.signals import NOTHING, Wanted
from distilvec.training import LiveSource, SignalSource, StoreSource, Ticker
from distilvec.training.distiller import check_caching, describe
from distilvec.training.items import check_modality


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

    @property
    def info(self) -> TeacherInfo:
        """What a method may know of it."""
        statistics = self.store.statistics()
        return replace(
            teacher_info(self.teacher, self.wanted.axes),
            mean=torch.from_numpy(np.asarray(statistics.mean)).float(),
            std=torch.from_numpy(np.asarray(statistics.std)).float(),
            weight=self.weight,
        )

    def source(self, corpus: Corpus, rows: np.ndarray, cache: Path, task: Task | None = None) -> SignalSource:
        """Where training gets its signals from."""
        classes = class_order(self.teacher, self.wanted, task)
        if self.live:
            return LiveSource(self.teacher, corpus, cache / "alignments", classes)
        return StoreSource(self.store, corpus, rows, classes)


def class_order(teacher: Teacher, wanted: Wanted, task: Task | None) -> np.ndarray | None:
    """Column of the teacher's logits for each class of the task; None where it has none, or nobody asks.

    Raises:
        DistilvecError: it has other classes, and the method does not sort them.
    """
    labels = getattr(getattr(teacher, "head", None), "labels", None)
    if task is None or task.head.labels is None or labels is None or not wanted.logits:
        return None
    if not wanted.same_classes and set(labels) != set(task.head.labels):
        return None
    return teacher_order(task.head.labels, labels, teacher.card.name)


def teacher_info(teacher: Teacher, axes: int | None = None) -> TeacherInfo:
    """What a method may know of a teacher that has not taught yet, and keeps its token states on so many axes."""
    card = teacher.card
    return TeacherInfo(
        name=card.name,
        width=card.width,
        layers=card.layers,
        hidden=axes or teacher.hidden,
        causal=teacher.causal,
        classes=teacher.classes,
    )


def open_teacher(section: TeacherSection, corpus: CorpusSection | None = None, modality: Modality = "text") -> Teacher:
    """The teacher of a section, for items of a modality."""
    options = section.model_dump(exclude={"storage", "live", "weight", "token_axes"})
    return load_teacher(**options, modality=modality, components=corpus.components if corpus else "largest")


def teach(
    recipe: Recipe,
    corpus: Corpus | None = None,
    *,
    shard: tuple[int, int] | None = None,
    teachers: Sequence[Teacher] | None = None,
    vectors_only: bool = False,
) -> list[Taught]:
    """Fill the stores of all teachers with what they lack; only a share of it with `shard` = (i, n).

    Args:
        teachers: the recipe's, where they are open already.
        vectors_only: teach sentence vectors, whatever the method wants; the recipe's student is not looked at.
    """
    corpus = prepare_corpus(recipe) if corpus is None else corpus
    if teachers is None:
        teachers = [open_teacher(section, recipe.corpus, corpus.modality) for section in recipe.teachers]
    stores = recipe.place / "stores"
    wanted = [NOTHING for _ in teachers] if vectors_only else wanted_signals(recipe, corpus, teachers)
    taught = []
    for section, teacher, each in zip(recipe.teachers, teachers, wanted, strict=True):
        with copied(recipe, section):
            taught.append(teach_one(section, corpus, stores, shard, teacher=teacher, wanted=each))
    if recipe.combine == "separate" or len(taught) == 1 or shard is not None:
        return taught
    ticker = Ticker("combining the teachers", f"{corpus.modality}s")
    teacher, store, filled, seen = combine(taught, recipe.combine, corpus, stores, recipe.teachers[0].storage, ticker)
    return [Taught(teacher, seen, store, filled)]


def copied(recipe: Recipe, section: TeacherSection) -> AbstractContextManager[None]:
    """While the block teaches, the store of a teacher and its copy on `remote`, where there is one, grow together."""
    if recipe.remote is None:
        return nullcontext()
    return mirrored(recipe.place / "stores" / section.name, f"{recipe.remote.rstrip('/')}/{section.name}")


def wanted_signals(recipe: Recipe, corpus: Corpus, teachers: Sequence[Teacher]) -> list[Wanted]:
    """What the recipe's method wants of each teacher besides sentence vectors.

    Raises:
        DistilvecError: the method cannot work with this student or these teachers.
    """
    method = build_method(recipe.method.name, recipe.method.options, recipe.method.matryoshka)
    nothing = [Wanted() for _ in teachers]
    if not method.inside and (recipe.student.fresh is not None or recipe.student.auto is not None):
        return nothing  # it fits by construction, and training its tokenizer takes a while; or it is not chosen yet
    infos = [
        teacher_info(teacher, section.token_axes) for teacher, section in zip(teachers, recipe.teachers, strict=True)
    ]
    if recipe.student.static is not None:
        # A table takes a while to make, and what a method can know of it is known: it has no layers.
        method.needs(StudentInfo("a static student", infos[0].width, layers=None, hidden=infos[0].width), infos)
        if not method.inside:
            return nothing
    # Made here too, so that what does not fit is said before teaching, not after it.
    student = make_student(recipe.student, recipe.teachers, corpus, recipe.training.seed)
    check_modality(student, corpus.modality, "student")
    task = make_task(recipe, corpus, student)
    info = describe(StudentTap(student).info, task)
    needs = method.needs(info, infos)
    check_caching(method, needs, recipe.training.mini_batch_size)
    if not method.inside:
        return nothing
    found = [
        replace(wanted_of(needs, number), axes=section.token_axes) for number, section in enumerate(recipe.teachers)
    ]
    if recipe.combine != "separate" and len(teachers) > 1 and any(wanted.signals for wanted in found):
        raise DistilvecError(
            f"with these options {recipe.method.name} looks at the tokens or class predictions of each teacher, which "
            "cannot be combined",
            where="combine",
            remedy="Use combine: separate, or a method on sentence vectors (`distilvec methods`); distillmoe is one "
            "with moe_weight: 1.",
        )
    for teacher, wanted in zip(teachers, found, strict=True):
        teacher.refuse(wanted)
        class_order(teacher, wanted, task)
        if wanted.logits and recipe.task is not None and recipe.task.encoding == "separate":
            raise DistilvecError(
                f"{method.name} compares class probabilities, and with encoding: separate the teacher reads single "
                "texts, of which none has a class",
                where=teacher.card.name,
                remedy="Use encoding: joint, or fine-tune the teacher with --encoding separate and take a method on "
                "vectors or token states.",
            )
    return found


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

    Raises:
        Interrupted: Ctrl-C or SIGTERM; the batch is finished and all that was encoded is kept.
    """
    teacher = open_teacher(section, modality=corpus.modality) if teacher is None else teacher
    seen, store = open_store(section, corpus, stores, teacher)
    ticker = Ticker(f"teaching with {section.name}", f"{corpus.modality}s")
    stored = NOTHING if section.live else wanted
    with StopSignals() as signals:

        def stop() -> bool:
            return signals.number is not None

        filled = fill_store(store, teacher, corpus, stored, shard=shard, progress=ticker, stop=stop)
    finish(section, store, filled, corpus.modality, signals)
    return Taught(teacher, seen, store, filled, section.live, wanted, section.weight)


def open_store(
    section: TeacherSection, corpus: Corpus, stores: Path, teacher: Teacher
) -> tuple[TeacherReport, SignalStore]:
    """What is seen of a teacher beforehand, and its store, made where there is none and checked for damage."""
    seen = check_teacher(teacher, corpus.teacher_texts(np.asarray(corpus.train_rows)[:256]), corpus.modality)
    store = SignalStore.create(stores / section.name, teacher.card, teacher.card.width, section.storage)
    store.verify(changed=True)
    return seen, store


def fill_store(
    store: SignalStore,
    teacher: Teacher,
    corpus: Corpus,
    wanted: Wanted = NOTHING,
    rows: np.ndarray | None = None,
    **options: Any,
) -> FillReport:
    """Teach what a store lacks of a corpus, or of some rows of it; options are those of `fill`."""
    texts = TeacherTexts(corpus, rows)
    keys = corpus.teacher_keys if rows is None else corpus.teacher_keys[rows]
    if wanted.signals:
        return fill_signals(store, teacher, texts, keys, wanted, **options)
    return fill(store, teacher, texts, keys, **options)


def finish(
    section: TeacherSection, store: SignalStore, filled: FillReport, modality: Modality, signals: StopSignals
) -> None:
    """Say so where teaching was stopped, or where there is nothing to learn from what was taught.

    Raises:
        Interrupted: a signal came.
        DataError: all vectors are the same.
    """
    if signals.number is not None:
        raise Interrupted(
            f"teaching was stopped by {signals.name}; the vectors of {filled.present + filled.taught:,} of "
            f"{filled.distinct:,} {modality}s are kept",
            where=str(store.path),
            remedy="Run the same command again to go on.",
            number=signals.number,
        )
    statistics = store.statistics()
    if statistics.count > 1 and not np.asarray(statistics.std).any():
        raise DataError(
            f"all its {statistics.count:,} vectors are the same, so there is nothing to learn from it",
            where=f"teacher {section.name}",
            remedy="Look at what it is given and what it returns.",
        )


class TeacherTexts(Sequence[str]):
    """What the teacher reads, of all rows or of some, fetched a row at a time from the mapped corpus."""

    def __init__(self, corpus: Corpus, rows: np.ndarray | None = None) -> None:
        self._corpus = corpus
        self._rows: range | np.ndarray = range(len(corpus)) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return self._corpus.teacher_texts(np.asarray(self._rows[row]))
        return self._corpus.teacher_texts([int(self._rows[row])])[0]
