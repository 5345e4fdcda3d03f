"""Cosine distance between the projected student embedding and the teacher's vector.

    L = mean_i 1 - cos(e_i W, t_i)

The plainest distillation there is. Several teachers have a W each. Without a map W is the identity.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from torch import Tensor, nn

from distilvec.errors import DistilvecError
from distilvec.functional import cosine_distance
from distilvec.methods.base import Needs, Sample, StudentInfo, TeacherInfo
from distilvec.methods.projected import ProjectedMethod, ProjectedOptions
from distilvec.modules.projection import identity_map


class CosineOptions(ProjectedOptions):
    map: bool = Field(
        True, description="false: no map, the student is as wide as the teacher and lives in its space [S]"
    )


class Cosine(ProjectedMethod):
    """Terms: `cosine` [V, B] (`cosine:TEACHER` where there are several)."""

    name = "cosine"
    summary = "cosine distance to the teacher's vector after a linear map"
    paper = "baseline; as EmbedDistillLoss in sentence-transformers"
    Options = CosineOptions

    def compare(self, projected: Tensor, target: Tensor) -> Tensor:
        return cosine_distance(projected, target)

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        other = next((teacher for teacher in teachers if teacher.width != student.width), None)
        if not self.options.map and other is not None:
            raise DistilvecError(
                f"without a map the vectors have to be equally wide, and they have {other.width} and {student.width} "
                "numbers",
                where=f"teacher {other.name}",
                remedy="Leave method.map out, or cut the student out of this teacher (shrink).",
            )
        return super().needs(student, teachers)

    def maps(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> nn.ModuleList:
        if self.options.map:
            return super().maps(student, teachers, sample)
        self.width = student.width
        return nn.ModuleList(nn.Identity() for _ in teachers)

    def teacher_map(self) -> nn.Linear | None:
        if not self.options.map and len(self.heads) == 1:
            return identity_map(self.width)
        return super().teacher_map()
