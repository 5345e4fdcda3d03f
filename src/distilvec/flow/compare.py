"""Several methods on the same data, steps and seeds, and one table that claims no more than its intervals allow.

Corpus, token ids and stores are shared; every run is finished by itself, so that an interrupted comparison goes on
where it was. Per-item results are kept, and differences to the reference method get a paired bootstrap interval.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from distilvec import marker, plain_yaml, sealing
from distilvec.errors import DistilvecError, nearest
from distilvec.files import write_text
from distilvec.flow.identity import comparison_identity
from distilvec.flow.job import Job
from distilvec.flow.judge import TASK, answers_alike, check_measures, supervises, task_score
from distilvec.flow.run import output_folder
from distilvec.flow.start import FOLDER
from distilvec.flow.train import ship_student, train_student
from distilvec.flow.writing import MEASURED, answer_metrics, held_out_items, open_shipped, writes
from distilvec.judging import FREE, TRAINED, UNTRAINED, CachedEncoder, RidgeMapped, Score, agreement, judge
from distilvec.methods.table import resolve
from distilvec.recipe import Recipe, given
from distilvec.recipe.sections import MOST_SEEDS
from distilvec.report import CompareTable, compare_table
from distilvec.report.plots import save_svg, style
from distilvec.report.ranks import ranks_figure
from distilvec.students import load_student
from distilvec.tasks.predictor import Predictor
from distilvec.training.arguments import steps_per_epoch
from distilvec.training.attention import FILE as ATTENTION

if TYPE_CHECKING:
    from distilvec.training import Fitted

logger = logging.getLogger(__name__)
FACTORS = (1 / 3, 1.0, 3.0)
#: Parts of a job that all variants have in common.
_SHARED = ("corpus", "tasks", "teachers")
Scores = dict[str, Score]


@dataclass(frozen=True)
class Comparison:
    """A finished comparison.

    Attributes:
        folder: holds `compare.json`, `compare.md`, `ranks.svg` where there are tasks enough, and `runs/METHOD/seed-N/`.
        compared: means, deviations and differences to the reference.
        rates: method -> learning rate chosen by tuning; empty without.
        notes: what one has to know to read the table.
    """

    folder: Path
    compared: CompareTable
    rates: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tried: dict[str, dict[float, float]] = field(default_factory=dict)

    def table(self) -> str:
        """What `distilvec compare` prints."""
        return "\n".join([self.compared.table(), "", *self.notes, f"results  {self.folder / 'compare.json'}"])

    def write(self) -> None:
        """Write `compare.json` and `compare.md`, and where there are ranks `ranks.svg`."""
        content = {**self.compared.to_dict(), "rates": self.rates, "tried": self.tried, "notes": self.notes}
        write_text(self.folder / "compare.json", json.dumps(content, indent=1) + "\n")
        lines = [self.compared.markdown(), "", *(f"- {note}" for note in self.notes)]
        if self.compared.ranking is not None:
            with style():
                save_svg(ranks_figure(self.compared.ranking), self.folder / "ranks.svg")
            lines += ["", "![Average ranks](ranks.svg)"]
        write_text(self.folder / "compare.md", "\n".join(lines) + "\n")


def compare(
    recipe: Recipe,
    methods: Sequence[str | Mapping[str, Any]],
    seeds: int = 3,
    *,
    tune: bool = False,
    reference: str | None = None,
) -> Comparison:
    """Train every method with every seed, judge all students by the same code, and compare.

    Args:
        recipe: data, student, steps and tasks. Its `output` gets the results; its `cache` (default: its `output`)
            the shared corpus and stores.
        methods: "name" or "name:key=value,key=value" with options of the method, or of the optimizer
            ("talas:optimizer.sharpness.kind=asam"); or dictionaries with `name` and options. The recipe's own
            method keeps the recipe's options where none are given.
        seeds: runs per method, with the recipe's seed and the following ones.
        tune: choose each method's learning rate among a third of the recipe's, itself and three times it, by the
            correlation of similarities with the teacher's on held-out texts after one epoch.
        reference: the method that the others are compared with; default the first.

    Raises:
        DistilvecError: an unknown method or option, no tasks, or a folder with runs of another recipe.
    """
    variants = _variants(recipe, methods)
    first = reference or next(iter(variants))
    if first not in variants:
        raise DistilvecError(f'no method "{first}" is compared', where="reference", remedy=nearest(first, variants))
    if both := {each.name for each in recipe.teachers} & variants.keys():
        raise DistilvecError(
            f'a teacher and a row of the table would both be called "{min(both)}"',
            where="teachers",
            remedy="Give the teacher another name.",
        )
    if seeds < 1:
        raise DistilvecError(f"seeds is at least 1, not {seeds}", where="seeds")
    if recipe.training.seed + seeds > MOST_SEEDS:
        last = recipe.training.seed + seeds - 1
        raise DistilvecError(
            f"the last seed would be {last:,}, and seeds are below {MOST_SEEDS:,}", where="training.seed"
        )
    job = Job(recipe)
    for variant in variants.values():
        Job(variant).require("compare")
    marker.claim(recipe.output)
    _ = job.named_tasks
    check_measures(job)
    if supervises(recipe) and not job.named_tasks:
        job.tasks = []
    if not job.tasks and not supervises(recipe):
        raise DistilvecError(
            "there is nothing to judge the methods on", where="judging.tasks", remedy="Name tasks in the recipe."
        )
    bench = _Bench(job, variants)
    bench.check()
    job.settle_tasks()
    for each in bench.jobs.values():
        _ = each.taught
    rates = {name: bench.tuned_rate(name) for name in variants} if tune else {}
    results: dict[str, list[Scores]] = {name: [] for name in variants}
    for seed in range(recipe.training.seed, recipe.training.seed + seeds):
        for name, variant in variants.items():
            results[name].append(bench.run(name, _changed(variant, seed=seed, lr=rates.get(name))))
    baselines, notes = bench.baselines(), _notes(recipe, seeds, rates)
    notes += _kept_options(recipe, variants) + [
        f"{name}: the best rate, {rates[name]:g}, is the {'largest' if rates[name] == max(tried) else 'smallest'} that "
        "was tried; a better one may lie beyond it."
        for name, tried in bench.tried.items()
        if rates[name] in (min(tried), max(tried))
    ]
    if not _read(bench.baseline_file):
        notes.append(
            "Teacher, untrained student and free baseline are missing: their scores are no longer in baselines/. "
            f"Remove runs/{_slug(first)} and compare again to have them."
        )
    table = compare_table({**baselines, **results}, first, beside=baselines)
    comparison = Comparison(bench.folder, table, rates, notes, bench.tried)
    comparison.write()
    return comparison


class _Bench:
    """What all runs share.

    Args:
        job: of the recipe itself, with corpus, tasks and opened teachers.
        variants: name -> recipe.

    Attributes:
        jobs: variant -> its job, with the variant's stores.
        identity: what all results hold for.
        baseline_file: scores of teacher, untrained student and free baseline for that; others in the same folder
            have files of their own.
    """

    def __init__(self, job: Job, variants: Mapping[str, Recipe]) -> None:
        _ = job.teachers
        self.job, self.folder, self.identity = job, job.output, comparison_identity(job)
        self.baseline_file = self.folder / "baselines" / f"{self.identity}.json"
        self.tried: dict[str, dict[float, float]] = {}
        self.jobs = {name: job.changed(variant, *_SHARED) for name, variant in variants.items()}

    def check(self) -> None:
        """Refuse a method that cannot work with this student or teacher before any other is trained."""
        for each in self.jobs.values():
            _ = each.needs

    def one(self, name: str, recipe: Recipe, place: Path) -> Job:
        """The job of one training, in a folder of its own; it goes on where it was."""
        recipe = recipe.model_copy(update={"output": str(place)})
        job = self.jobs[name].changed(recipe, *_SHARED, "taught")
        job.resume = True
        return job

    def run(self, name: str, recipe: Recipe) -> Scores:
        """The scores of one method and seed; read back where the run is finished."""
        job = self.one(name, recipe, self.folder / "runs" / _slug(name) / f"seed-{recipe.training.seed}")
        file = job.output / "scores.json"
        identity = [job.recipe.to_yaml(), self.identity]
        known = _read(file)
        if known.get("identity") == identity:
            return {task: Score.from_dict(score) for task, score in known["scores"].items()}
        try:
            output_folder(job.recipe, resume=True)
        except DistilvecError as error:
            raise DistilvecError(
                "this comparison was begun with other data, another student, other steps or other tasks",
                where=str(self.folder),
                remedy="Choose another output (-o). Evaluation sets belong to a comparison: name all of them before "
                f"it begins; `distilvec evaluate {job.output / 'student'}` judges what is there.",
            ) from error
        student, fitted = train_student(job)
        ship_student(job, student, fitted.method, job.output / "student")
        self._judge_baselines(job, fitted)
        judged = self._judged({TRAINED: self._opened(job)})[TRAINED]
        judged |= task_score(job.recipe, Predictor.load(job.output / "student")) if supervises(job.recipe) else {}
        write_text(
            file,
            json.dumps({"identity": identity, "scores": {task: s.to_dict(outputs=True) for task, s in judged.items()}}),
        )
        _forget(job.output)
        shown = ", ".join(f"{task} {100 * score.value:.1f}" for task, score in judged.items())
        logger.info("%s, seed %d: %s", name, recipe.training.seed, shown)
        return judged

    def baselines(self) -> dict[str, list[Scores]]:
        """Teacher, untrained student and free baseline, one run each."""
        known = _read(self.baseline_file)
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
        return open_shipped(job.recipe, folder) if writes(job.recipe) else load_student(str(folder))

    def _judge_baselines(self, job: Job, fitted: Fitted) -> None:
        """Judge them once, with the first run's student before training."""
        file = self.baseline_file
        names = [task.name for task in job.tasks] + ([TASK] if supervises(job.recipe) else [])
        if _read(file).get("tasks") == names:
            return
        untrained = CachedEncoder(job.student())
        models: dict[str, Any] = {}
        teacher = None if job.first is None else job.first.teacher
        if teacher is not None and teacher.card.kind != "vectors":
            models[teacher.card.name] = teacher
        models[UNTRAINED] = untrained
        if fitted.free_map and not writes(job.recipe):
            models[FREE] = RidgeMapped(untrained, fitted.free_map[0])
        judged = self._judged(models)
        head = getattr(teacher, "head", None)
        if (
            teacher is not None
            and head is not None
            and supervises(job.recipe)
            and fitted.task is not None
            and fitted.task.head is not None
            and answers_alike(head, fitted.task.head, teacher.card.name)
        ):
            judged[teacher.card.name] |= task_score(job.recipe, Predictor(teacher.model, head))  # type: ignore[attr-defined]
        scores = {
            model: {task: score.to_dict(outputs=True) for task, score in by_task.items()}
            for model, by_task in judged.items()
        }
        write_text(file, json.dumps({"tasks": names, "scores": scores}))

    def tuned_rate(self, name: str) -> float:
        """The learning rate with the best held-out agreement, or likelihood of answers, after at most one epoch."""
        quality = self._quality(self.jobs[name])
        recipe, qualities = self.jobs[name].recipe, {}
        one = steps_per_epoch(recipe.training, len(self.jobs[name].corpus.train_rows))
        for factor in FACTORS:
            rate = float(f"{recipe.optimizer.lr * factor:.3g}")
            candidate = _changed(recipe, lr=rate, epochs=min(1.0, recipe.training.epochs), most=one)
            job = self.one(name, candidate, self.folder / "tuning" / _slug(name) / f"lr-{rate:g}")
            identity = [job.recipe.to_yaml(), self.identity]
            known = _read(job.output / "agreement.json")
            if known.get("identity") != identity:
                output_folder(job.recipe, resume=True)
                student, _ = train_student(job)
                known = {"identity": identity, "value": quality(student)}
                write_text(job.output / "agreement.json", json.dumps(known))
                _forget(job.output)
            qualities[rate] = known["value"]
        self.tried[name] = qualities
        return max(qualities, key=lambda rate: qualities[rate])

    @staticmethod
    def _quality(job: Job) -> Callable[[Any], float]:
        """What rates are chosen by, more is better: on held-out items, never on what is judged."""
        held = len(job.corpus.holdout_rows)
        if held < 20:
            raise DistilvecError(
                f"tuning needs at least 20 held-out texts, there are {held}",
                where="corpus.holdout",
                remedy="Hold out a larger share.",
            )
        if writes(job.recipe):
            items = held_out_items(job.corpus, MEASURED)
            return lambda student: answer_metrics(student, items)["likelihood"]
        texts, vectors = job.held_out()
        if vectors is None:
            raise DistilvecError("rates are tuned by agreement with a teacher, and there is none", where="--tune")
        return lambda student: float(agreement(vectors, CachedEncoder(student)(texts))["similarity_spearman"])


