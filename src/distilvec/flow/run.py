"""The main job: corpus -> teachers -> store -> student -> training -> judging -> report."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distilvec import folders
from distilvec.allocator import return_freed_memory
from distilvec.errors import DistilvecError
from distilvec.files import alone_in
from distilvec.flow.checks import warn_of_few
from distilvec.flow.defaults import log_chosen, with_defaults
from distilvec.flow.fit import Trained, fit
from distilvec.flow.judge import choice_notes, judge_task, overlap_of
from distilvec.flow.lessons import Lessons, held_out, held_out_rows, teach
from distilvec.flow.output import begin, look_at_output
from distilvec.flow.pin import pin
from distilvec.flow.prepare import Prepared, make_start, named_tasks, open_corpus, open_teachers, require
from distilvec.flow.settle import settle
from distilvec.judging import Verdict
from distilvec.judging.tasks import JudgingTask
from distilvec.progress import stages
from distilvec.recipe import Recipe
from distilvec.report import Outcome, make_record, write_report
from distilvec.report.card import write_card
from distilvec.report.render.terminal import brief_markdown, brief_text
from distilvec.showing import Shown
from distilvec.training.distributed import launched

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.report import Record


@dataclass(repr=False)
class Run(Shown):
    """The results of a run: the folder, the student as it ships, and the record behind the report.

    A student that ranks is a `CrossEncoder`.
    """

    folder: Path
    student: SentenceTransformer
    record: Record

    @property
    def report(self) -> str:
        """The table a person reads."""
        return brief_markdown(self.record)

    def text(self) -> str:
        """The table for a terminal, and the alarms."""
        return brief_text(self.record)

    def _named(self) -> str:
        return repr(str(self.folder))

    def _repr_markdown_(self) -> str:
        return brief_markdown(self.record, alarms=True)


def run(recipe: Recipe, *, resume: bool = False) -> Run:
    """Distil as the recipe says: the main job, from top to bottom.

    With `resume` an interrupted training continues where it stopped; teaching always does.
    """
    _refuse_processes()
    require(recipe, "run")
    recipe, tasks = pin(recipe), named_tasks(recipe)
    with alone_in(folders.claim(recipe.output)), stages(5) as stage:
        stage("preparing")
        corpus = open_corpus(recipe)
        recipe = log_chosen(with_defaults(recipe, corpus))
        place = look_at_output(recipe, resume)
        teachers = open_teachers(recipe, corpus)
        start = make_start(recipe, corpus, teachers)
        prepared = settle(recipe, corpus, teachers, start, tasks)
        begin(place, prepared, resume)
        warn_of_few(prepared)
        stage("teaching")
        lessons = teach(prepared)
        stage("training")
        trained = fit(prepared, lessons, resume=resume)
        shipped = ship(prepared, lessons, trained)
        stage("judging")
        verdict = judge(prepared, lessons, trained, shipped)
        stage("report")
        return report(prepared, lessons, trained, shipped, verdict)


def train(recipe: Recipe, *, resume: bool = False) -> Path:
    """Teach what is missing, train, save the student; no judging. Returns the student's folder."""
    from distilvec.flow.ray.ranks import share_of_rank

    share_of_rank()  # and its GPU, before any model is opened
    if recipe.training.sharded:
        return_freed_memory()  # what was freed before this is used again, and stays
    require(recipe, "train")
    recipe, tasks = pin(recipe), named_tasks(recipe)
    # Of a distributed run the first process holds the folder for all.
    with nullcontext() if launched()[0] else alone_in(folders.claim(recipe.output)), stages(3) as stage:
        stage("preparing")
        corpus = open_corpus(recipe)
        recipe = log_chosen(with_defaults(recipe, corpus))
        place = look_at_output(recipe, resume)
        teachers = open_teachers(recipe, corpus)
        start = make_start(recipe, corpus, teachers)
        prepared = settle(recipe, corpus, teachers, start, tasks)
        begin(place, prepared, resume)
        stage("teaching")
        lessons = teach(prepared)
        stage("training")
        trained = fit(prepared, lessons, resume=resume)
        if not launched()[0]:
            shipped = ship(prepared, lessons, trained)
            write_card(make_record(_outcome(prepared, lessons, trained, shipped)), shipped.folder)
    return prepared.output / "student"


