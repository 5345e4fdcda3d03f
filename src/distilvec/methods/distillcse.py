"""DistillCSE: SimCSE plus cross-entropy between the similarity rows of teacher and student.

    L = SimCSE + mean_i -sum_{j != i} p_ij log q_ij
    p_i = softmax(cos(t_i, t_j) / 0.0125),  q_i = softmax(cos(e_i, e_j) / 0.025)

Two remedies of the paper against an over-confident teacher: group-p shuffling (the student's entries are permuted
inside groups of neighbouring rank that hold p of the teacher's mass each) and logit averaging (several teachers'
cosines are averaged before the softmax). Equal items are left out of both parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from distilvec.functional import relation_matrix
from distilvec.methods import parts
from distilvec.methods.base import Batch, Method, Needs, Options, Sample, Term, WantedOfStudent
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals

#: Of the teacher's and of the student's rows (paper and code).
TEACHER_TEMPERATURE, STUDENT_TEMPERATURE = 0.0125, 0.025


class DistillCSEOptions(Options):
    #: Mass of a group by the teacher's rows [P, S] (tempered), or by a softmax of the cosines as they are [C] (raw).
    constants: ClassVar[dict[str, Any]] = {"grouping": "tempered"}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"mlp": True},
        "code": {"mlp": True, "grouping": "raw"},
    }

    simcse_weight: float = Field(1.0, ge=0, description="of SimCSE [P, C]; 0 leaves it out")
    temperature: float = Field(0.05, gt=0, description="of SimCSE [P, C]")
    group_p: float | None = Field(0.1, gt=0, lt=1, description="mass of a shuffled group [P, C]; null = none")
    mlp: bool = Field(False, description="a tanh layer that exists in training only [P, C]; none [S]")
    seed: int = Field(0, ge=0, description="of the shuffling [S]")


class DistillCSE(Method):
    """Terms: `simcse` [B], `rows` [B]."""

    name = "distillcse"
    summary = "SimCSE and cross-entropy of similarity rows, with shuffled groups and averaged teachers"
    paper = "Xu et al. 2023, DistillCSE (arXiv:2310.13499)"
    Options = DistillCSEOptions
    teacher_weights: Tensor

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        return Needs(WantedOfStudent(views=2 if self.options.simcse_weight else 1), coupled=True)

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.mlp = parts.tanh_layer(student.width, self.options.mlp)
        # [K], 1 where teachers count the same. Not saved: it follows from the recipe.
        self.register_buffer("teacher_weights", torch.tensor(parts.shares(teachers, len(teachers))), persistent=False)

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        options = self.options
        student = replace(student, embedding=self.mlp(student.embedding))
        terms = {}
        if options.simcse_weight:
            terms["simcse"] = parts.simcse(student, batch, options.temperature, options.simcse_weight)
        wanted, known = parts.mean_relations(teachers, self.teacher_weights)
        allowed = known & ~batch.duplicate
        relations = relation_matrix(student.embedding[0])
        if options.group_p is not None and self.training:
            relations, wanted, mask = self._shuffle(relations, wanted, allowed, batch)
        else:
            mask = allowed
        values = parts.row_cross_entropy(relations / STUDENT_TEMPERATURE, wanted / TEACHER_TEMPERATURE, mask)
        terms["rows"] = parts.counted(values, allowed.any(-1), 1.0)
        return terms

    def _shuffle(
        self, relations: Tensor, wanted: Tensor, allowed: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rows sorted by the teacher's similarity, the student's entries permuted inside each group.

        An entry's group is floor(mass of the entries before it / p).
        """
        temperature = TEACHER_TEMPERATURE if self.options.fixed.grouping == "tempered" else 1.0
        mass = parts.masked_softmax(wanted / temperature, allowed)
        order = wanted.masked_fill(~allowed, -2.0).argsort(dim=-1, descending=True)  # no cosine is below -1
        mass, allowed = mass.gather(-1, order), allowed.gather(-1, order)
        group = ((mass.cumsum(-1) - mass) / self.options.group_p).floor().masked_fill(~allowed, 1e4)
        generator = parts.batch_generator(batch, self.options.seed)
        jitter = torch.rand(group.shape, generator=generator).to(group.device)
        permuted = order.gather(-1, (group + jitter).argsort(dim=-1))
        return relations.gather(-1, permuted), wanted.gather(-1, order), allowed
