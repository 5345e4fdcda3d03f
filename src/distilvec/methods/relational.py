"""Relational distillation: the student's similarities inside a batch follow the teacher's.

    gap:            L = mean_ij (cos(e_i, e_j) - cos(t_i, t_j))^2
    cross_entropy:  L = mean_i -sum_j p^t_ij log p^s_ij,  p_ij = softmax over j != i of cos / tau

No map into the teacher's space is needed, so the student's width is free. Equal items are left out of the softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from distilvec.functional import relation_matrix
from distilvec.methods import parts
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


class RelationalOptions(Options):
    form: Literal["gap", "cross_entropy"] = Field(
        "gap", description="squared differences of the similarities, or cross-entropy of their softmax rows [S]"
    )
    temperature: float = Field(0.05, gt=0, description="of the softmax rows, on both sides [S]")


class Relational(Method):
    """Terms: `relational` [V, B] row means (`relational:TEACHER` where there are several)."""

    name = "relational"
    summary = "similarities within the batch follow the teacher's; no projection"
    paper = "Park et al. 2019, RKD (arXiv:1904.05068); Fang et al. 2021, SEED (arXiv:2101.04731)"
    Options = RelationalOptions

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        return Needs(coupled=True)

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.terms, self.shares = parts.names("relational", teachers), parts.shares(teachers)

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        relations = relation_matrix(student.embedding)  # [V, B, B]
        terms = {}
        for name, share, signals in zip(self.terms, self.shares, teachers, strict=True):
            target = relation_matrix(parts.sentence(signals))
            if self.options.form == "gap":
                values = parts.masked_mean((relations - target).square(), signals.present)
                rows = signals.present
            else:
                allowed = signals.present & ~batch.duplicate
                tau = self.options.temperature
                values = parts.row_cross_entropy(relations / tau, target / tau, allowed)
                rows = signals.present & allowed.any(-1)
            terms[name] = parts.counted(values, rows, share)
        return terms
