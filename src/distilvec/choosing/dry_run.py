"""The output of `--dry-run`: stages, sizes, what is trained and kept, expected time, memory and disk.

Times come from a short probe: the teacher encodes a few texts and the student takes a few steps on them.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from distilvec.choosing.dry_run_lines import Plan, describe_corpus, describe_end, describe_mining
from distilvec.choosing.probe import quiet_settings
from distilvec.choosing.sample import whole_groups
from distilvec.corpus.files import MANIFEST
from distilvec.corpus.groups import rows_with_companions
from distilvec.evenly import evenly_spaced
from distilvec.files import read_object
from distilvec.flow.checks import compares, too_few_held_out
from distilvec.flow.combine import combine, name_of_store
from distilvec.flow.defaults import with_defaults
from distilvec.flow.fit import adapted
from distilvec.flow.lessons import combined_storage
from distilvec.flow.mine import further_documents
from distilvec.flow.prepare import (
    Prepared,
    Teachers,
    fresh_method,
    make_start,
    named_tasks,
    open_corpus,
    open_teachers,
    require,
)
from distilvec.flow.score import STORAGE, QueryDocuments, score_one, scores_of, without_scores
from distilvec.flow.settle import settle, wants_of
from distilvec.flow.start import FOLDER
from distilvec.flow.teach import Taught, held_precision
from distilvec.progress import within
from distilvec.recipe import Recipe
from distilvec.scorers.load import open_scorer
from distilvec.store import FillReport, RaggedSignal, SignalStore, fill
from distilvec.store.layout import read_signals
from distilvec.store.scan import part_names
from distilvec.teachers import Teacher
from distilvec.teachers.describe import TeacherReport, check_teacher
from distilvec.teachers.precision import settle_precision
from distilvec.teachers.signals import NOTHING, Wanted
from distilvec.training import Material, fit
from distilvec.training.checks import companions_of
from distilvec.words import duration, size

if TYPE_CHECKING:
    from distilvec.corpus import Corpus

PROBE_TEXTS = 128
PROBE_STEPS = 6
BYTES = {"float16": 2, "float32": 4, "int8": 1}


@dataclass(frozen=True)
class ProbedRecipe:
    """The recipe that is probed, in a temporary folder, and the recipe as a run will have it (`real`)."""

    recipe: Recipe
    corpus: Corpus
    teachers: Teachers
    real: Recipe

    @property
    def place(self) -> Path:
        """The temporary folder that the probe writes into."""
        return self.recipe.place


def plan(recipe: Recipe, *, teaching_only: bool = False, mining: bool = False) -> Plan:
    """Probe a recipe without leaving anything behind.

    Args:
        teaching_only: stop before the student.
        mining: stop there too, and say what mining takes.

    Raises:
        DistilvecError: whatever the run itself would refuse before its first expensive step.
    """
    summary, teaching_only = Plan(), teaching_only or mining
    with tempfile.TemporaryDirectory(prefix="distilvec-plan-") as name:
        if mining:  # which asks the first teacher alone
            recipe = recipe.model_copy(update={"teachers": recipe.teachers[:1]})
        require(recipe, "mine" if mining else "teach" if teaching_only else "dry-run")
        named = [] if teaching_only else named_tasks(recipe)
        apart = recipe.model_copy(update={"cache": name, "output": name})
        corpus = open_corpus(apart)
        if not teaching_only:
            apart = with_defaults(apart, corpus)
        for line in apart.chosen:
            summary.add("chosen", line)
        probe = ProbedRecipe(apart, corpus, open_teachers(apart, corpus), recipe)
        prepared = None
        if not teaching_only:
            prepared = settle(apart, corpus, probe.teachers, make_start(apart, corpus, probe.teachers), named)
        describe_corpus(corpus, summary)
        train = np.asarray(corpus.train_rows)
        chosen = evenly_spaced(len(train), PROBE_TEXTS)
        rows = whole_groups(corpus, train[chosen], train)
        further = further_documents(apart, corpus, probe.place) if mining else None
        more = None if further is None else further.teacher_keys
        if prepared is not None:
            wanted: Sequence[Wanted] = prepared.wanted
        else:
            nothing = [NOTHING for _ in probe.teachers.each]
            wanted = nothing if mining else wants_of(apart, corpus, probe.teachers)
        taught, seconds, disk = _probe_teachers(probe, wanted, rows, summary, more)
        asked = bool(recipe.scorers) and not mining and (prepared is None or prepared.needs.scores)
        scored, written, scores = _probe_scorers(probe, rows, summary) if asked else (0.0, 0.0, None)
        seconds, disk = seconds + scored, disk + written
        if mining:
            seconds += describe_mining(corpus, further, probe.teachers.first.card.width, summary)
        if prepared is not None:
            trained, kept = _probe_student(prepared, rows, taught, scores, summary)
            seconds, disk = seconds + trained, disk + kept
            own = "" if named else " (of the corpus)"
            few = too_few_held_out(prepared)
            extra = f"; {few}" if few else ", agreement with the teacher" if compares(recipe) else ""
            summary.add("judging", (", ".join(task.name + own for task in prepared.tasks) or "no tasks") + extra)
        disk += _prepared_bytes(probe)
    describe_end(recipe, seconds, disk, summary, teaching_only=teaching_only)
    return summary


def _probe_teachers(
    probe: ProbedRecipe, wanted: Sequence[Wanted], rows: np.ndarray, summary: Plan, more: np.ndarray | None
) -> tuple[list[Taught], float, float]:
    """Encode a few texts with each teacher; returns what was taught, seconds and bytes of teaching it all.

    Args:
        wanted: signals of each teacher besides sentence vectors.
        more: keys of what is encoded besides the corpus.
    """
    taught: list[Taught] = []
    seconds = disk = 0.0
    corpus, place, kept = probe.corpus, probe.place, probe.real.place
    texts, keys = corpus.teacher_texts(rows), corpus.teacher_keys[rows]
    every = [np.asarray(corpus.teacher_keys), *([] if more is None else [np.asarray(more)])]
    keys_of_all = np.unique(np.concatenate(every), axis=0)
    for section, teacher, signals in zip(probe.recipe.teachers, probe.teachers.each, wanted, strict=True):
        said = settle_precision(teacher, texts, held_precision(kept / "stores" / section.name))
        seen = check_teacher(teacher, texts, corpus.modality)
        store = SignalStore.create(place / "probe" / section.name, teacher.card, teacher.card.width, section.storage)
        stored = NOTHING if section.live else signals
        sizes = {"sentence": teacher.card.width * BYTES[section.storage] + 16}
        begun = time.perf_counter()
        if stored.signals:
            fill(store, teacher, texts, keys, stored)
            for name in stored.signals:
                files = [store.path / f"{part}.arrow" for part in part_names(store.path, name)]
                sizes[name] = round(sum(file.stat().st_size for file in files) / max(len(texts), 1))
        else:
            vectors = teacher.encode(texts)
            there = ~np.isnan(vectors).all(axis=1)  # it lacks the others, as the run will say
            with store.writer("probe") as writer:
                writer.add(keys[there], vectors[there])
        rate = len(texts) / max(time.perf_counter() - begun, 1e-9)
        store.refresh()
        prompt = f', prompt "{teacher.card.prompt}"' if teacher.card.prompt else ""
        each = f"{corpus.kind.article} {corpus.kind.name}"
        lacking = _lacking(kept / "stores" / section.name, teacher, keys_of_all, section.storage, stored)
        missing = int(np.logical_or.reduce(list(lacking.values())).sum())
        written = sum(sizes[name] * int(texts_without.sum()) for name, texts_without in lacking.items())
        waited = 0.0 if teacher.can.later else missing / rate
        when = "in batch jobs, within a day" if teacher.can.later else f"at {rate:,.0f}/s: {duration(waited)}"
        summary.add(
            f"teacher {section.name}",
            f"{teacher.card.width} dimensions{prompt}, {missing:,} {corpus.audit.noun} to encode {when}; "
            f"{sum(sizes.values()):,} bytes {each}, {size(written)} in all",
        )
        if said:
            summary.add("", said)
        if (cost := teacher.cost(texts, missing)) is not None:
            summary.add("", str(cost))
        summary.examples += _examples(section.name, seen)
        summary.notes += [f"{section.name}: {warning}" for warning in seen.warnings]
        report = FillReport(len(texts), len(texts), 0, len(texts), len(texts) / rate, [], {})
        taught.append(Taught(teacher, seen, store, report, section.live, signals, section.weight))
        seconds, disk = seconds + waited, disk + written
    if probe.teachers.combined is not None:
        taught, combined = _probe_combined(probe, taught, keys_of_all, summary)
        disk += combined
    return taught, seconds, disk


def _probe_combined(
    probe: ProbedRecipe, taught: Sequence[Taught], keys: np.ndarray, summary: Plan
) -> tuple[list[Taught], float]:
    """The one teacher that probed ones are combined into, which the student meets; and bytes of its whole store."""
    how, storage, kept = probe.recipe.combine, combined_storage(probe.recipe), probe.real.place
    teacher, store, filled, seen = combine(taught, how, probe.corpus, probe.place / "probe", storage)  # type: ignore[arg-type]
    theirs = [kept / "stores" / section.name for section in probe.recipe.teachers]
    whole = all((folder / "store.json").exists() for folder in theirs)
    place = kept / "stores" / (name_of_store(teacher, theirs, storage) if whole else store.path.name)
    missing = int(_lacking(place, teacher, keys, storage, NOTHING)["sentence"].sum())
    each = teacher.card.width * BYTES[storage] + 16
    summary.add(
        "combined",
        f"{teacher.card.width} dimensions in a store beside theirs, {missing:,} {probe.corpus.audit.noun} to combine; "
        f"{each:,} bytes each, {size(each * missing)} in all",
    )
    return [Taught(teacher, seen, store, filled)], float(each * missing)


def _lacking(folder: Path, teacher: Teacher, keys: np.ndarray, storage: str, wanted: Wanted) -> dict[str, np.ndarray]:
    """Signal -> bool over distinct texts' keys, those for which the run's store lacks it.

    Refuses another teacher's store as the run does.
    """
    lacking = dict.fromkeys(("sentence", *wanted.signals), np.ones(len(keys), bool))
    if not (folder / "store.json").exists():
        return lacking
    store = SignalStore.create(folder, teacher.card, teacher.card.width, storage)
    lacking["sentence"] = store.missing(keys)
    for name in set(wanted.signals) & set(read_signals(folder)):
        lacking[name] = RaggedSignal(folder, name).missing(keys)
    return lacking


def _examples(name: str, seen: TeacherReport) -> list[str]:
    counts = [f" ({each.tokens} tokens)" if each.tokens else "" for each in seen.examples]
    texts = [each.rendered for each in seen.examples]
    shown = [repr(text if len(text) <= 200 else f"{text[:100]} ... {text[-100:]}") for text in texts]
    return [f"{name} reads{count}: {text}" for count, text in zip(counts, shown, strict=True)]


def _probe_scorers(probe: ProbedRecipe, rows: np.ndarray, summary: Plan) -> tuple[float, float, np.ndarray]:
    """Score a few pairs with each scorer; returns seconds and bytes of scoring all, and the scores of these pairs."""
    seconds, disk, scored, kept = 0.0, 0.0, [], probe.real.place
    pairs, keys = QueryDocuments.of(probe.corpus, rows), np.unique(QueryDocuments.of(probe.corpus).keys, axis=0)
    for section in probe.recipe.scorers:
        scorer = open_scorer(section)
        if len(keys) and not scorer.knows(keys).any():
            raise without_scores(section, len(keys))
        begun = time.perf_counter()
        one = score_one(section, scorer, pairs, probe.place / "probe")
        rate = one.filled.distinct / max(time.perf_counter() - begun, 1e-9)
        scored.append(one)
        missing = len(keys)
        if (kept / "stores" / section.name / "store.json").exists():
            there = SignalStore.create(kept / "stores" / section.name, scorer.card, 1, STORAGE)
            missing = int(there.missing(keys).sum())
        absent = (
            f", {one.filled.absent:,} of {one.filled.distinct:,} tried without a score" if one.filled.absent else ""
        )
        summary.add(
            f"scorer {section.name}",
            f"{missing:,} of {len(keys):,} pairs to score at {rate:,.0f}/s: {duration(missing / rate)}{absent}",
        )
        seconds, disk = seconds + missing / rate, disk + missing * (BYTES[STORAGE] + 16)
    return seconds, disk, scores_of(scored, pairs)


def _probe_student(
    prepared: Prepared, rows: np.ndarray, taught: Sequence[Taught], scores: np.ndarray | None, summary: Plan
) -> tuple[float, float]:
    """Take a few steps; returns the seconds of the whole training and the bytes it leaves."""
    recipe, corpus, place, task = prepared.recipe, prepared.corpus, prepared.place, prepared.task()
    most = companions_of(prepared.needs, task, corpus)
    items = corpus.epoch_items(rows_with_companions(corpus, corpus.train_rows, most)[0])
    begun, whole = time.perf_counter(), recipe.training.batch
    batch = max(1, min(whole, len(rows_with_companions(corpus, rows, most)[0])))
    student = prepared.start.open()
    few = copy.copy(corpus)
    few.train_rows, few.holdout_rows = rows, np.zeros(0, np.int64)
    sources = [each.source(few, rows, place, task) for each in taught]
    learnt = Material(few, [each.info for each in taught], sources, task=task, scores=scores)
    short = {"batch_size": batch, "max_steps": PROBE_STEPS, "gradient_accumulation_steps": 1}
    settings = quiet_settings({**recipe.training.model_dump(), **short}, recipe.optimizer, place)
    with adapted(recipe, student), within("measuring"):
        fitted = fit(student, fresh_method(recipe), learnt, settings)
    setup = time.perf_counter() - begun - fitted.seconds
    derived = _derived_bytes(place, len(rows), len(corpus.train_rows) + len(corpus.holdout_rows))
    # A larger batch than the probe has items for takes as much longer.
    larger = whole / batch if batch < min(whole, items) else 1.0
    accumulated = recipe.training.gradient_accumulation_steps  # the probe's steps are of one batch
    per_step = fitted.seconds / max(fitted.steps, 1) * larger * accumulated
    steps = recipe.training.steps(items)
    folded = prepared.section.space == "teacher"
    heads = "of which the map into the teacher's space is kept" if folded else "trained and dropped"
    summary.add(
        "student",
        f"{fitted.trained / 1e6:.2f} M parameters trained and kept; "
        + (f"heads of {fitted.heads / 1e6:.2f} M {heads}" if fitted.heads else "no heads"),
    )
    summary.add(
        "training", f"{recipe.method.name}, {steps:,} steps at {1e3 * per_step:,.0f} ms: {duration(steps * per_step)}"
    )
    if derived:
        summary.add("alignments", f"about {size(derived)}, made once per student tokenizer")
    probed = f", with batches of {batch} instead of {whole}" if larger > 1 else ""
    summary.add("memory", f"{size(fitted.peak_bytes)} at the probe's peak, teacher and student together{probed}")
    # A checkpoint holds student, heads and two moments for each; two of them are kept, and the student itself.
    checkpoints = 4.0 * (6 * (fitted.trained + fitted.heads) + fitted.trained)
    return steps * per_step + setup, checkpoints + derived


def _derived_bytes(place: Path, probed: int, rows: int) -> float:
    """Bytes of alignments and digests of so many corpus rows, from those of the probe."""
    stored = [file for file in place.glob("probe/*/derived/*") if not file.name.startswith("index")]
    # Offsets are of every row of the corpus already, and so are the alignments of a live teacher.
    whole = [file for file in stored if file.suffix == ".npy"] + [*place.glob("alignments/*")]
    part = sum(file.stat().st_size for file in stored if file.suffix != ".npy")
    return part * rows / max(probed, 1) + sum(file.stat().st_size for file in whole)


def _prepared_bytes(probed: ProbedRecipe) -> float:
    """Bytes of the corpus, its token ids and the untrained student, all of which the probe made whole; what the run
    will find where it keeps them is not counted.
    """
    probe, kept, recipe = probed.place, probed.real.place, probed.real
    places = [
        (probe / "probe-run" / "tokens", kept / "tokens"),
        (probe / "pieces", kept / "pieces"),
        (probe / FOLDER, Path(recipe.output) / FOLDER),
    ]
    made = [(file, there / file.relative_to(place)) for place, there in places for file in place.rglob("*")]
    written = [file for file, there in made if not there.exists()]
    if read_object(kept / "corpus" / MANIFEST).get("fingerprint") != probed.corpus.fingerprint:
        written += (probe / "corpus").rglob("*")
    return float(sum(file.stat().st_size for file in written if file.is_file()))
