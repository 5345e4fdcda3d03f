"""Methods that look at one teacher at a time; most compare the student's vector, behind a linear map, with its vector.

    L = sum_k w_k mean_{i: teacher k has i} compare(e_i W_k, t_ik)

Several teachers have a map each and count by their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

from distilvec.methods import parts
from distilvec.methods.base import Batch, Method, Needs, Options, Sample, Term
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals


class PerTeacher(Method):
    """A method that implements `terms_of`: terms of one teacher, which count by the teachers' weights.

    Where there are several teachers, terms are called `TERM:TEACHER`.

    Attributes:
        coupled: see `Needs`.
    """

    coupled: ClassVar[bool] = False

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        return Needs(coupled=self.coupled)

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.suffixes, self.shares = parts.names("", teachers), parts.shares(teachers)

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        terms = {}
        for index, (suffix, share, signals) in enumerate(zip(self.suffixes, self.shares, teachers, strict=True)):
            for name, term in self.terms_of(index, student, signals, batch).items():
                terms[name + suffix] = term._replace(weight=share * term.weight)
        return terms

    def terms_of(self, index: int, student: StudentOutput, signals: TeacherSignals, batch: Batch) -> dict[str, Term]:
        """The terms of teacher `index`, as if there was no other."""
        raise NotImplementedError


class ProjectedOptions(Options):
    """Options that every such method has."""

    init: parts.Init = Field("ridge", description=parts.INIT)


class ProjectedMethod(PerTeacher):
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

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        super().build(student, teachers, sample)
        self.heads = self.maps(student, teachers, sample)

    def maps(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> nn.ModuleList:
        """One module per teacher, [..., d] -> [..., D]. Default: linear maps that start as `init` says."""
        return parts.teacher_heads(teachers, sample, self.options.init)

    def terms_of(self, index: int, student: StudentOutput, signals: TeacherSignals, batch: Batch) -> dict[str, Term]:
        projected, target = self.heads[index](student.embedding), parts.sentence(signals)
        terms = {self.name: parts.counted(self.compare(projected, target), signals.present, 1.0)}
        for name, values in self.watch(projected.detach(), target).items():
            terms[name] = parts.counted(values, signals.present, 0.0)
        return terms

    def teacher_map(self) -> nn.Linear | None:
        return parts.only_map(self.heads)
