"""Mean squared error between the projected student embedding and the teacher's vector.

    raw:   L = mean_i ||e_i W - t_i||^2 / D
    unit:  L = mean_i ||n(e_i W) - n(t_i)||^2 / D = 2 (1 - cos) / D,  n(x) = x / ||x||

Several teachers have a W each and count the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from torch import nn

from distilvec.functional import normalize
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


class MSEOptions(Options):
    vectors: Literal["unit", "raw"] = Field(
        "unit", description="compare unit vectors, whose error retrieval by cosine sees, or raw ones [S]"
    )
    init: parts.Init = Field("ridge", description=parts.INIT)


class MSE(Method):
    """Terms: `mse` [V, B] (`mse:TEACHER` where there are several)."""

    name = "mse"
    summary = "squared error to the teacher's vector after a linear map"
    paper = "baseline; Reimers and Gurevych 2020 (arXiv:2004.09813)"
    Options = MSEOptions

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        return Needs()

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.heads = parts.teacher_heads(student, teachers, sample, self.options.init)
        self.terms, self.shares = parts.names("mse", teachers), parts.shares(teachers)

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        terms = {}
        for name, share, head, signals in zip(self.terms, self.shares, self.heads, teachers, strict=True):
            projected, target = head(student.embedding), parts.sentence(signals)
            if self.options.vectors == "unit":
                projected, target = normalize(projected), normalize(target)
            values = (projected - target).square().mean(-1)
            terms[name] = parts.counted(values, signals.present, share)
        return terms

    def teacher_map(self) -> nn.Linear | None:
        return parts.only_map(self.heads)
