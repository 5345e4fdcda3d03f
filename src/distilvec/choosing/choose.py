"""Measure candidates for a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from distilvec.choosing.candidates import attempted, candidates, own_candidate
from distilvec.choosing.choice import Choice
from distilvec.choosing.measuring import MeasuringData, measure, measure_teacher
from distilvec.choosing.sample import COUNTED, counted, sampled
from distilvec.corpus import Corpus
from distilvec.corpus.groups import rows_with_companions
from distilvec.errors import DistilvecError
from distilvec.flow.defaults import training_defaults
from distilvec.flow.judge import knows_tasks
from distilvec.flow.lessons import fill_stores
from distilvec.flow.prepare import judging_tasks, named_tasks, open_corpus, open_teachers, require
from distilvec.flow.start import source_model, teacher_model
from distilvec.flow.teach import Taught
from distilvec.judging import judge, settle_tasks
from distilvec.recipe import Recipe, given
from distilvec.teachers.sections import models_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

SAMPLE = 4000
KEEP = 0.95


def choose(
    recipe: Recipe,
    *,
    keep: float = KEEP,
    sample: int = SAMPLE,
    probe_steps: int = 0,
    layers: Sequence[int] | None = None,
    vocabularies: Sequence[int] | None = None,
) -> Choice:
    """Measure candidate students before any training, and name the smallest that will keep enough.

    The teachers encode a sample of the corpus, once, into the stores that a run of the recipe goes on with. Each
    candidate is made, saved, timed and scored: agreement of the free baseline (the untrained candidate behind a ridge
    map) with the teacher on held-out texts, and what untrained candidate and free baseline keep of the teacher's
    scores on the recipe's tasks (or on those that the corpus allows). What training will add is predicted as
    `distilvec.choosing.prediction` says.

    Args:
        recipe: its own student is one of the candidates, unless it is `auto`.
        keep: share of the teacher's score on the tasks (of retrieval too, where there is some); without tasks, mean
            cosine with the teacher. In (0, 1].
        sample: texts that are encoded and compared, at least 100.
        probe_steps: also train every candidate for so many steps with `cosine`; a better floor, at some cost.
        layers, vocabularies: sizes to try instead of the default ones.

    Raises:
        DistilvecError: no candidate can be made, a value is out of range, the items are no texts.
    """
    if not 0 < keep <= 1:
        raise DistilvecError(f"keep is {keep:g}, a share in (0, 1] is wanted", where="plan", remedy="For example 0.95.")
    recipe, corpus, few, taught = planned(recipe, sample)
    tasks = judging_tasks(recipe, corpus, named_tasks(recipe))
    encoder = taught[0].encoder(corpus)
    with_tasks = bool(tasks) and knows_tasks(taught[0], encoder, tasks)
    judged = None
    if with_tasks:
        settle_tasks(tasks, encoder)  # some take the teacher's own search for the truth
        judged = judge({encoder.name: encoder}, tasks)
    whole = counted(corpus)
    bench = MeasuringData(recipe, whole, few, taught, tasks if with_tasks else [], judged, probe_steps)
    of, source = source_of(recipe)
    own = own_candidate(recipe)
    wanted = [*([own] if own else []), *candidates(of, source, layers, vocabularies)]
    rows, notes = attempted(wanted, "measuring candidates", lambda candidate: measure(candidate, bench))
    rows.sort(key=lambda row: row.parameters or 0)
    if tasks and not with_tasks:
        notes.append("The teacher has no vectors of the tasks' texts and cannot be scored on them; agreement decides.")
    if whole is not corpus:
        notes.append(f"Word pieces were chosen by {COUNTED:,} of the texts; a run chooses by all.")
    names = [task.name for task in bench.tasks]
    read = texts_read(recipe, corpus)
    return Choice(keep, measure_teacher(bench), rows, len(few.train_rows), read, names, probe_steps, notes)


class Planned(NamedTuple):
    """A recipe without open settings, its corpus, a sample of it, and the teachers with vectors of the sample."""

    recipe: Recipe
    corpus: Corpus
    few: Corpus
    taught: list[Taught]


def planned(recipe: Recipe, sample: int) -> Planned:
    """Open what candidates are measured on."""
    if sample < 100:
        raise DistilvecError(f"a sample of {sample} texts says nothing", where="plan", remedy="Take at least 100.")
    require(recipe, "plan")
    corpus = open_corpus(recipe)
    # Candidates are of several kinds, so that an open method stays open.
    recipe = training_defaults(recipe, corpus).model_copy(update={"method": recipe.method})
    if corpus.kind.sizes is not None:
        raise DistilvecError(
            f"candidates are made for texts, and the corpus holds {corpus.kind.noun}",
            where="plan",
            remedy=corpus.kind.sizes,
        )
    few = sampled(corpus, sample)
    return Planned(recipe, corpus, few, fill_stores(recipe, few, open_teachers(recipe, corpus)))


def texts_read(recipe: Recipe, corpus: Corpus) -> int:
    """Texts that the recipe's training reads, repetitions and weights counted."""
    steps, texts = recipe.training.max_steps, corpus.epoch_items(corpus.train_rows)
    each = texts / max(_items(recipe, corpus), 1)
    if not steps:
        return int(given(recipe.training.epochs, "training.epochs") * texts)
    return int(steps * step_texts(recipe) * each)


def planned_steps(recipe: Recipe, corpus: Corpus) -> int:
    return recipe.training.steps(_items(recipe, corpus))


def _items(recipe: Recipe, corpus: Corpus) -> int:
    """Items that are trained on; where the method trains on pairs, a pair is one."""
    rows = corpus.train_rows
    if not recipe.method.is_open and recipe.method.build().trains_on_pairs and corpus.groups is not None:
        rows, _ = rows_with_companions(corpus, rows, None)
    return corpus.epoch_items(rows)


def step_texts(recipe: Recipe) -> int:
    """Texts that a step of the recipe's training reads, or pairs where it trains on these."""
    return recipe.training.batch * recipe.training.gradient_accumulation_steps


def source_of(recipe: Recipe) -> tuple[str | None, SentenceTransformer | None]:
    """Return name and model that students are cut from: of `auto` or `shrink`, else the first teacher that is one."""
    teachers = models_of(recipe.teachers)
    student = recipe.student
    named = None
    if student is not None and (cut := student.auto or student.shrink) is not None:
        named = cut.of
    of = named or next(iter(teachers), None)
    if of is None:
        return None, None
    return of, teacher_model(teachers[of]) if student is None else source_model(of, student, recipe.teachers)
