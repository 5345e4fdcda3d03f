"""The best student within a budget: candidates that fit, short trainings, and what a whole one will make of them.

The trainings are successive halving (Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and
hyperparameter optimization"): all candidates are trained for a little and for twice as long, the better half for twice
as long again, and so on. Two trainings of each say how fast its error falls. Every round costs about as much as the one
before. Each training starts from the untrained student and runs its whole schedule, so that what it reaches is
comparable with a longer one's end.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.choosing.budget import Budget, shapes
from distilvec.choosing.candidates import Candidate, attempted
from distilvec.choosing.choose import planned, planned_steps, source_of, step_texts
from distilvec.choosing.measuring import Measured, MeasuringData, measure_teacher, shipped, started
from distilvec.choosing.prediction import Prediction, extrapolate, powers
from distilvec.choosing.probe import Stored
from distilvec.choosing.sample import counted
from distilvec.choosing.workers import Lesson, Trainings, Trial
from distilvec.errors import DistilvecError
from distilvec.methods.base import Method
from distilvec.methods.table import build_method
from distilvec.progress import Ticker
from distilvec.recipe import Recipe
from distilvec.report.grid import Cell, Grid
from distilvec.words import millions

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
#: Texts that are encoded for it: as many as the second round reads, each once.
SAMPLE = 30_000
#: Steps of the first round, unless the training is short: a share of its steps. After fewer, students that start well
#: seem to be better than those that learn well.
STEPS, SHARE = 200, 1 / 8
#: Candidates that the last round is held between.
FEWEST = 3
#: Times that a short training reads each text of a sample at most. A student that reads some texts of a large corpus
#: again and again falls behind one that has read as many different ones.
READINGS = 1.5


@dataclass
class Compiled:
    """All candidates that fit a budget, with what short trainings made of them.

    Attributes:
        budget: what they may be at most.
        rows: the candidates, from few parameters to many; `curve` has the trainings of each.
        steps: of the training that is to come.
        notes: candidates that do not fit or cannot be made.
    """

    budget: Budget
    teacher: Measured
    rows: list[Measured]
    texts: int
    steps: int
    notes: list[str] = field(default_factory=list)

    @property
    def rounds(self) -> list[int]:
        """Steps of the short trainings."""
        return sorted({steps for row in self.rows for steps in row.curve if steps})

    def prediction(self, row: Measured) -> Prediction:
        """Agreement after the training that is to come, see `extrapolate`; tables lend powers to tables alone."""
        alike = [other.curve for other in self.rows if _is_table(other) == _is_table(row)]
        return extrapolate(row.curve, self.steps, powers(alike))

    @property
    def best(self) -> Measured:
        """The most promising of those that came to the last round."""
        last = [row for row in self.rows if self.rounds[-1] in row.curve]
        return max(last, key=lambda row: self.prediction(row).middle)

    def frontier(self) -> list[Measured]:
        """Candidates of which none is both faster and predicted to be better, from fast to slow."""
        frontier: list[Measured] = []
        for row in sorted(self.rows, key=lambda row: (row.speed["latency_p50_ms"], -self.prediction(row).middle)):
            if not frontier or self.prediction(row).middle > self.prediction(frontier[-1]).middle:
                frontier.append(row)
        return frontier

    def verdict(self) -> str:
        best = self.best
        others = [row for row in self.rows if row is not best and self.prediction(row).high > self.prediction(best).low]
        close = f"; {len(others)} others cannot be told from it" if others else "; no other comes near"
        return f"Best candidate within {self.budget}: {best.name}, order {self.prediction(best)} after training{close}."

    def how(self) -> list[str]:
        rounds = ", ".join(map(str, self.rounds))
        return [
            "order: Spearman's rank correlation between the student's and the teacher's cosines on held-out texts, in "
            f"percent; before training and after {rounds} steps on {self.texts:,} texts with the recipe's "
            "method (cosine if that looks inside the teacher). The later rounds had the better half of the candidates.",
            f"predicted: order after the {self.steps:,} steps of this recipe, extrapolated from the rounds with a "
            "power law; its exponent is uncertain by a quarter, which gives the range. No test set was used.",
            *self.notes,
        ]

    def grid(self) -> Grid:
        """One row per model, the best first."""
        header = ["student", "parameters", "on disk", "texts/s", "p50 / p95 ms"]
        header += ["order: start", *(f"{steps} steps" for steps in self.rounds), "predicted"]
        ranked = sorted(self.rows, key=lambda row: (-max(row.curve), -self.prediction(row).middle))
        rows = [[*self.teacher.cells(), *[""] * (len(self.rounds) + 2)]]
        for row in ranked:
            reached = [f"{100 * row.curve[steps]:.1f}" if steps in row.curve else "" for steps in (0, *self.rounds)]
            rows.append([*row.cells(), *reached, str(self.prediction(row))])
        return Grid(header, [[Cell(text) for text in row] for row in rows], [])

    def text(self) -> str:
        return "\n".join([self.grid().text(), "", self.verdict(), *self.how()])

    def to_dict(self) -> dict[str, Any]:
        candidates = [asdict(row) | {"predicted": asdict(self.prediction(row))} for row in self.rows]
        return asdict(self) | {"rows": candidates, "chosen": self.best.name, "verdict": self.verdict()}

    def figure(self) -> Figure:
        """Time of a text against what is predicted, with the frontier. Call inside `report.plots.style()`."""
        from distilvec.report.plots import MUTED, ROLE_COLOURS, canvas

        figure = canvas(7.2, 4.2)
        axes = figure.subplots()
        for row in self.rows:
            predicted, chosen = self.prediction(row), row is self.best
            place, colour = row.speed["latency_p50_ms"], ROLE_COLOURS["student" if chosen else "untrained"]
            axes.plot([place, place], [100 * predicted.low, 100 * predicted.high], color=colour, linewidth=1)
            axes.plot([place], [100 * predicted.middle], "o" if chosen else "s", color=colour)
        for row in {id(row): row for row in [*self.frontier(), self.best]}.values():
            place = row.speed["latency_p50_ms"], 100 * self.prediction(row).middle
            label = f"{row.name}, {millions(row.parameters)}"
            axes.annotate(label, place, (6, 4), textcoords="offset points", fontsize=7)
        line = [(row.speed["latency_p50_ms"], 100 * self.prediction(row).middle) for row in self.frontier()]
        axes.plot(*zip(*line, strict=True), color=MUTED, linewidth=0.8, linestyle="--")
        axes.set_xlabel("milliseconds for a text, median")
        axes.set_ylabel("predicted order, percent")
        return figure


def _is_table(row: Measured) -> bool:
    return bool(row.section and row.section.get("static"))


def compile_budget(recipe: Recipe, budget: Budget, *, sample: int = SAMPLE, steps: int = 0) -> Compiled:
    """Find the best student within a budget, by short trainings of those that fit.

    The teachers encode a sample of the corpus, once, into the stores that a run of the recipe goes on with. Nothing is
    judged on tasks: agreement on held-out texts decides.

    Args:
        budget: what the student may be at most.
        sample: texts that are encoded and trained on, at least 100.
        steps: of the first round of trainings; see `halve`. Batches and rates are the recipe's. 0: 200, or an eighth
            of those of a training shorter than 1,600.

    Raises:
        DistilvecError: nothing fits, or the items are no texts.
    """
    of, source = source_of(recipe)
    if of is None or source is None:
        raise DistilvecError(
            "a budget is met by cutting a model, and the teachers are none",
            where="student.auto.of",
            remedy="Name a text encoder there.",
        )
    recipe, corpus, few, taught = planned(recipe, sample)
    length = recipe.student.max_length if recipe.student else None
    bench = MeasuringData(recipe, counted(corpus), few, taught, [], None)
    mapped = _mapped(bench)
    wanted = shapes(of, source, budget.most, length, mapped)
    students, rows, notes = _fitting(wanted, bench, budget, mapped)
    to_come, teacher = planned_steps(recipe, corpus), measure_teacher(bench)
    failed = halve(students, rows, bench, steps or max(1, min(STEPS, int(SHARE * to_come))), to_come)
    notes += [f"{name}: left out, {error}" for name, error in failed.items()]
    rows = sorted((row for row in rows if row.name not in failed), key=lambda row: row.parameters or 0)
    return Compiled(budget, teacher, rows, len(few.train_rows), to_come, notes)


def _mapped(bench: MeasuringData) -> int:
    """Numbers of a teacher's vector where a map to it will ship behind the student, else 0."""
    recipe = bench.recipe
    space = None if recipe.student is None else recipe.student.space
    unmapped = any(each.options.get("map") is False for each in recipe.method.root)
    return 0 if space != "teacher" or unmapped else bench.taught[0].info.width


