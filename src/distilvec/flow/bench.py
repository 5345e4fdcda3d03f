"""The trainings of a comparison: each is finished by itself, judged, and read back where it is known already."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from distilvec import folders, plain_yaml
from distilvec.corpus import Corpus
from distilvec.corpus.groups import rows_with_companions
from distilvec.corpus.keys import distinct_rows
from distilvec.errors import DistilvecError, DivergedError, EnvironmentProblem
from distilvec.evenly import sampled_rows
from distilvec.files import read_record, write_record
from distilvec.flow.fit import Trained, fit
from distilvec.flow.judge import (
    FEWEST_HELD_OUT,
    TASK,
    answers_alike,
    compared_models,
    predictor_of,
    supervises,
    task_score,
)
from distilvec.flow.lessons import Lessons, ask_teacher, held_out, teach
from distilvec.flow.output import output_folder
from distilvec.flow.pin import SAVED
from distilvec.flow.prepare import Prepared, Teachers, judging_tasks, make_start
from distilvec.flow.settle import settle
from distilvec.flow.start import FOLDER, Start, start_key
from distilvec.flow.variants import changed, slug
from distilvec.judging import TRAINED, CachedEncoder, NeighbourTask, Score, agreement, judge
from distilvec.judging.automatic import halves
from distilvec.judging.identity import content_digest
from distilvec.judging.tasks import JudgingTask
from distilvec.recipe import Recipe, given
from distilvec.recipe.same_student import differences
from distilvec.scorers.load import open_scorer
from distilvec.tasks.predictor import Predictor
from distilvec.teachers.cards import hash_files
from distilvec.training.checkpoint import newest_checkpoint, other_code, read_state
from distilvec.training.checks import companions_of

logger = logging.getLogger(__name__)
FACTORS = (1 / 3, 1.0, 3.0)
#: Held-out texts that look for their neighbours, at most.
MOST_NEIGHBOURS = 1000
Scores = dict[str, Score]


class Bench:
    """The parts that all runs of a comparison share.

    Args:
        variants: name -> recipe.
        named: the tasks that the recipe names.
        tune: rates will be chosen; tasks made of held-out items are then made of the half that none is chosen on.

    Attributes:
        tasks: what all students are judged by.
        prepared: variant -> what it is about to learn; `lessons` once it is taught.
        identity: what all results hold for.
        baseline_file: scores of teacher, untrained student and free baseline for that; others in the same folder
            have files of their own.
    """

    def __init__(
        self,
        recipe: Recipe,
        variants: Mapping[str, Recipe],
        corpus: Corpus,
        teachers: Teachers,
        named: Sequence[JudgingTask],
        *,
        tune: bool = False,
    ) -> None:
        self.recipe, self.variants, self.corpus, self.teachers = recipe, variants, corpus, teachers
        self.folder, self.tuned_on = Path(recipe.output), corpus
        judged = corpus
        if tune and made_of_held_out(recipe, named):
            self.tuned_on, judged = halves(corpus)
        self.tasks = compared_tasks(recipe, judged, named)
        if not self.tasks and not supervises(recipe):
            halved = judged is not corpus
            half = f": one half of the {len(corpus.holdout_rows)} held-out items chooses rates" if halved else ""
            raise DistilvecError(
                f"there is nothing to judge the methods on{half}",
                where="corpus.holdout" if halved else "judging.tasks",
                remedy="Name tasks, or hold out more texts (corpus.holdout), of which --tune takes half.",
            )
        self.identity = comparison_identity(recipe, corpus, teachers, self.tasks)
        self.baseline_file = self.folder / "baselines" / f"{self.identity}.json"
        self.tried: dict[str, dict[float, float | None]] = {}
        self.prepared: dict[str, Prepared] = {}
        self.lessons: dict[str, Lessons] = {}

    def check(self) -> None:
        """Refuse what cannot be done before any method is trained."""
        for name, variant in self.variants.items():
            start = make_start(variant, self.corpus, self.teachers)
            self.prepared[name] = settle(variant, self.corpus, self.teachers, start, self.tasks)

    def teach(self) -> None:
        """Fill the stores of every variant, and let the teacher say what is right in the tasks that ask it.

        What it said first holds for all that follow: on another device it rounds otherwise, and scores that are kept
        could not be compared with new ones.
        """
        self.lessons = {name: teach(prepared) for name, prepared in self.prepared.items()}
        file = self.folder / "baselines" / f"{self.identity}-found.json"
        asked = [task for task in self.tasks if isinstance(task, NeighbourTask)]
        known = read_record(file)
        for task in asked:
            if task.name in known:
                task.remember(known[task.name])
        ask_teacher(self.tasks, next(iter(self.lessons.values())), self.corpus)
        found = {task.name: task.found for task in asked if task.found is not None}
        if found and found != known:
            write_record(file, found)

    def forget(self) -> None:
        """Remove what a finished comparison needs no more: the untrained students of its checks.

        Checkpoints in the same folder are those of a run, which may be resumed.
        """
        place = self.folder / FOLDER
        for each in self.prepared.values():
            recipe = each.recipe
            folders.remove(place / start_key(each.section, recipe.teachers, each.corpus, recipe.training.seed))
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()

    def one(self, name: str, recipe: Recipe, place: Path) -> Prepared:
        """Return what one training learns, in a folder of its own, with a student of its own seed."""
        recipe = recipe.model_copy(update={"output": str(place)})
        # Made when it is first opened: of many trainings most are finished already.
        start = Start(lambda: make_start(recipe, self.corpus, self.teachers).open())
        return replace(self.prepared[name], recipe=recipe, start=start)

    def holds_for(self, one: Prepared) -> list[str]:
        """Return what a training's results hold for: its recipe, what is shared, the code of a user's own method."""
        return [one.recipe.to_yaml(), self.identity, *([] if one.code is None else [one.code])]

    def known(self, file: Path, one: Prepared) -> dict[str, Any]:
        """Return what a finished training left in `file`; empty if it is unfinished, or its method's code has changed.

        Keys that do not decide the student (where things lie, how a teacher is asked) may have changed.

        Raises:
            DistilvecError: it was finished for another recipe, or for other data or tasks.
        """
        found = read_record(file)
        if not found:
            return {}
        recipe, *holds_for = found.get("identity") or [""]
        wanted = self.holds_for(one)
        changed = [] if recipe == wanted[0] else _differing(recipe, one.recipe)
        if changed or holds_for[:1] != wanted[1:2]:
            raise self._refusal(one, changed)
        return found if holds_for == wanted[1:] else {}

    def _refusal(self, one: Prepared, changed: Sequence[str]) -> DistilvecError:
        """Refuse a training that was begun otherwise; `changed` is what its recipe says otherwise, if it does."""
        if changed:
            place = one.output.relative_to(self.folder).as_posix()
            return DistilvecError(
                f"this comparison was begun with another recipe ({place}: {'; '.join(changed[:3])})",
                where=str(self.folder),
                remedy="Choose another output (-o), or for other options of a row another label.",
            )
        return DistilvecError(
            "this comparison was begun with other data, another student, other steps or other tasks",
            where=str(self.folder),
            remedy="Choose another output (-o). Evaluation sets belong to a comparison: name all of them before "
            f"it begins; `distilvec evaluate {one.output / 'student'}` judges what is there.",
        )

    def run(self, name: str, recipe: Recipe) -> Scores:
        """The scores of one method and seed; read back if the run is finished."""
        one = self.one(name, recipe, self.folder / "runs" / slug(name) / f"seed-{recipe.training.seed}")
        file = one.output / "scores.json"
        if known := self.known(file, one):
            return {task: Score.from_dict(score) for task, score in known["scores"].items()}
        try:
            output_folder(one.recipe, resume=(one.output / SAVED).is_file())
        except EnvironmentProblem:  # the folder cannot be written
            raise
        except DistilvecError as error:
            saved = one.output / SAVED
            changed = _differing(saved.read_text("utf-8", "replace"), one.recipe) if saved.is_file() else []
            raise self._refusal(one, changed) from error
        lessons = self.lessons[name]
        trained = fit(one, lessons, resume=_resumes(one))
        one.corpus.kind.ship(one, lessons, trained, one.output / "student")
        self._judge_baselines(one, lessons, trained)
        student = one.output / "student"
        judged = self._judged({TRAINED: one.corpus.kind.open_shipped(one.recipe, student)})[TRAINED]
        if supervises(one.recipe):
            trusted = one.section.trust_remote_code
            judged |= task_score(one.recipe, Predictor.load(student, trust_remote_code=trusted))
        scores = {task: score.to_dict(outputs=True) for task, score in judged.items()}
        write_record(file, {"identity": self.holds_for(one), "scores": scores})
        _forget(one.output)
        shown = ", ".join(f"{task} {100 * score.value:.1f}" for task, score in judged.items())
        logger.info("%s, seed %d: %s", name, recipe.training.seed, shown)
        return judged

    def baselines(self) -> dict[str, list[Scores]]:
        """Teacher, untrained student and free baseline, one run each."""
        known = read_record(self.baseline_file)
        names = set(known.get("tasks", ()))
        return {
            model: [{task: Score.from_dict(score) for task, score in scores.items()}]
            for model, scores in known.get("scores", {}).items()
            if set(scores) == names  # a model without a head has no score on a supervised task
        }

    def _judged(self, models: Mapping[str, Any]) -> dict[str, Scores]:
        """Scores on the tasks that look at vectors; none where the recipe's task is all there is."""
        return judge(models, self.tasks).scores if self.tasks else {model: {} for model in models}

    def _judge_baselines(self, one: Prepared, lessons: Lessons, trained: Trained) -> None:
        """Judge them once, with the first run's student before training."""
        file, recipe, fitted = self.baseline_file, one.recipe, trained.fitted
        names = [task.name for task in self.tasks] + ([TASK] if supervises(recipe) else [])
        if read_record(file).get("tasks") == names:
            return
        first = lessons.taught[:1]
        judged = self._judged(compared_models(first, one.corpus, self.tasks, one.start.open(), fitted))
        head = fitted.task.head if fitted.task is not None and supervises(recipe) else None
        for teacher in [each.teacher for each in first if each.teacher.card.name in judged]:
            if head is not None and teacher.head is not None and answers_alike(teacher.head, head, teacher.card.name):
                judged[teacher.card.name] |= task_score(recipe, predictor_of(teacher))
        scores = {
            model: {task: score.to_dict(outputs=True) for task, score in by_task.items()}
            for model, by_task in judged.items()
        }
        write_record(file, {"tasks": names, "scores": scores})

    def tuned_rate(self, name: str) -> float:
        """The learning rate with the best held-out agreement, or likelihood of answers, after at most one epoch.

        One at which training fails (its loss is not finite any more) is the worst.

        Raises:
            DivergedError: training fails at every rate.
        """
        prepared, lessons = self.prepared[name], self.lessons[name]
        quality = self._quality(prepared, lessons)
        recipe, qualities = prepared.recipe, dict[float, float | None]()
        failure: DivergedError | None = None
        companions = companions_of(prepared.needs, prepared.task(), self.corpus)
        items = len(rows_with_companions(self.corpus, self.corpus.train_rows, companions)[0])
        for factor in FACTORS:
            rate = float(f"{given(recipe.optimizer.lr, 'optimizer.lr') * factor:.3g}")
            epochs = min(1.0, given(recipe.training.epochs, "training.epochs"))
            candidate = changed(recipe, lr=rate, epochs=epochs, items=items)
            one = self.one(name, candidate, self.folder / "tuning" / slug(name) / f"lr-{rate:g}")
            known = self.known(one.output / "agreement.json", one)
            if not known:
                output_folder(one.recipe, resume=(one.output / SAVED).is_file())
                try:
                    trained = fit(one, lessons, resume=_resumes(one))
                    known = {"identity": self.holds_for(one), "value": quality(trained.student)}
                except DivergedError as error:
                    logger.warning("%s at a learning rate of %g: %s", name, rate, error)
                    known, failure = {"identity": self.holds_for(one), "value": None}, error
                write_record(one.output / "agreement.json", known)
                _forget(one.output)
            qualities[rate] = known["value"]
        self.tried[name] = qualities
        whole = {rate: value for rate, value in qualities.items() if value is not None}
        if not whole:
            raise failure or DivergedError("training fails at every learning rate", where=name)
        return max(whole, key=lambda rate: whole[rate])

    def _quality(self, prepared: Prepared, lessons: Lessons) -> Callable[[Any], float]:
        """Return what rates are chosen by, more is better: on held-out items, never on what is judged."""
        held = len(distinct_rows(self.tuned_on.keys, self.tuned_on.holdout_rows))
        if held < FEWEST_HELD_OUT:
            beside = "" if self.tuned_on is self.corpus else " besides those that the methods are judged on"
            raise DistilvecError(
                f"tuning needs at least {FEWEST_HELD_OUT} different held-out texts{beside}, there are {held}",
                where="corpus.holdout",
                remedy="Hold out a larger share, or name tasks." if beside else "Hold out a larger share.",
            )
        found: Callable[[Any], float] = prepared.corpus.kind.quality(self.tuned_on, lessons)
        return found


