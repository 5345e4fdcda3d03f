"""Any method, and beside it a second one that learns from pairs or scores.

    L = L_method + weight * L_beside

So a student can keep its teacher's vectors and a scorer's order of documents at once. The batch is the second one's: an
anchor with all its documents; the first one sees these rows as items. Where an anchor has fewer documents than others,
its positive fills the gap, and counts once there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from distilvec.errors import DistilvecError
from distilvec.methods.base import (
    Batch,
    Method,
    Needs,
    Options,
    Sample,
    StudentInfo,
    StudentOutput,
    TeacherInfo,
    TeacherSignals,
    Term,
)


class Beside(Method):
    """Holds both methods. Terms: the first's, and the second's.

    Args:
        method: what is trained in the first place; all that ships is its own.
        other: learns from pairs without looking at the teachers.
        weight: of the other's terms, > 0.

    Raises:
        DistilvecError: the other method looks at teachers, or learns from single texts.
    """

    name = "beside"
    summary = "two methods at once"
    paper = "none"
    Options = Options
    trains_on_pairs = True

    def __init__(self, method: Method, other: Method, weight: float) -> None:
        super().__init__(method.options)
        if other.needs_teacher or not other.trains_on_pairs:
            raise DistilvecError(
                f"{other.name} cannot stand beside another method",
                where="method.beside",
                remedy="Choose one that learns from pairs or scores: margin_mse, score_kl or mnrl.",
            )
        self.method, self.other, self.weight = method, other, weight
        self.inside = method.inside

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        needs, other = self.method.needs(student, teachers), self.other.needs(student, teachers)
        if needs.student.views > 1:
            raise DistilvecError(
                f"{self.method.name} reads each text {needs.student.views} times, {self.other.name} once",
                where="method.beside",
                remedy="Choose a method with one view (cosine, mse, leaf), or leave beside out.",
            )
        several = None if None in (needs.companions, other.companions) else max(needs.companions, other.companions)  # type: ignore[type-var]
        return needs._replace(
            coupled=needs.coupled or other.coupled,
            companions=several,
            scores=needs.scores or other.scores,
            states=True,
            sentence=needs.sentence or other.sentence,
        )

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.method.build(student, teachers, sample)
        # What ships with the student stands behind it when the other one sees it.
        pairs = [(self.method.attached(output), batch) for output, batch in sample.pairs]
        self.other.build(student, teachers, replace(sample, student=self.method.attached(sample.student), pairs=pairs))

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        self.method.lookup = self.lookup
        repeated = _repeated(batch)
        terms = {name: _without(term, repeated) for name, term in self.method(student, teachers, batch).items()}
        others = self.other(student, teachers, batch)
        return {**terms, **{name: term._replace(weight=self.weight * term.weight) for name, term in others.items()}}

    def attach(self, student: Any) -> None:
        self.method.attach(student)

    def attached(self, student: StudentOutput) -> StudentOutput:
        return self.method.attached(student)

    def rates(self) -> dict[nn.Module, float]:
        return self.method.rates()

    def keep(self, folder: Path) -> None:
        self.method.keep(folder)

    def teacher_map(self) -> nn.Linear | None:
        return self.method.teacher_map()

    def trains_student(self, progress: float) -> bool:
        return self.method.trains_student(progress)


def _repeated(batch: Batch) -> Tensor | None:
    """bool [B], the rows that repeat an earlier one of their own group; None where an anchor has one document.

    Whether it is None is the same for all batches of a training: of a term, every item counts in all or in none.
    """
    assert batch.group is not None and batch.role is not None
    if len(batch.role) <= 2 * int(batch.role.eq(0).sum()):
        return None
    return (batch.duplicate & (batch.group[:, None] == batch.group)).tril(-1).any(1)


def _without(term: Term, repeated: Tensor | None) -> Term:
    """A term in whose mean these rows do not count."""
    if repeated is None or term.values.dim() == 0:
        return term
    counted = torch.ones_like(term.values, dtype=torch.bool) if term.counted is None else term.counted
    return term._replace(counted=counted.masked_fill(repeated, 0))
