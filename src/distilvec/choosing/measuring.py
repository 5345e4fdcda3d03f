"""Measures of a candidate before it is trained: its size, its speed here, and what it keeps of the teacher for free."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from distilvec.choosing.candidates import Candidate
from distilvec.choosing.probe import short_training
from distilvec.corpus import Corpus
from distilvec.evenly import evenly_spaced
from distilvec.flow.start import make_student
from distilvec.flow.teach import Taught, teacher_info
from distilvec.judging import CachedEncoder, Judgement, RidgeMapped, agreement, free_map, judge, linear_map, speed
from distilvec.judging.scores import can_be_kept
from distilvec.judging.tasks import JudgingTask
from distilvec.methods.table import build_method
from distilvec.modules.blocks import parameters
from distilvec.recipe import AutoSection, OptimizerSection, Recipe, StudentSection
from distilvec.report.surroundings import folder_bytes, unused_pooler
from distilvec.students import PassCache, StudentTap, load_student, ship
from distilvec.tasks.table import build_task
from distilvec.training.step import describe
from distilvec.words import ABSENT, millions, number, size

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

#: Texts that speed is measured on, and seconds of it.
TIMED, SECONDS = 128, 1.5
PROBE_BATCH, PROBE_LR = 32, 5e-4
#: Groups of tasks that a student has to keep, each for itself.
GROUPS = ("all", "retrieval")


@dataclass
class Measured:
    """A candidate, or the teacher.

    Attributes:
        parameters, size_bytes: of what would ship; None where not known.
        speed: see `distilvec.judging.speed`; empty where it was not measured.
        agreement: mean cosine of the free baseline with the teacher on held-out texts.
        kept: fraction of the teacher's score, by way of reaching it ("untrained", "free", "probe") and by what is
            kept: "all" (average of the tasks without retrieval), "retrieval", and "agreement".
        section: the student section that makes it, None for the teacher.
        curve: steps of a short training -> agreement with the teacher after it (Spearman's correlation of all cosines
            on held-out texts); 0 = untrained. Only within a budget.
    """

    name: str
    parameters: int | None
    size_bytes: int | None
    speed: dict[str, Any] = field(default_factory=dict)
    agreement: float | None = None
    kept: dict[str, dict[str, float]] = field(default_factory=dict)
    section: dict[str, Any] | None = None
    curve: dict[int, float] = field(default_factory=dict)

    def cells(self) -> list[str]:
        """Name, parameters, bytes, texts per second and latency, as tables show them."""
        rate = latency = ABSENT
        if timed := self.speed:
            rate = number(round(timed["texts_per_second"]))
            latency = f"{timed['latency_p50_ms']:.1f} / {timed['latency_p95_ms']:.1f}"
        return [self.name, millions(self.parameters), size(self.size_bytes), rate, latency]


@dataclass
class MeasuringData:
    """The data that all candidates are measured on.

    Attributes:
        recipe: for the student section's other keys, the teachers and the seed.
        whole: the corpus that word pieces are chosen by.
        sample: some thousand texts of it.
        taught: the teachers, with vectors of the sample.
        tasks, judged: the tasks, and the teacher's scores on them (None without tasks).
        probe_steps: steps of a short training; 0 = none.
        seen: what candidates are cut from, and what it gave for the texts.
    """

    recipe: Recipe
    whole: Corpus
    sample: Corpus
    taught: Sequence[Taught]
    tasks: Sequence[JudgingTask]
    judged: Judgement | None
    probe_steps: int = 0
    seen: PassCache = field(default_factory=lambda: PassCache(further=True))

    def train(self) -> tuple[list[str], npt.NDArray[np.float32]]:
        """Texts that maps are fitted to, and the first teacher's vectors."""
        return self._of(self.sample.train_rows)

    def held_out(self) -> tuple[list[str], npt.NDArray[np.float32]]:
        """Texts that agreement is measured on, and the first teacher's vectors."""
        return self._of(self.sample.holdout_rows)

    def timed(self) -> list[str]:
        texts = self.sample.texts(self.sample.train_rows)
        return [texts[row] for row in evenly_spaced(len(texts), TIMED)]

    def _of(self, rows: Any) -> tuple[list[str], npt.NDArray[np.float32]]:
        store, rows = self.taught[0].store, np.asarray(rows)
        numbers = store.rows(self.sample.teacher_keys[rows])
        rows, numbers = rows[numbers >= 0], numbers[numbers >= 0]
        return self.sample.texts(rows), store.read(numbers)