def comparison_identity(recipe: Recipe, corpus: Corpus, teachers: Teachers, tasks: Sequence[JudgingTask]) -> str:
    """32 hex digits, equal where corpus, teachers, scorers, untrained student, tasks and labelled files are equal.

    To be asked before the teacher settles what is right in a task (`settle_tasks`).
    """
    section, task = given(recipe.student, "student"), recipe.task
    folder = Path(section.model or "").expanduser()
    files = [file for file in folder.rglob("*") if file.is_file()] if section.model and folder.is_dir() else []
    if folder.is_file():  # of a pretrained network
        folder, files = folder.parent, [folder]
    seed = 0 if section.model else recipe.training.seed  # what is made by chance is another student with another
    student = [hash_files(folder, files), start_key(section, recipe.teachers, corpus, seed)]
    both = zip(teachers.each, recipe.teachers, strict=True)
    taught = [recipe.combine, *([teacher.card.fingerprint, each.weight] for teacher, each in both)]
    labelled = [Path(file) for file in (task.validation, task.test) if file] if task is not None else []
    supervised = None if task is None else task.model_dump(mode="json")
    scorers = [open_scorer(each).card.fingerprint for each in recipe.scorers]
    return content_digest([corpus.fingerprint, student, taught, scorers, list(tasks), supervised, labelled])


