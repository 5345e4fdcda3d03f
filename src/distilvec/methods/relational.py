"""Relational distillation: the student's similarities inside a batch follow the teacher's.

    gap:            L = mean_ij (cos(e_i, e_j) - cos(t_i, t_j))^2
    cross_entropy:  L = mean_i -sum_j p^t_ij log p^s_ij,  p_ij = softmax over j != i of cos / tau

No map into the teacher's space is needed, so the student's width is free. Equal items are left out of the softmax.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from distilvec.functional import relation_matrix
from distilvec.methods import parts
from distilvec.methods.base import Batch, Options, StudentOutput, TeacherSignals, Term
from distilvec.methods.projected import PerTeacher


class RelationalOptions(Options):
    form: Literal["gap", "cross_entropy"] = Field(
        "gap", description="squared differences of the similarities, or cross-entropy of their softmax rows [S]"
    )
    temperature: float = Field(0.05, gt=0, description="of the softmax rows, on both sides [S]")


class Relational(PerTeacher):
    """Terms: `relational` [V, B] row means (`relational:TEACHER` where there are several)."""

    name = "relational"
    summary = "similarities within the batch follow the teacher's; no projection"
    paper = "Park et al. 2019, RKD (arXiv:1904.05068); Fang et al. 2021, SEED (arXiv:2101.04731)"
    Options = RelationalOptions
    coupled = True

    def terms_of(self, index: int, student: StudentOutput, signals: TeacherSignals, batch: Batch) -> dict[str, Term]:
        relations, target = relation_matrix(student.embedding), relation_matrix(parts.sentence(signals))  # [V, B, B]
        rows = signals.present
        if self.options.form == "gap":
            values = parts.masked_mean((relations - target).square(), rows)
        else:
            allowed, tau = rows & ~batch.duplicate, self.options.temperature
            values = parts.row_cross_entropy(relations / tau, target / tau, allowed)
            rows = rows & allowed.any(-1)
        return {"relational": parts.counted(values, rows, 1.0)}
