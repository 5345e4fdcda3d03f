"""LEAF: plain regression of the student's projected output on the teacher's vector, in the teacher's own space.

    L = mean_i ||e_i W - t_i||^2

Neither side is normalised inside the loss, so that the student's output is the teacher's vector, and the student's
queries work on the teacher's index: use it with `student.space: teacher`. Meant for a long schedule.
The training code is not published; the `paper` and `code` presets are the model cards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field
from torch import nn

from distilvec.functional import cosine_distance, normalize
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


class LeafOptions(Options):
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"unit_target": True, "init": "random"},
        "code": {"unit_target": True, "init": "random"},
    }

    unit_target: bool = Field(
        False, description="regress on the teacher's unit vector [P, C], or on the vector as it gives it [S]"
    )
    init: parts.Init = Field("ridge", description=parts.INIT)


class Leaf(Method):
    """Terms: `leaf` [V, B] and, for the log only, `cosine` [V, B] (`:TEACHER` behind where there are several)."""

    name = "leaf"
    summary = "regression in the teacher's own space; the student shares the teacher's index"
    paper = "LEAF, MongoDB 2025 (mdbr-leaf model cards)"
    Options = LeafOptions
    implied_space = "teacher"

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        return Needs()

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.heads = parts.teacher_heads(student, teachers, sample, self.options.init)
        self.terms = list(zip(parts.names("leaf", teachers), parts.names("cosine", teachers), strict=True))
        self.shares = parts.shares(teachers)

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        terms = {}
        for (name, cosine), share, head, signals in zip(self.terms, self.shares, self.heads, teachers, strict=True):
            projected, target = head(student.embedding), parts.sentence(signals)
            if self.options.unit_target:
                target = normalize(target)
            values = (projected - target).square().sum(-1)
            terms[name] = parts.counted(values, signals.present, share)
            distance = cosine_distance(projected.detach(), target)
            terms[cosine] = parts.counted(distance, signals.present, 0.0)
        return terms

    def teacher_map(self) -> nn.Linear | None:
        return parts.only_map(self.heads)
