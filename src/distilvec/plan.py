"""What `--dry-run` prints: stages, sizes, what is trained and kept, expected time, memory and disk.

Times come from a short probe: the teacher encodes a few texts and the student takes a few steps on them.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from distilvec.methods.table import build_method
from distilvec.recipe import Recipe
from distilvec.run import Taught, make_student, open_teacher, prepare_corpus
from distilvec.store import SignalStore
from distilvec.teachers import check_teacher
from distilvec.training import StoreSource, fit

PROBE_TEXTS = 128
PROBE_STEPS = 6


@dataclass
class Plan:
    """Lines of (stage, what will happen); `notes` are things worth a second look."""

    lines: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, stage: str, text: str) -> None:
        self.lines.append((stage, text))

    def text(self) -> str:
        width = max(len(stage) for stage, _ in self.lines)
        lines = [f"{stage:<{width}}  {text}" for stage, text in self.lines]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def show(self) -> None:
        import typer

        typer.echo(self.text())


def plan(recipe: Recipe) -> Plan:
    """Probe a recipe without leaving anything behind.

    Raises:
        DistilvecError: whatever the run itself would refuse before its first expensive step.
    """
    found = Plan()
    with tempfile.TemporaryDirectory(prefix="distilvec-plan-") as name:
        place = Path(name)
        corpus = prepare_corpus(recipe, place)
        audit = corpus.audit
        found.add("corpus", f"{len(corpus):,} texts of {audit.read:,} rows; {len(corpus.train_rows):,} to train on")
        if audit.rejected:
            found.add("", "rejected: " + ", ".join(f"{count:,} {reason}" for reason, count in audit.rejected.items()))
        rows = np.asarray(corpus.train_rows[:: max(1, len(corpus.train_rows) // PROBE_TEXTS)][:PROBE_TEXTS])
        taught, seconds, disk = _probe_teachers(recipe, corpus, rows, place, found)
        seconds += _probe_student(recipe, corpus, rows, taught, place, found)
    found.add("disk", f"{disk / 2**20:,.1f} MB of stores; {shutil.disk_usage(Path.cwd()).free / 2**30:,.1f} GB are free here")
    found.add("time", f"about {_duration(seconds)} before judging")
    tasks = len(recipe.judging.tasks)
    found.add("judging", f"{tasks} task(s)" + (", agreement with the teacher" if recipe.judging.agreement else ""))
    found.add("output", f"{recipe.output}: student/, report.html, report.md, report.json, run.jsonl, checkpoints/")
    return found


def _probe_teachers(
    recipe: Recipe, corpus: object, rows: np.ndarray, place: Path, found: Plan
) -> tuple[list[Taught], float, float]:
    taught: list[Taught] = []
    total_seconds = total_bytes = 0.0
    texts, keys = corpus.teacher_texts(rows), corpus.teacher_keys[rows]  # type: ignore[attr-defined]
    count = len(corpus)  # type: ignore[arg-type]
    for section in recipe.teachers:
        teacher = open_teacher(section)
        report = check_teacher(teacher, texts)
        start = time.perf_counter()
        vectors = teacher.encode(texts)
        rate = len(texts) / (time.perf_counter() - start)
        store = SignalStore.create(place / "probe" / section.name, teacher.card, teacher.card.width, section.storage)
        with store.writer("probe") as writer:
            writer.add(keys, vectors)
        per_text = teacher.card.width * {"float16": 2, "float32": 4, "int8": 1}[section.storage] + 16
        missing = count
        kept = Path(recipe.cache or recipe.output) / "stores" / section.name
        if (kept / "store.json").exists():
            existing = SignalStore.create(kept, teacher.card, teacher.card.width, section.storage)
            missing = int(existing.missing(corpus.teacher_keys).sum())  # type: ignore[attr-defined]
        seconds = missing / rate
        found.add(
            f"teacher {section.name}",
            f"{teacher.card.width} dimensions, {missing:,} texts to encode at {rate:,.0f}/s: {_duration(seconds)}; "
            f"{per_text:,} bytes a text, {per_text * count / 2**20:,.1f} MB in all",
        )
        found.notes.extend(report.warnings)
        taught.append(Taught(teacher, SignalStore.open(store.path), 0.0, 0))
        total_seconds += seconds
        total_bytes += per_text * count
    return taught, total_seconds, total_bytes


def _probe_student(
    recipe: Recipe, corpus: object, rows: np.ndarray, taught: Sequence[Taught], place: Path, found: Plan
) -> float:
    student = make_student(recipe.student, recipe.teachers, corpus, recipe.training.seed)  # type: ignore[arg-type]
    method = build_method(recipe.method.name, recipe.method.options, recipe.method.matryoshka)
    training = recipe.training.model_copy(
        update={"batch_size": min(recipe.training.batch_size, len(rows)), "evaluate_every": None, "best": None, "patience": None}
    )
    training.__pydantic_extra__ = {**training.arguments, "max_steps": PROBE_STEPS}
    probe = _Rows(corpus, rows)
    start = time.perf_counter()
    fitted = fit(
        student,
        method,
        [each.info for each in taught],
        probe,  # type: ignore[arg-type]
        [StoreSource(each.store, corpus, rows) for each in taught],  # type: ignore[arg-type]
        training=training,
        optimizer=recipe.optimizer,
        folder=place / "probe-run",
    )
    setup = time.perf_counter() - start - fitted.seconds
    per_step = fitted.seconds / max(fitted.steps, 1)
    steps = int(np.ceil(len(corpus.train_rows) / recipe.training.batch_size) * recipe.training.epochs)  # type: ignore[attr-defined]
    seconds = steps * per_step + setup
    found.add(
        "student",
        f"{fitted.trained / 1e6:.2f} M parameters trained and kept; heads of {fitted.heads / 1e6:.2f} M "
        + ("folded into the student" if recipe.student.space == "teacher" else "trained and dropped"),
    )
    found.add("training", f"{recipe.method.name}, {steps:,} steps at {1e3 * per_step:,.0f} ms: {_duration(seconds)}")
    found.add("memory", f"{fitted.peak_bytes / 2**30:.2f} GB at the probe's peak (teacher and student together)")
    return seconds


class _Rows:
    """A corpus of which only some rows are trained on."""

    def __init__(self, corpus: object, rows: np.ndarray) -> None:
        self._corpus, self.train_rows, self.holdout_rows = corpus, rows, np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._corpus)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self._corpus, name)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
