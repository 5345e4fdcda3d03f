"""SFT: the task alone, without distillation; what supervised distillation has to beat.

    L = task

The method adds no term: the Distiller computes the task's loss from the task head. Teachers may be given, so that the
same recipe serves all methods; they are not asked for anything.
"""

from __future__ import annotations

from collections.abc import Sequence

from distilvec.errors import DistilvecError
from distilvec.methods.base import Batch, Method, Needs, Term
from distilvec.methods.tokens.base import has_task
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals


class SFT(Method):
    """Terms: none."""

    name = "sft"
    summary = "the task's labels alone; no distillation"
    paper = "baseline: supervised fine-tuning"
    needs_teacher = False
    writes = True

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        if not has_task(student):
            raise DistilvecError(
                "sft trains on a task's labels alone, and there is no task",
                where=student.name,
                remedy="Add a task, or take simcse, which needs neither labels nor teacher.",
            )
        return Needs(sentence=False, states=False)

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        return {}