def _forget(place: Path) -> None:
    """Remove what a finished training needs no more."""
    for name in ("checkpoints", FOLDER):
        for folder in (place / name).glob("*"):
            if folder.is_dir():
                sealing.remove(folder)
        (place / name / ATTENTION).unlink(missing_ok=True)
        if (place / name).is_dir() and not any((place / name).iterdir()):
            (place / name).rmdir()


def _variants(recipe: Recipe, methods: Sequence[str | Mapping[str, Any]]) -> dict[str, Recipe]:
    """Label -> the recipe with that method; all of them are checked before anything is trained."""
    variants: dict[str, Recipe] = {}
    for spec in methods:
        label, name, options, changes = _parse(spec)
        if label in variants:
            raise DistilvecError(f'"{label}" is given twice', where="methods")
        data = recipe.model_dump()
        own = recipe.method.options if name == recipe.method.name else {}
        data["method"] = {"matryoshka": recipe.method.matryoshka, **own, "name": name, **options}
        data["cache"] = str(recipe.place)
        student = given(recipe.student, "student")
        data["student"]["router"] = False
        if student.space == resolve(recipe.method.name).implied_space:
            data["student"]["space"] = None  # each method ships as it implies
        for key, value in changes.items():
            section = data
            *parents, last = key.split(".")
            for parent in parents:
                section[parent] = section.get(parent) or {}
                section = section[parent]
            section[last] = value
        variants[label] = Recipe.build(data)
    if not variants:
        raise DistilvecError("there are no methods to compare", where="methods", remedy="Name one or more.")
    return variants


