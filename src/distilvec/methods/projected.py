"""Methods that compare the student's vector, behind a linear map into the teacher's space, with the teacher's vector.

    L = sum_k w_k mean_{i: teacher k has i} compare(e_i W_k, t_ik)

Several teachers have a map each and count by their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

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


class ProjectedOptions(Options):
    """Options that every such method has."""

    init: parts.Init = Field("ridge", description=parts.INIT)


class ProjectedMethod(Method):
    """A method that implements `compare`; its term has the method's name (`NAME:TEACHER` where there are several)."""

    Options: ClassVar[type[Options]] = ProjectedOptions

    def compare(self, projected: Tensor, target: Tensor) -> Tensor:
        """Measure how far the student is from the teacher, per item.

        Args:
            projected: [V, B, D], the student's vectors in the teacher's space.
            target: [B, D], the teacher's vectors; zeros where it has nothing, which do not count.

        Returns:
            [V, B].
        """
        raise NotImplementedError

    def watch(self, projected: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Further distances for the log, name -> [V, B], which have no part in the loss. Default: none."""
        return {}

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        return Needs()

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.heads = self.maps(student, teachers, sample)
        self.suffixes, self.shares = parts.names("", teachers), parts.shares(teachers)

    def maps(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> nn.ModuleList:
        """One module per teacher, [..., d] -> [..., D]. Default: linear maps that start as `init` says."""
        return parts.teacher_heads(student, teachers, sample, self.options.init)

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        terms = {}
        for suffix, share, head, signals in zip(self.suffixes, self.shares, self.heads, teachers, strict=True):
            projected, target = head(student.embedding), parts.sentence(signals)
            terms[self.name + suffix] = parts.counted(self.compare(projected, target), signals.present, share)
            for name, values in self.watch(projected.detach(), target).items():
                terms[name + suffix] = parts.counted(values, signals.present, 0.0)
        return terms

    def teacher_map(self) -> nn.Linear | None:
        return parts.only_map(self.heads)
