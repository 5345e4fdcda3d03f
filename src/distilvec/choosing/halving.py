"""Successive halving: all candidates are trained for a little and for twice as long, the better half for twice as long
again, and so on. Two trainings of each say how fast its error falls.

Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter optimization". Every round
costs about as much as the one before. Each training starts from the untrained student and runs its whole schedule, so
that what it reaches is comparable with a longer one's end.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distilvec.choosing.choose import step_texts
from distilvec.choosing.measuring import Measured, MeasuringData
from distilvec.choosing.probe import Stored
from distilvec.choosing.workers import Lesson, Trainings, Trial
from distilvec.errors import DistilvecError
from distilvec.methods.base import Method
from distilvec.methods.table import build_method
from distilvec.progress import Ticker
from distilvec.recipe import Recipe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
#: Candidates that the last round is held between.
FEWEST = 3
#: Times that a short training reads each text of a sample at most. A student that reads some texts of a large corpus
#: again and again falls behind one that has read as many different ones.
READINGS = 1.5


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
    left, first, most = list(rows), steps, min(_most(bench), to_come / 2)
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


def _most(bench: MeasuringData) -> float:
    """Steps of a short training at most: no limit where the texts are all that there are."""
    there, taken = len(bench.whole.train_rows), len(bench.sample.train_rows)
    return math.inf if taken >= there else READINGS * taken / step_texts(bench.recipe)