def quality(corpus: Corpus, lessons: Lessons) -> Callable[[Any], float]:
    """Return what rates are chosen by: agreement with the first teacher on held-out items."""
    texts, vectors = held_out(corpus, lessons.first)
    if vectors is None:
        raise DistilvecError("rates are tuned by agreement with a teacher, and there is none", where="--tune")
    return lambda student: float(agreement(vectors, CachedEncoder(student)(texts))["similarity_spearman"])


def made_of_held_out(recipe: Recipe, named: Sequence[JudgingTask]) -> bool:
    """Tell whether the methods are judged on tasks that are made of the corpus' held-out items."""
    task = recipe.task
    tested = task is not None and task.writes and task.test is not None
    return not named and not supervises(recipe) and not tested


def compared_tasks(recipe: Recipe, corpus: Corpus, named: Sequence[JudgingTask]) -> list[JudgingTask]:
    """Return the tasks that methods are judged by: those of a run, or the teacher's neighbours if there are none."""
    if supervises(recipe) and not named:
        return []
    tasks = judging_tasks(recipe, corpus, named)
    rows = sampled_rows(distinct_rows(corpus.keys, corpus.holdout_rows), MOST_NEIGHBOURS)
    texts = corpus.texts(rows)
    models = recipe.teachers and all(each.knows_all for each in recipe.teachers)
    if tasks or not corpus.kind.neighbours or not models or len(texts) < FEWEST_HELD_OUT:
        return tasks
    logger.info("the corpus has no labels or pairs: methods are judged by the teacher's neighbours of held-out texts")
    task = NeighbourTask("neighbours", texts)
    if corpus.teacher_keys is not corpus.keys:  # as it was taught; it may not know the student's language
        task.teacher_texts = dict(zip(texts, corpus.teacher_texts(rows), strict=True))
    return [task]


def _differing(saved: str, recipe: Recipe) -> list[str]:
    """Return the keys for which a recipe that was written down would have made another student, with both values."""
    try:
        return differences(Recipe.build(plain_yaml.read(saved)), recipe)
    except (DistilvecError, yaml.YAMLError):
        return ["the saved one cannot be read"]


def _resumes(one: Prepared) -> bool:
    """Tell whether a training continues: not from checkpoints of what a method that is not ours was before."""
    newest = newest_checkpoint(one.output / "checkpoints")
    return newest is None or not other_code(read_state(newest).data, {"method": one.code})


def _forget(place: Path) -> None:
    """Remove what a finished training needs no more."""
    for name in ("checkpoints", FOLDER):
        folders.remove_all(place / name)
