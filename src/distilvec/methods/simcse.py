"""SimCSE: two dropout views of a text are each other's positive, the batch's other texts are negatives.

    L = mean_i -log exp(cos(e_i, e'_i) / tau) / sum_j exp(cos(e_i, e'_j) / tau)

No teacher is used; it is what unsupervised distillation has to beat. Source: Gao et al. 2021, eq. 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from distilvec.methods import parts
from distilvec.methods.base import Batch, Method, Needs, Options, Sample, Term, WantedOfStudent
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals


class SimCSEOptions(Options):
    presets: ClassVar[dict[str, dict[str, Any]]] = {"paper": {"mlp": True}, "code": {"mlp": True}}

    temperature: float = Field(0.05, gt=0, description="tau [P, C]")
    mlp: bool = Field(False, description="a tanh layer that exists in training only [P, C]; none [S]")


class SimCSE(Method):
    """Terms: `simcse` [B]."""

    name = "simcse"
    summary = "two dropout views attract, the batch repels; no teacher"
    paper = "Gao et al. 2021, SimCSE (arXiv:2104.08821)"
    needs_teacher = False
    Options = SimCSEOptions

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        return Needs(WantedOfStudent(views=2), sentence=False, coupled=True)

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.mlp = parts.tanh_layer(student.width, self.options.mlp)

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        embedding: Tensor = self.mlp(student.embedding)
        return {"simcse": parts.simcse(replace(student, embedding=embedding), batch, self.options.temperature, 1.0)}
