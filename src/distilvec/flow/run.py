"""The main job: corpus -> teachers -> store -> student -> training -> judging -> report."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from distilvec import marker, plain_yaml
from distilvec.errors import DistilvecError
from distilvec.files import whole, write_text
from distilvec.flow.checks import check_job, too_few_held_out
from distilvec.flow.compress import compress_run
from distilvec.flow.job import Job
from distilvec.flow.judge import choice_notes, judge_all, judge_task, overlap_of
from distilvec.flow.pin import pin
from distilvec.flow.ray.ranks import share_of_rank
from distilvec.flow.train import ship_student, train_student
from distilvec.flow.writing import open_shipped, writes
from distilvec.judging.tasks import JudgingTask
from distilvec.locking import alone_in
from distilvec.recipe import Recipe, given
from distilvec.recipe.places import find_files
from distilvec.recipe.same_student import differences
from distilvec.report import Outcome, make_record, write_report
from distilvec.report.card import write_card
from distilvec.report.render.terminal import brief_markdown, brief_text
from distilvec.showing import Shown
from distilvec.students import check_place
from distilvec.tasks.answering import finished_student
from distilvec.training.checkpoint_folders import newest_checkpoint, refuse_other_code, tidy
from distilvec.training.distributed import launched
from distilvec.training.fit import Fitted, data_mark

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.report import Record

logger = logging.getLogger(__name__)


@dataclass(repr=False)
class Run(Shown):
    """What a run leaves: the folder, the student as it ships, and the record behind the report."""

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
    """Distil as the recipe says.

    Args:
        recipe: see `distilvec.recipe`.
        resume: go on where an interrupted training stopped (teaching always does).

    Raises:
        DistilvecError: with what happened, where, and what to do.
    """
    processes = launched()[1]
    if processes > 1:
        raise DistilvecError(
            f"the whole job in {processes} processes would judge and report {processes} times",
            remedy="Train with `torchrun ... -m distilvec train RECIPE`, then `distilvec run RECIPE --resume`.",
        )
    job = opened("run", recipe, resume)
    with alone_in(marker.claim(job.output)):
        begin(job)
        few = too_few_held_out(job)
        if few and given(recipe.corpus, "corpus").holdout:
            logger.warning("%s. Raise corpus.holdout.", few)
        return _distilled(job)


def _distilled(job: Job) -> Run:
    """From the opened job to the written report."""
    student, fitted = train_student(job)
    kept = ship_student(job, student, fitted.method, job.output / "student")
    shipped, untrained = shipped_student(job.recipe), job.student()
    verdict = judge_all(
        job.recipe, job.corpus.modality, job.taught, job.tasks, job.held_out(), (untrained, shipped), fitted
    )
    tasks = job.tasks if verdict.judged is not None else []
    notes = choice_notes(job.recipe, job.output, tasks)
    if kept is not None:
        notes.append(
            f"The expert head was folded into a linear map; mean cosine to the head's vectors, on texts that the map "
            f"was not fitted to: {kept:.4f}."
        )
    supervised, left_out = judge_task(job.recipe, job.taught, job.output / "student")
    outcome = replace(
        _outcome(job, untrained, shipped, fitted, tasks),
        verdict=verdict,
        trained=student,
        supervised=supervised,
        compression=compress_run(job.recipe, job.corpus, job.tasks, shipped),
        notes=[*notes, *left_out],
    )
    record = make_record(outcome)
    write_report(record, job.output)
    write_card(record, job.output / "student")
    marker.finish(job.output)
    return Run(job.output, shipped, record)


def _outcome(
    job: Job,
    untrained: SentenceTransformer,
    shipped: SentenceTransformer,
    fitted: Fitted,
    tasks: Sequence[JudgingTask] = (),
) -> Outcome:
    """What is known without judging."""
    return Outcome(
        recipe=job.recipe,
        corpus=job.corpus,
        taught=job.taught,
        scored=job.scored,
        untrained=untrained,
        shipped=shipped,
        fitted=fitted,
        held_out=job.held_out_rows(),
        folder=job.output,
        overlap=overlap_of(job.recipe, job.corpus, tasks),
    )


def shipped_student(recipe: Recipe) -> SentenceTransformer:
    """The student as the recipe's run or training saved it."""
    folder = Path(recipe.output) / "student"
    if writes(recipe):
        return open_shipped(recipe, folder)
    trusted = given(recipe.student, "student").trust_remote_code
    return finished_student(folder, trust_remote_code=trusted)