def _parse(spec: str | Mapping[str, Any]) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
    """(label, method, its options, changes of the optimizer section)."""
    if isinstance(spec, str):
        label = spec.strip()
        name, _, given = label.partition(":")
        try:
            options = plain_yaml.read("{" + re.sub(r"\s*=\s*", ": ", given) + "}")
        except yaml.YAMLError as error:
            raise DistilvecError(
                f'"{label}" is not of the form name:key=value,key=value', where="methods", remedy="See `methods`."
            ) from error
    else:
        options = dict(spec)
        name = str(options.pop("name", ""))
        label = name + (":" + ",".join(f"{key}={value}" for key, value in options.items()) if options else "")
    lost = [key for key, value in options.items() if value is None and isinstance(spec, str) and f"{key}=" not in spec]
    if lost:
        raise DistilvecError(f'"{lost[0]}" in "{label}" has no value', where="methods", remedy="Write key=value.")
    changes = {key: value for key, value in options.items() if key.startswith("optimizer.")}
    return label, name, {key: value for key, value in options.items() if key not in changes}, changes


def _changed(
    recipe: Recipe,
    *,
    seed: int | None = None,
    lr: float | None = None,
    epochs: float | None = None,
    most: int | None = None,
) -> Recipe:
    """The recipe with another seed, learning rate or (for tuning, without evaluations) length, of so many steps at most
    where it is one of steps.
    """
    training: dict[str, Any] = {} if seed is None else {"seed": seed}
    if epochs is not None:
        training |= {"epochs": epochs, "evaluate_every": None, "best": None, "patience": None}
        if (steps := recipe.training.arguments.get("max_steps", 0)) > 0 and most is not None:
            training["max_steps"] = min(steps, most)
    changes: dict[str, Any] = {"training": recipe.training.model_copy(update=training)}
    if lr is not None:
        changes["optimizer"] = recipe.optimizer.model_copy(update={"lr": lr})
    return recipe.model_copy(update=changes)


