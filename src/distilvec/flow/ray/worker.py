"""A worker: it opens the teacher once, then teaches chunk after chunk into the store."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.corpus import Corpus
from distilvec.corpus.lazy import LazyTexts
from distilvec.errors import DataError, DistilvecError
from distilvec.flow.ray.ledger import refuse_deadly
from distilvec.flow.teach import fill_store, open_store
from distilvec.recipe import Recipe
from distilvec.store import SignalStore
from distilvec.store.axes import settle_axes
from distilvec.store.signals import open_signals
from distilvec.teachers.precision import settle_precision
from distilvec.teachers.signals import NOTHING, Wanted
from distilvec.teachers.table import open_teacher


@dataclass(frozen=True)
class StorePlace:
    """The store of one teacher, and what goes into it besides sentence vectors."""

    path: Path
    wanted: Wanted


@dataclass(frozen=True)
class Work:
    """The work as workers are given it; all paths are absolute and mean the same on every machine.

    Attributes:
        corpus, fingerprint: the folder of the prepared corpus, and which one it is.
        number: of the teacher in the recipe.
    """

    recipe: Recipe
    corpus: Path
    fingerprint: str
    number: int
    place: StorePlace


def prepare(recipe: Recipe, corpus_folder: Path, fingerprint: str) -> list[StorePlace]:
    """Look at all teachers and make their stores; needs what a worker needs, so a worker does it."""
    from distilvec.flow.prepare import open_teachers
    from distilvec.flow.settle import wants_of

    corpus = open_corpus(corpus_folder, fingerprint)
    teachers, places = open_teachers(recipe, corpus), []
    wants = wants_of(recipe, corpus, teachers)
    for section, teacher, wanted in zip(recipe.teachers, teachers.each, wants, strict=True):
        _, store = open_store(section, corpus, recipe.place / "stores", teacher)
        stored = NOTHING if section.live else wanted
        if stored.signals:
            open_signals(store, teacher, stored)
            every = LazyTexts(corpus.teacher_texts, range(len(corpus)))
            settle_axes(store.path, teacher, every, stored)  # to all texts, not to one worker's
        places.append(StorePlace(store.path, stored))
    return places


def open_corpus(folder: Path, fingerprint: str) -> Corpus:
    """The prepared corpus, as this machine sees it."""
    try:
        return Corpus.open(folder, fingerprint)
    except DataError as error:
        raise DataError(
            f"a worker does not find the prepared corpus ({error.what})",
            where=str(folder),
            remedy="The recipe's output (or cache) has to lie on a file system that all machines share.",
        ) from error


class Worker:
    """Called with a table of one chunk; errors that a person can mend come back as a column.

    Args:
        job: which teacher, corpus and store.
        ledger: handle of the `Ledger`.
    """

    def __init__(self, job: Work, ledger: Any) -> None:
        self.job, self.ledger = job, ledger
        self._opened: tuple[Any, Corpus, SignalStore] | None = None

    def __call__(self, table: dict[str, Any]) -> dict[str, Any]:
        chunk = int(table["chunk"][0])
        rows = np.frombuffer(table["rows"][0], "<i8")
        absent, error = 0, None
        try:
            absent = self._teach(chunk, rows)
        except DistilvecError as problem:
            error = problem
        return {"chunk": [chunk], "absent": [absent], "error": [None if error is None else pickle.dumps(error)]}

    def _teach(self, chunk: int, rows: np.ndarray) -> int:
        """Teach a chunk; how many of it the teacher has nothing for."""
        import ray

        refuse_deadly(ray.get(self.ledger.begin.remote(chunk)), (int(rows.min()), int(rows.max())))
        if self._opened is None:
            self._opened = self._open()
        teacher, corpus, store = self._opened
        covered, stopped = 0, ray.get(self.ledger.advance.remote(chunk, 0))
        if stopped:
            return 0

        def progress(done: int, total: int) -> None:
            nonlocal covered
            covered = done

        def stop() -> bool:
            return bool(ray.get(self.ledger.advance.remote(chunk, covered)))

        filled = fill_store(
            store, teacher, corpus, self.job.place.wanted, rows, progress=progress, stop=stop, index=False
        )
        ray.get(self.ledger.advance.remote(chunk, filled.present + filled.taught + filled.absent))
        return filled.absent

    def _open(self) -> tuple[Any, Corpus, SignalStore]:
        from distilvec.flow.prepare import reading_of

        corpus = open_corpus(self.job.corpus, self.job.fingerprint)
        recipe = self.job.recipe
        teacher = open_teacher(recipe.teachers[self.job.number], reading_of(recipe, corpus))
        store = SignalStore.open(self.job.place.path)
        settle_precision(teacher, (), str(store.card.get("dtype")))  # as all workers
        return teacher, corpus, store
