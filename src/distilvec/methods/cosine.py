"""Cosine distance between the projected student embedding and the teacher's vector.

    L = mean_i 1 - cos(e_i W, t_i)

The plainest distillation there is. Several teachers have a W each and count the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from torch import nn

from distilvec.functional import cosine_distance
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


class CosineOptions(Options):
    init: parts.Init = Field("ridge", description=parts.INIT)


class Cosine(Method):
    """Terms: `cosine` [V, B] (`cosine:TEACHER` where there are several)."""

    name = "cosine"
    summary = "cosine distance to the teacher's vector after a linear map"
    paper = "baseline; as EmbedDistillLoss in sentence-transformers"
    Options = CosineOptions

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        return Needs()

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.heads = parts.teacher_heads(student, teachers, sample, self.options.init)
        self.terms, self.shares = parts.names("cosine", teachers), parts.shares(teachers)

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        terms = {}
        for name, share, head, signals in zip(self.terms, self.shares, self.heads, teachers, strict=True):
            values = cosine_distance(head(student.embedding), parts.sentence(signals))
            terms[name] = parts.counted(values, signals.present, share)
        return terms

    def teacher_map(self) -> nn.Linear | None:
        return parts.only_map(self.heads)
