"""The trainings of a comparison: each is finished by itself, judged, and read back where it is known already."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from distilvec import plain_yaml, sealing
from distilvec.corpus.groups import rows_with_companions
from distilvec.corpus.key_set import distinct_rows
from distilvec.errors import DistilvecError, DivergedError, EnvironmentProblem
from distilvec.files import read_object, write_text
from distilvec.flow.checks import check_job
from distilvec.flow.identity import comparison_identity
from distilvec.flow.job import Job
from distilvec.flow.judge import (
    FEWEST_HELD_OUT,
    TASK,
    answers_alike,
    knows_tasks,
    predictor_of,
    supervises,
    task_score,
)
from distilvec.flow.run import output_folder
from distilvec.flow.start import FOLDER, start_key
from distilvec.flow.train import ship_student, train_student
from distilvec.flow.variants import changed, slug
from distilvec.flow.writing import MEASURED, answer_metrics, held_out_items, open_shipped, writes
from distilvec.judging import (
    FREE,
    TRAINED,
    UNTRAINED,
    CachedEncoder,
    NeighbourTask,
    RidgeMapped,
    Score,
    agreement,
    judge,
)
from distilvec.judging.automatic import halves
from distilvec.recipe import Recipe, given
from distilvec.recipe.same_student import differences
from distilvec.students import load_student
from distilvec.tasks.predictor import Predictor
from distilvec.training.attention import FILE as ATTENTION
from distilvec.training.checkpoint import newest_checkpoint, other_code, read_state
from distilvec.training.fit import companions_of

if TYPE_CHECKING:
    from distilvec.training import Fitted

logger = logging.getLogger(__name__)
FACTORS = (1 / 3, 1.0, 3.0)
#: Parts of a job that all variants have in common.
_SHARED = ("corpus", "tasks", "teachers")
Scores = dict[str, Score]


class Bench:
    """What all runs share.

    Args:
        job: of the recipe itself, with corpus, tasks and opened teachers.
        variants: name -> recipe.
        tune: rates will be chosen; tasks made of held-out items are then made of the half that none is chosen on.

    Attributes:
        jobs: variant -> its job, with the variant's stores.
        identity: what all results hold for.
        baseline_file: scores of teacher, untrained student and free baseline for that; others in the same folder
            have files of their own.
    """

    def __init__(self, job: Job, variants: Mapping[str, Recipe], *, tune: bool = False) -> None:
        _ = job.teachers
        self.job, self.folder = job, job.output
        self.tuned_on = job.corpus
        if tune and made_of_held_out(job):
            self.tuned_on, judged = halves(job.corpus)
            job.tasks = job.tasks_on(judged)
            if not job.tasks:
                raise DistilvecError(
                    f"one half of the {len(job.corpus.holdout_rows)} held-out items chooses rates, and the other is "
                    "too small to judge on",
                    where="corpus.holdout",
                    remedy="Hold out a larger share, name tasks, or leave --tune out.",
                )
        self.identity = comparison_identity(job)
        self.baseline_file = self.folder / "baselines" / f"{self.identity}.json"
        self.tried: dict[str, dict[float, float | None]] = {}
        self.jobs = {name: job.changed(variant, *_SHARED) for name, variant in variants.items()}

    def check(self) -> None:
        """Refuse what cannot be done before any method is trained."""
        for each in self.jobs.values():
            check_job(each)
            _ = each.code  # as it is now, for all seeds
            each.let_go()

    def settle(self) -> None:
        """Let the teacher say what is right in the tasks that ask it; what it said first holds for all that follow.

        On another device it rounds otherwise, and scores that are kept could not be compared with new ones.
        """
        file = self.folder / "baselines" / f"{self.identity}-found.json"
        asked = [task for task in self.job.tasks if isinstance(task, NeighbourTask)]
        known = read_object(file)
        for task in asked:
            if task.name in known:
                task.remember(known[task.name])
        next(iter(self.jobs.values())).settle_tasks()
        found = {task.name: task.found for task in asked if task.found is not None}
        if found and found != known:
            write_text(file, json.dumps(found))

    def forget(self) -> None:
        """Remove what a finished comparison needs no more: the untrained students of its checks.

        Checkpoints in the same folder are those of a run, which may go on.
        """
        place = self.folder / FOLDER
        for each in self.jobs.values():
            section, recipe = each.student_section, each.recipe
            sealing.remove(place / start_key(section, recipe.teachers, each.corpus, recipe.training.seed))
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()

    def one(self, name: str, recipe: Recipe, place: Path) -> Job:
        """The job of one training, in a folder of its own; it goes on where it was."""
        recipe = recipe.model_copy(update={"output": str(place)})
        job = self.jobs[name].changed(recipe, *_SHARED, "taught", "code")
        job.resume = True
        return job

    def holds_for(self, job: Job) -> list[str]:
        """What results of a training hold for: its recipe, all that is shared, and the code of a method not ours."""
        return [job.recipe.to_yaml(), self.identity, *([] if job.code is None else [job.code])]

    def known(self, file: Path, job: Job) -> dict[str, Any]:
        """What a finished training left in `file`; empty where it is not finished, or its method's code is another now.

        Keys that do not decide the student (where things lie, how a teacher is asked) may have changed.

        Raises:
            DistilvecError: it was finished for another recipe, or for other data or tasks.
        """
        found = read_object(file)
        if not found:
            return {}
        recipe, *holds_for = found.get("identity") or [""]
        wanted = self.holds_for(job)
        if holds_for[:1] != wanted[1:2] or (recipe != wanted[0] and _differs(recipe, job.recipe)):
            raise self._refusal(job)
        return found if holds_for == wanted[1:] else {}

    def _refusal(self, job: Job) -> DistilvecError:
        return DistilvecError(
            "this comparison was begun with other data, another student, other steps or other tasks",
            where=str(self.folder),
            remedy="Choose another output (-o). Evaluation sets belong to a comparison: name all of them before "
            f"it begins; `distilvec evaluate {job.output / 'student'}` judges what is there.",
        )

    def run(self, name: str, recipe: Recipe) -> Scores:
        """The scores of one method and seed; read back where the run is finished."""
        job = self.one(name, recipe, self.folder / "runs" / slug(name) / f"seed-{recipe.training.seed}")
        file = job.output / "scores.json"
        if known := self.known(file, job):
            return {task: Score.from_dict(score) for task, score in known["scores"].items()}
        try:
            output_folder(job.recipe, resume=True)
        except EnvironmentProblem:  # the folder cannot be written
            raise
        except DistilvecError as error:
            raise self._refusal(job) from error
        _begin_anew_with_other_code(job)
        student, fitted = train_student(job)
        ship_student(job, student, fitted.method, job.output / "student")
        self._judge_baselines(job, fitted)
        judged = self._judged({TRAINED: self._opened(job)})[TRAINED]
        judged |= self._task_score(job) if supervises(job.recipe) else {}
        scores = {task: score.to_dict(outputs=True) for task, score in judged.items()}
        write_text(file, json.dumps({"identity": self.holds_for(job), "scores": scores}))
        _forget(job.output)
        shown = ", ".join(f"{task} {100 * score.value:.1f}" for task, score in judged.items())
        logger.info("%s, seed %d: %s", name, recipe.training.seed, shown)
        return judged

    def _task_score(self, job: Job) -> Scores:
        trusted = job.student_section.trust_remote_code
        return task_score(job.recipe, Predictor.load(job.output / "student", trust_remote_code=trusted))

    def baselines(self) -> dict[str, list[Scores]]:
        """Teacher, untrained student and free baseline, one run each."""
        known = read_object(self.baseline_file)
        names = set(known.get("tasks", ()))
        return {
            model: [{task: Score.from_dict(score) for task, score in scores.items()}]
            for model, scores in known.get("scores", {}).items()
            if set(scores) == names  # a model without a head has no score on a supervised task
        }

    def _judged(self, models: Mapping[str, Any]) -> dict[str, Scores]:
        """Scores on the tasks that look at vectors; none where the recipe's task is all there is."""
        tasks = self.job.tasks
        return judge(models, tasks).scores if tasks else {model: {} for model in models}

    def _opened(self, job: Job) -> Any:
        """A finished student."""
        folder = job.output / "student"
        if writes(job.recipe):
            return open_shipped(job.recipe, folder)
        return load_student(str(folder), trust_remote_code=job.student_section.trust_remote_code)

    def _judge_baselines(self, job: Job, fitted: Fitted) -> None:
        """Judge them once, with the first run's student before training."""
        file = self.baseline_file
        names = [task.name for task in job.tasks] + ([TASK] if supervises(job.recipe) else [])
        if read_object(file).get("tasks") == names:
            return
        untrained = CachedEncoder(job.student())
        models: dict[str, Any] = {}
        teacher = None if job.first is None else job.first.teacher
        if job.first is not None and teacher is not None:
            encoder = job.first.encoder(job.corpus.modality)
            if knows_tasks(job.first, encoder, self.job.tasks):
                models[teacher.card.name] = encoder
        models[UNTRAINED] = untrained
        if fitted.free_map and not writes(job.recipe):
            models[FREE] = RidgeMapped(untrained, fitted.free_map[0])
        judged = self._judged(models)
        head = getattr(teacher, "head", None)
        if (
            teacher is not None
            and teacher.card.name in judged
            and head is not None
            and supervises(job.recipe)
            and fitted.task is not None
            and fitted.task.head is not None
            and answers_alike(head, fitted.task.head, teacher.card.name)
        ):
            judged[teacher.card.name] |= task_score(job.recipe, predictor_of(teacher, head))
        scores = {
            model: {task: score.to_dict(outputs=True) for task, score in by_task.items()}
            for model, by_task in judged.items()
        }
        write_text(file, json.dumps({"tasks": names, "scores": scores}))

    def tuned_rate(self, name: str) -> float:
        """The learning rate with the best held-out agreement, or likelihood of answers, after at most one epoch.

        One at which training fails (its loss is not finite any more) is the worst.

        Raises:
            DivergedError: training fails at every rate.
        """
        quality = self._quality(self.jobs[name])
        recipe, qualities = self.jobs[name].recipe, dict[float, float | None]()
        failure: DivergedError | None = None
        job = self.jobs[name]
        rows = rows_with_companions(job.corpus, job.corpus.train_rows, companions_of(job.needs, job.task, job.corpus))
        items = len(rows[0])
        for factor in FACTORS:
            rate = float(f"{given(recipe.optimizer.lr, 'optimizer.lr') * factor:.3g}")
            candidate = changed(
                recipe, lr=rate, epochs=min(1.0, given(recipe.training.epochs, "training.epochs")), items=items
            )
            job = self.one(name, candidate, self.folder / "tuning" / slug(name) / f"lr-{rate:g}")
            identity = self.holds_for(job)
            known = self.known(job.output / "agreement.json", job)
            if not known:
                output_folder(job.recipe, resume=True)
                _begin_anew_with_other_code(job)
                try:
                    student, _ = train_student(job)
                    known = {"identity": identity, "value": quality(student)}
                except DivergedError as error:
                    logger.warning("%s at a learning rate of %g: %s", name, rate, error)
                    known, failure = {"identity": identity, "value": None}, error
                write_text(job.output / "agreement.json", json.dumps(known))
                _forget(job.output)
            qualities[rate] = known["value"]
        self.tried[name] = qualities
        whole = {rate: value for rate, value in qualities.items() if value is not None}
        if not whole:
            raise failure or DivergedError("training fails at every learning rate", where=name)
        return max(whole, key=lambda rate: whole[rate])

    def _quality(self, job: Job) -> Callable[[Any], float]:
        """What rates are chosen by, more is better: on held-out items, never on what is judged."""
        held = len(distinct_rows(self.tuned_on.keys, self.tuned_on.holdout_rows))
        if held < FEWEST_HELD_OUT:
            beside = "" if self.tuned_on is job.corpus else " beside those that the methods are judged on"
            raise DistilvecError(
                f"tuning needs at least {FEWEST_HELD_OUT} different held-out texts{beside}, there are {held}",
                where="corpus.holdout",
                remedy="Hold out a larger share, or name tasks." if beside else "Hold out a larger share.",
            )
        if writes(job.recipe):
            items = held_out_items(self.tuned_on, MEASURED)
            return lambda student: answer_metrics(student, items)["likelihood"]
        texts, vectors = job.held_out(corpus=self.tuned_on)
        if vectors is None:
            raise DistilvecError("rates are tuned by agreement with a teacher, and there is none", where="--tune")
        return lambda student: float(agreement(vectors, CachedEncoder(student)(texts))["similarity_spearman"])


def made_of_held_out(job: Job) -> bool:
    """Whether the methods are judged on tasks that are made of the corpus' held-out items."""
    task = job.recipe.task
    tested = task is not None and task.writes and task.test is not None
    return not job.named_tasks and not supervises(job.recipe) and not tested


def _differs(saved: str, recipe: Recipe) -> bool:
    """Whether a recipe that was written down would have made another student."""
    try:
        return bool(differences(Recipe.build(plain_yaml.read(saved)), recipe))
    except (DistilvecError, yaml.YAMLError):
        return True


def _begin_anew_with_other_code(job: Job) -> None:
    """Where the checkpoints are of what a method that is not ours was before, they are not gone on from."""
    newest = newest_checkpoint(job.output / "checkpoints")
    job.resume = newest is None or not other_code(read_state(newest).data, {"method": job.code})


def _forget(place: Path) -> None:
    """Remove what a finished training needs no more."""
    for name in ("checkpoints", FOLDER):
        for folder in (place / name).glob("*"):
            if folder.is_dir():
                sealing.remove(folder)
        (place / name / ATTENTION).unlink(missing_ok=True)
        if (place / name).is_dir() and not any((place / name).iterdir()):
            (place / name).rmdir()