def _notes(recipe: Recipe, seeds: int, rates: Mapping[str, float]) -> list[str]:
    steps = recipe.training.arguments.get("max_steps", 0)
    length = f"{steps:,} steps" if steps > 0 else f"{recipe.training.epochs:g} epochs"
    length += f", batches of {recipe.training.batch_size}"
    notes = [
        f"{seeds} seed(s) per method, {length}; ± is the standard deviation over seeds, intervals are over test items"
        + (" and seeds." if seeds > 1 else " alone: another seed moves a difference, too.")
    ]
    if rates:
        shown = ", ".join(f"{name} {rate:g}" for name, rate in rates.items())
        by = "the likelihood of held-out answers" if writes(recipe) else "held-out agreement"
        notes.append(f"Learning rates chosen on {by} after one epoch, or all of a shorter training: {shown}.")
    else:
        notes.append("Learning rates as the recipe says, not tuned per method.")
    if not recipe.judging.tasks and not supervises(recipe):
        notes.append("Tasks were made of the corpus' held-out items.")
    return notes


def _kept_options(recipe: Recipe, variants: Mapping[str, Recipe]) -> list[str]:
    """Which rows have options that only the recipe names."""
    own = [name for name, variant in variants.items() if variant.method.name == recipe.method.name]
    if not own or not recipe.method.options:
        return []
    told = ", ".join(f"{key}={value}" for key, value in recipe.method.options.items())
    return [f"What else the recipe says of {recipe.method.name} holds for {', '.join(own)}, too: {told}."]


def _slug(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", label).strip("-")


def _read(file: Path) -> dict[str, Any]:
    """A JSON object; empty where the file is missing or cut short."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
