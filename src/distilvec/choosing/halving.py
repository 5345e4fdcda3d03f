"""Successive halving: all candidates are trained for a little, the better half for twice as long, and so on.

Jamieson and Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter optimization". Every round
costs about as much as the one before. Each training starts from the untrained student and runs its whole schedule, so
that what it reaches is comparable with a longer one's end.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distilvec.choosing.measuring import Bench, Measured
from distilvec.choosing.probe import short_training
from distilvec.judging import CachedEncoder
from distilvec.judging.agreement import likeness
from distilvec.methods.base import Method
from distilvec.methods.table import HELD, build_method, resolve
from distilvec.recipe import Recipe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
#: Candidates that the last round is held between.
FEWEST = 3


def order(student: object, name: str, bench: Bench) -> float:
    """Spearman's correlation of the student's cosines with the teacher's over pairs of held-out texts."""
    held, vectors = bench.held_out()
    return likeness(vectors, CachedEncoder(student, name=name)(held))["similarity_spearman"]


def probe_method(recipe: Recipe, width: int, teacher: int) -> Method:
    """What candidates are trained with: the recipe's method where it names one that learns from sentence vectors alone,
    else `cosine`, without a map where student and teacher are equally wide.

    Args:
        width, teacher: of the vectors of student and teacher.
    """
    section = recipe.method
    cls = resolve(section.name)
    if "method" in recipe.model_fields_set and cls.needs_teacher and not cls.inside:
        options = {name: value for name, value in section.options.items() if name not in HELD}
        return build_method(section.name, options, section.matryoshka)
    return build_method("cosine", {"map": width != teacher})


def halve(students: Sequence[SentenceTransformer], rows: Sequence[Measured], bench: Bench, steps: int) -> None:
    """Train candidates in rounds, and keep in each row's `curve` what it reached.

    Args:
        students: untrained, and left so.
        rows: one for each of them.
        steps: of the first round; doubled in each further one.
    """
    left, training = list(rows), bench.recipe.training
    starts = {row.name: student for row, student in zip(rows, students, strict=True)}
    for row in rows:
        row.curve[0] = order(starts[row.name], row.name, bench)
    while left:
        for number, row in enumerate(left, start=1):
            logger.info("%d steps, candidate %d of %d: %s", steps, number, len(left), row.name)
            student = copy.deepcopy(starts[row.name])
            method = probe_method(bench.recipe, student.get_embedding_dimension() or 0, bench.taught[0].info.width)
            settings = training.model_dump() | {"max_steps": steps}
            short_training(student, method, bench.sample, bench.taught[:1], settings, bench.recipe.optimizer)
            row.curve[steps] = order(student, row.name, bench)
        if len(left) <= FEWEST:
            return
        left = sorted(left, key=lambda row: -row.curve[max(row.curve)])[: max(FEWEST, len(left) // 2)]
        steps *= 2