def _fitting(
    wanted: Sequence[Candidate], bench: MeasuringData, budget: Budget, mapped: int
) -> tuple[list[SentenceTransformer], list[Measured], list[str]]:
    """The candidates that can be made and fit, untrained, and why the others do not."""

    def fitting(candidate: Candidate) -> tuple[SentenceTransformer, Measured]:
        section, student = started(candidate, bench)
        free = np.zeros((student.get_embedding_dimension() or 0, mapped), np.float32) if mapped else None
        row = shipped(candidate, section, student, bench, free)
        if budget.latency is not None and row.speed["latency_p50_ms"] > budget.latency:
            raise DistilvecError(f"a text takes {row.speed['latency_p50_ms']:.1f} ms")
        if budget.most is not None and (row.parameters or 0) > budget.most:
            raise DistilvecError(f"it has {millions(row.parameters)} parameters")
        return student, row

    made, notes = attempted(wanted, "making candidates", fitting)
    return [student for student, _ in made], [row for _, row in made], notes


def probe_method(recipe: Recipe, width: int, teacher: int) -> Method:
    """Return the method of the short trainings: the recipe's if it learns from sentence vectors alone, else `cosine`,
    without a map if student and teacher are equally wide.

    Args:
        width, teacher: of the vectors of student and teacher.
    """
    first = recipe.method.first
    method = None if recipe.method.is_open else build_method(first.name, first.options)
    if method is not None and method.needs_teacher and not method.inside:
        return method
    return build_method("cosine", {"map": width != teacher})