@dataclass(frozen=True)
class Shipped:
    """The student as people load it.

    Attributes:
        student, untrained: as it ships, and before training.
        kept: if an expert head was folded, the mean cosine of the linear map's vectors to the head's.
    """

    folder: Path
    student: SentenceTransformer
    untrained: SentenceTransformer
    kept: float | None


def ship(prepared: Prepared, lessons: Lessons, trained: Trained) -> Shipped:
    """Save the student into the run's folder, and open it as it was saved."""
    folder = prepared.output / "student"
    kept: float | None = prepared.corpus.kind.ship(prepared, lessons, trained, folder)
    return Shipped(folder, shipped_student(prepared.recipe), prepared.start.open(), kept)


def judge(prepared: Prepared, lessons: Lessons, trained: Trained, shipped: Shipped) -> Verdict:
    """Judge teacher, untrained student, free baseline and student by the same code."""
    verdict: Verdict = prepared.corpus.kind.judge(
        prepared.recipe,
        prepared.corpus,
        lessons,
        prepared.tasks,
        held_out(prepared.corpus, lessons.first),
        (shipped.untrained, shipped.student),
        trained.fitted,
    )
    return verdict


def report(prepared: Prepared, lessons: Lessons, trained: Trained, shipped: Shipped, verdict: Verdict) -> Run:
    """Write report and model card, and mark the run as finished."""
    recipe, output = prepared.recipe, prepared.output
    tasks = prepared.tasks if verdict.judged is not None else ()
    notes = choice_notes(recipe, output, tasks) + [f"Chosen {line}." for line in recipe.chosen]
    if shipped.kept is not None:
        notes.append(
            f"The expert head was folded into a linear map; mean cosine to the head's vectors, on texts that the map "
            f"was not fitted to: {shipped.kept:.4f}."
        )
    compression = None
    if recipe.judging.compression:
        from distilvec.flow.compress import compress_run

        compression = compress_run(prepared, shipped.student)
    supervised, left_out = judge_task(recipe, lessons.taught, shipped.folder)
    outcome = replace(
        _outcome(prepared, lessons, trained, shipped, tasks),
        verdict=verdict,
        trained=trained.student,
        supervised=supervised,
        compression=compression,
        notes=[*notes, *left_out],
    )
    record = make_record(outcome)
    write_report(record, output)
    write_card(record, shipped.folder)
    folders.update(output, finished=True)
    return Run(output, shipped.student, record)


def _outcome(
    prepared: Prepared, lessons: Lessons, trained: Trained, shipped: Shipped, tasks: Sequence[JudgingTask] = ()
) -> Outcome:
    """Return what is known without judging."""
    return Outcome(
        recipe=prepared.recipe,
        corpus=prepared.corpus,
        taught=lessons.taught,
        scored=lessons.scored,
        untrained=shipped.untrained,
        shipped=shipped.student,
        fitted=trained.fitted,
        held_out=held_out_rows(prepared.corpus, lessons.first),
        folder=prepared.output,
        overlap=overlap_of(prepared.recipe, prepared.corpus, tasks),
    )


def shipped_student(recipe: Recipe) -> SentenceTransformer:
    """Open the student as the recipe's run or training saved it."""
    student: SentenceTransformer = recipe.kind.open_shipped(recipe, Path(recipe.output) / "student")
    return student


def _refuse_processes() -> None:
    processes = launched()[1]
    if processes > 1:
        raise DistilvecError(
            f"the whole job in {processes} processes would judge and report {processes} times",
            remedy="Train with `torchrun ... -m distilvec train RECIPE`, then `distilvec run RECIPE --resume`.",
        )