def measure_teacher(bench: MeasuringData) -> Measured:
    """The row that the others are compared with."""
    teacher = bench.taught[0].teacher
    card, timed = teacher.card, dict[str, Any]()
    if teacher.can.local:
        timed = speed(teacher.model or teacher, bench.timed(), singles=30, seconds=SECONDS)
    parameters = None if card.parameters is None else card.parameters - unused_pooler(teacher.model)
    return Measured(card.name, parameters, card.size_bytes, timed, 1.0)


def measure(candidate: Candidate, bench: MeasuringData) -> Measured:
    """Make a candidate, and measure it as it would ship."""
    section, student = started(candidate, bench)
    encoder = CachedEncoder(student, name=candidate.name)
    texts, wanted = bench.train()
    free = free_map(encoder(texts), wanted)
    measured = shipped(candidate, section, student, bench, free)
    held, vectors = bench.held_out()
    measured.agreement = float(agreement(vectors, encoder(held), free)["cosine"])
    measured.kept["free"] = {
        "agreement": measured.agreement,
        **_tasks_kept(f"{candidate.name}, free", RidgeMapped(encoder, free), bench),
    }
    measured.kept["untrained"] = _tasks_kept(f"{candidate.name}, untrained", encoder, bench)
    if bench.probe_steps:
        measured.kept["probe"] = _probe(candidate.name, student, bench)
    return measured


def started(candidate: Candidate, bench: MeasuringData) -> tuple[StudentSection, SentenceTransformer]:
    """The section of a candidate, and the untrained student; a method that the recipe names says now if it cannot train
    it.
    """
    recipe = bench.recipe
    section = candidate.section(recipe.student or StudentSection(auto=AutoSection()))
    student = make_student(section, recipe.teachers, bench.whole, recipe.training.seed, bench.seen)
    if not recipe.method.is_open:
        info = StudentTap(student).info
        if recipe.task is not None:
            info = describe(info, build_task(recipe.task, info.width, bench.whole.labels, bench.whole.label_names))
        recipe.method.build().needs(info, [teacher_info(each.teacher) for each in bench.taught])
    return section, student


def shipped(
    candidate: Candidate,
    section: StudentSection,
    student: SentenceTransformer,
    bench: MeasuringData,
    free: npt.NDArray[Any] | None,
) -> Measured:
    """Size and speed of the folder that people would load; with a map, it is put behind where the section wants it."""
    head = None
    if section.space == "teacher" and free is not None:
        head = torch.nn.Linear(free.shape[0], free.shape[1], bias=False)
        head.weight.data = torch.from_numpy(np.ascontiguousarray(free.T))
    with tempfile.TemporaryDirectory(prefix="distilvec-plan-") as place:
        folder = Path(place) / "student"
        ship(student, folder, teacher_map=head)
        opened = load_student(str(folder))
        timed = speed(opened, bench.timed(), singles=30, seconds=SECONDS)
        measured = Measured(candidate.name, parameters(opened), folder_bytes(folder), timed)
    measured.section = section.model_dump(exclude_defaults=True)
    return measured


def _tasks_kept(name: str, model: Any, bench: MeasuringData) -> dict[str, float]:
    """Group -> fraction of the teacher's average over its tasks."""
    if bench.judged is None:
        return {}
    own = judge({name: model}, bench.tasks).averages(name)
    teacher = bench.judged.averages(bench.taught[0].teacher.card.name)
    return {group: own[group] / teacher[group] for group in GROUPS if can_be_kept(teacher.get(group, 0))}


def _probe(name: str, student: SentenceTransformer, bench: MeasuringData) -> dict[str, float]:
    """Return what a short training with `cosine` on the sample makes of it; the student is changed."""
    training = {"max_steps": bench.probe_steps, "batch_size": PROBE_BATCH, "seed": bench.recipe.training.seed}
    optimizer = OptimizerSection(lr=PROBE_LR, heads_lr=PROBE_LR)
    method = build_method("cosine", {})
    short_training(student, method, bench.sample, bench.taught[:1], training, optimizer)
    encoder = CachedEncoder(student, name=name)
    held, vectors = bench.held_out()
    head = method.teacher_map()
    assert head is not None
    reached = float(agreement(vectors, encoder(held), linear_map(head))["cosine"])
    return {"agreement": reached, **_tasks_kept(f"{name}, probe", encoder, bench)}
