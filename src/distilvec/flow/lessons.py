"""The stores of a recipe's teachers and scorers, filled with what they lack."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from distilvec.allocator import give_back
from distilvec.corpus import Corpus
from distilvec.corpus.keys import distinct_rows
from distilvec.evenly import sampled_rows
from distilvec.flow.teach import Taught, teach_one
from distilvec.judging.tasks import JudgingTask
from distilvec.progress import Ticker
from distilvec.recipe import Recipe, ScorerSection, TeacherSection
from distilvec.store import SignalStore
from distilvec.teachers.signals import NOTHING, Wanted

if TYPE_CHECKING:
    from distilvec.flow.prepare import Prepared, Teachers
    from distilvec.flow.score import QueryDocuments, ScoredCorpus

logger = logging.getLogger(__name__)
#: How a store keeps vectors, from coarse to exact.
_FINER = ("int8", "float16", "float32")
#: Rounding of the stored vectors, as a share of their spread, that is worth a warning; of usual teachers in int8 it is
#: 0.01 to 0.04.
_ROUNDED = 0.05
#: Held-out items that agreement is measured on, at most.
HELD_OUT = 1000


@dataclass(frozen=True)
class Lessons:
    """The teachers' and scorers' answers that training learns from.

    Attributes:
        taught: the teachers with filled stores, as the student meets them: combined ones are one.
        scored: the scorers with filled stores.
        scores: float32 [rows of the corpus], what the scorers say of each document and its query; None without them.
    """

    taught: tuple[Taught, ...] = ()
    scored: tuple[ScoredCorpus, ...] = ()
    scores: np.ndarray | None = None

    @property
    def first(self) -> Taught | None:
        """The teacher that agreement is measured with."""
        return self.taught[0] if self.taught else None


def teach(prepared: Prepared) -> Lessons:
    """Fill the stores of all teachers and scorers with what they lack."""
    recipe, corpus = prepared.recipe, prepared.corpus
    taught = fill_stores(recipe, corpus, prepared.teachers, prepared.wanted)
    if not prepared.needs.scores:
        return Lessons(tuple(taught))
    from distilvec.flow.score import QueryDocuments, scores_of

    pairs = QueryDocuments.of(corpus)
    scored = fill_scores(recipe, pairs)
    return Lessons(tuple(taught), tuple(scored), scores_of(scored, pairs))


def fill_stores(
    recipe: Recipe,
    corpus: Corpus,
    teachers: Teachers,
    wanted: Sequence[Wanted] | None = None,
    shard: tuple[int, int] | None = None,
) -> list[Taught]:
    """Fill the stores of all teachers; only a share of them with `shard` = (i, n).

    Args:
        wanted: signals of each teacher besides sentence vectors; None = none.

    Returns:
        The teachers as the student meets them; of a share, each by itself.
    """
    give_back()  # what preparing the corpus and the student has left
    stores = recipe.place / "stores"
    wanted = [NOTHING for _ in teachers.each] if wanted is None else wanted
    taught = []
    for section, teacher, each in zip(recipe.teachers, teachers.each, wanted, strict=True):
        with copied(recipe, section):
            taught.append(teach_one(section, corpus, stores, shard, teacher=teacher, wanted=each))
        if shard is None:
            _warn_of_rounding(section.name, taught[-1].store)
    how = recipe.combine
    if how == "separate" or len(taught) <= 1 or shard is not None:
        return taught
    from distilvec.flow.combine import combine

    ticker = Ticker("combining the teachers", corpus.kind.noun)
    teacher, store, filled, seen = combine(taught, how, corpus, stores, combined_storage(recipe), ticker)
    return [Taught(teacher, seen, store, filled)]


def _warn_of_rounding(name: str, store: SignalStore) -> None:
    """Warn of a teacher with one dimension far off, say: coarse storage rounds all others by it."""
    error = store.statistics().centred_error if len(store) else 0.0
    if error > _ROUNDED:
        logger.warning(
            "teacher %s: storage: %s rounds away %.0f %% of what tells its vectors apart. Choose a finer storage, and "
            "give the teacher another name, so that it gets a store of its own",
            name,
            store.dtype,
            100 * error,
        )


def combined_storage(recipe: Recipe) -> str:
    """Return how the store of combined teachers keeps vectors: as finely as any of them asks for."""
    return max((section.storage for section in recipe.teachers), key=_FINER.index)


def fill_scores(recipe: Recipe, pairs: QueryDocuments, shard: tuple[int, int] | None = None) -> list[ScoredCorpus]:
    """Fill the stores of all scorers, opened now that teachers are done; only a share with `shard` = (i, n)."""
    from distilvec.flow.score import check_gaps, score_one
    from distilvec.scorers.load import open_scorer

    scored = []
    for section in recipe.scorers:
        with copied(recipe, section):
            scored.append(score_one(section, open_scorer(section), pairs, recipe.place / "stores", shard))
            if shard is None:
                check_gaps(section, scored[-1])
    return scored


def copied(recipe: Recipe, section: TeacherSection | ScorerSection) -> AbstractContextManager[None]:
    """While the block fills the store of a teacher or scorer, its copy on `remote`, if there is one, grows too."""
    if recipe.remote is None:
        return nullcontext()
    from distilvec.store.remote import mirrored

    return mirrored(recipe.place / "stores" / section.name, f"{recipe.remote.rstrip('/')}/{section.name}")


def ask_teacher(tasks: Sequence[JudgingTask], lessons: Lessons, corpus: Corpus) -> None:
    """Let the first teacher, or all combined, say what is right in tasks whose truth is the teacher's own search."""
    if lessons.first is not None and not lessons.first.teacher.can.made:
        from distilvec.judging import settle_tasks

        settle_tasks(tasks, lessons.first.encoder(corpus))


def held_out_rows(corpus: Corpus, first: Taught | None, limit: int = HELD_OUT) -> np.ndarray:
    """A sample of the held-out rows, without those that the first teacher has no vector for.

    Each item is there once: any model finds its copies, which would pass for neighbours.
    """
    rows = np.asarray(corpus.holdout_rows)
    if first is not None:
        rows = rows[first.store.rows(corpus.teacher_keys[rows]) >= 0]
    return sampled_rows(distinct_rows(corpus.keys, rows), limit)


def held_out(corpus: Corpus, first: Taught | None, limit: int = HELD_OUT) -> tuple[list[str], np.ndarray | None]:
    """Held-out texts, and the first teacher's vectors [n, D] for them; None without a teacher."""
    rows = held_out_rows(corpus, first, limit)
    vectors = None if first is None else first.store.read(first.store.rows(corpus.teacher_keys[rows]))
    return corpus.texts(rows), vectors