def halve(
    students: Sequence[SentenceTransformer], rows: Sequence[Measured], bench: MeasuringData, steps: int, to_come: int
) -> dict[str, DistilvecError]:
    """Train candidates in rounds, and keep in each row's `curve` what it reached.

    Args:
        students: untrained, and left so.
        rows: one for each of them.
        steps: of the first round, which all go through; doubled in each further one. All go through the second too;
            the last one is held between three, or another would read the texts of a sample too often, or be longer
            than half of the training that is to come.
        to_come: steps of that.

    Returns:
        Names of the candidates whose training failed, each with the error.
    """
    teacher = bench.taught[0]
    lesson = Lesson(
        bench.sample,
        Stored(teacher.info, teacher.store),
        *bench.held_out(),
        bench.recipe.training.model_dump(),
        bench.recipe.optimizer,
        to_come,
    )
    failed: dict[str, DistilvecError] = {}
    probes = {}
    for row, student in zip(rows, students, strict=True):
        row.curve[0] = lesson.order(student, row.name)
        width = student.get_embedding_dimension() or 0
        probes[row.name] = Trial(row.name, student, probe_method(bench.recipe, width, teacher.info.width))
    there, taken = len(bench.whole.train_rows), len(bench.sample.train_rows)
    # No limit where the texts are all that there are.
    read = math.inf if taken >= there else READINGS * taken / step_texts(bench.recipe)
    left, first, most = list(rows), steps, min(read, to_come / 2)
    with Trainings(lesson, list(probes.values())) as trainings:
        while True:
            reached = trainings.orders([probes[row.name] for row in left], steps)
            ticker = Ticker(f"training candidates for {steps} steps", "candidates", kept=False)
            ticker(0, len(left))
            for number, (row, value) in enumerate(zip(left, reached, strict=True), start=1):
                ticker(number, len(left))
                if isinstance(value, DistilvecError):
                    failed[row.name] = value
                    continue
                row.curve[steps] = value
                logger.info("%d steps, candidate %d of %d: %s: %.1f", steps, number, len(left), row.name, 100 * value)
            left = [row for row in left if row.name not in failed]
            if not left:
                raise next(iter(failed.values()))
            if steps > first and (len(left) <= FEWEST or 2 * steps > most):
                return failed
            if steps > first:
                left = sorted(left, key=lambda row: -row.curve[max(row.curve)])[: max(FEWEST, len(left) // 2)]
            steps *= 2