def train(recipe: Recipe, *, resume: bool = False) -> Path:
    """Teach what is missing, train, save the student; no judging. Returns the student's folder."""
    share_of_rank()  # and its GPU, before any model is opened
    job = opened("train", recipe, resume)
    # Of a distributed run the first process holds the folder for all.
    with nullcontext() if launched()[0] else alone_in(marker.claim(job.output)):
        begin(job)
        student, fitted = train_student(job)
        if not launched()[0]:
            ship_student(job, student, fitted.method, job.output / "student")
            record = make_record(_outcome(job, job.student(), shipped_student(job.recipe), fitted))
            write_card(record, job.output / "student")
    return job.output / "student"


def opened(command: str, recipe: Recipe, resume: bool) -> Job:
    """The job of a recipe, checked before anything is written."""
    job = Job(recipe, resume=resume)
    job.require(command)
    job = Job(pin(recipe), resume=resume)
    _ = job.named_tasks
    return job


def begin(job: Job) -> None:
    """Take the output folder, and check what can be checked before any teaching."""

    def look() -> dict[str, Any]:
        check_job(job)
        return data_mark(job.corpus, job.code)

    output_folder(job.recipe, job.resume, look)
    with whole(job.output / "rejected.jsonl") as partial:
        shutil.copyfile(job.corpus.folder / "rejected.jsonl", partial)


def output_folder(recipe: Recipe, resume: bool, look: Callable[[], dict[str, Any]] | None = None) -> Path:
    """Make the output folder and save the resolved recipe; refuse another recipe's run, and what is no student.

    Args:
        look: refuses what can be seen to fail, before anything of an earlier run is moved, and says what tells this
            corpus, and a method that is not ours, from another: under an equal recipe, a run of another corpus is
            another run.

    Raises:
        DistilvecError: the folder has files of somebody else's, a run of another recipe or of a method's earlier code
            that is to go on, or the recipe's own file.
    """
    out = marker.claim(recipe.output)
    saved, wanted = out / "recipe.yaml", recipe.to_yaml()
    check_place(out / "student")  # now, not when hours of training are to be saved there
    before = _read(saved)
    other = saved.is_file() and all(each.to_yaml() != wanted for each in before)
    own = recipe.source is not None and saved.exists() and recipe.source.samefile(saved)
    changed: list[str] = []
    if other and resume:
        told = (differences(each, recipe) for each in before)
        changed = min(told, key=len, default=["the saved one cannot be read"])
        other = bool(changed)  # else it goes on, and is judged, asked or logged in another way, or in another place
    if other and own:
        raise DistilvecError(
            "the resolved recipe would replace the file that it was read from",
            where=str(saved),
            remedy="Choose another output, or copy the recipe elsewhere first.",
        )
    if changed:
        raise DistilvecError(
            f"this folder holds a run of another recipe ({'; '.join(changed[:3])})",
            where=str(saved),
            remedy="Resume with the recipe that is saved there, or choose another output.",
        )
    if resume and not saved.is_file():
        logger.warning("%s holds no run to go on with; this one starts from the beginning", out)
    anew = not resume or newest_checkpoint(out / "checkpoints") is None
    if resume and anew and marker.is_finished(out):
        raise DistilvecError(
            "this run is finished, and its checkpoints are gone, so that going on would train it anew",
            where=str(out),
            remedy=f"`distilvec evaluate {out / 'student'}` judges the student that is there; without --resume it is "
            "trained anew.",
        )
    data, known = None if look is None else look(), marker.read(out).get("data")
    if resume and data is not None:
        refuse_other_code(known, data, out)
    if not launched()[0]:
        other = other or (anew and known is not None and data is not None and known != data)
        if not resume and (other or not saved.is_file()):
            # While the recipe before still lies there, so that a kill in between is seen by whoever goes on: to go on
            # with a recipe must not mean to go on from another one's checkpoints.
            tidy(out / "checkpoints", resume=False)
        if other:
            marker.set_aside(out)
        marker.begin(out, data)
        if not own:
            write_text(saved, wanted)
    return out


def _read(saved: Path) -> list[Recipe]:
    """A saved recipe as it reads today: keys that are newer than it have their defaults. [] where it is none.

    As it stands, and as it is when it is loaded: one from Python may name files from the working folder.
    """
    try:
        content = saved.read_text(encoding="utf-8")
        stands, loaded = plain_yaml.read(content), plain_yaml.read(content)
        find_files(loaded, saved.parent)
        return [Recipe.build(stands), Recipe.build(loaded)]
    except (OSError, DistilvecError, yaml.YAMLError, AttributeError, TypeError, ValueError):  # as UnicodeDecodeError
        return []
