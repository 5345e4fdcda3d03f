"""Multiple-negatives ranking: each anchor finds its positive among all positives (and negatives) of the batch.

    L = mean_i -log exp(cos(a_i, p_i) / tau) / sum_c exp(cos(a_i, c) / tau)

over the candidates c: the positives of the batch and, with `hard_negatives`, all the negatives that its triplets bring.
This is ordinary fine-tuning on pairs and triplets, and no teacher is needed. A candidate that is the anchor or its
positive once more, or the positive of an equal anchor, is no negative; one that stands in the batch twice counts once.
With `teacher_margin` teachers say which negatives are none: a candidate c is left out where

    t(a_i, c) > t(a_i, p_i) - margin

t being the cosine of a teacher's vectors, of several their weighted mean.

Source: Henderson et al. 2017 (arXiv:1705.00652), eq. 4; in this form the fine-tuning of the paper on spherical
aggregation, eq. 12. The teacher's say: Solatorio 2024 (arXiv:2402.16829), between anchors and documents only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from distilvec.errors import DistilvecError
from distilvec.functional import info_nce
from distilvec.methods import parts
from distilvec.methods.base import Batch, Method, Needs, Options, Sample, Term
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals


class MNRLOptions(Options):
    presets: ClassVar[dict[str, dict[str, Any]]] = {"paper": {"hard_negatives": False}}

    temperature: float = Field(0.05, gt=0, description="tau [P, C]")
    hard_negatives: bool = Field(
        True, description="triplets' negatives are candidates of every anchor [C, S]; in-batch positives alone [P]"
    )
    teacher_margin: float | None = Field(
        None,
        ge=-2,
        le=2,
        description="candidates that the teachers find nearer to the anchor than its positive less this are left out; "
        "null = the teachers are not asked [S]",
    )


class MNRL(Method):
    """Terms: `ranking` [B], counted at the anchors."""

    name = "mnrl"
    summary = "fine-tuning on pairs and triplets: anchors find their positives in the batch; no teacher"
    paper = "Henderson et al. 2017, Efficient natural language response suggestion (arXiv:1705.00652)"
    needs_teacher = False
    Options = MNRLOptions
    trains_on_pairs = True

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        asked = self.options.teacher_margin is not None
        if asked and not teachers:
            raise DistilvecError(
                "a teacher is to say which negatives are none, and there is no teacher",
                where="mnrl, teacher_margin",
                remedy="Name one in teachers, or leave teacher_margin out.",
            )
        return Needs(sentence=asked, coupled=True, companions=None if self.options.hard_negatives else 1)

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.weights = [teacher.weight for teacher in teachers]

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        assert batch.group is not None and batch.role is not None
        embedding, margin = student.embedding[0], self.options.teacher_margin
        guide = None
        if margin is not None:
            cosines, known = parts.mean_relations(teachers, embedding.new_tensor(self.weights))
            guide = cosines.where(known, torch.nan)
        values = ranking_loss(
            embedding,
            batch.group,
            batch.role,
            batch.duplicate,
            self.options.temperature,
            guide,
            margin or 0.0,
        )
        anchors = batch.role.eq(0)
        return {"ranking": Term(values.new_zeros(len(anchors)).masked_scatter(anchors, values), anchors)}


def ranking_loss(
    embedding: Tensor,
    group: Tensor,
    role: Tensor,
    duplicate: Tensor,
    temperature: float,
    guide: Tensor | None = None,
    margin: float = 0.0,
) -> Tensor:
    """-log softmax over the candidates of cos(anchor, candidate) / temperature, at each anchor's positive.

    Args:
        embedding: [N, d], rows of a batch in any order; every anchor's positive is among them.
        group: int [N], equal for the rows of one pair or triplet.
        role: int [N], anchor 0, positive 1, negative 2.
        duplicate: bool [N, N], True where two rows are equal items.
        temperature: > 0.
        guide: [N, N], teachers' similarities; a candidate above the anchor's positive less `margin` is no negative.
            NaN = they say nothing.
        margin: of `guide`.

    Returns:
        [A], >= 0, one value for each of the A anchors in their order.
    """
    anchors, candidates = role.eq(0).nonzero().squeeze(1), role.ne(0).nonzero().squeeze(1)
    together = group[anchors, None] == group[None, candidates]  # [A, C]
    positive = role[candidates].eq(1)
    targets = (together & positive).long().argmax(1)
    owners = anchors[together.long().argmax(0)]  # each candidate's own anchor
    equal = duplicate[anchors[:, None], candidates] | duplicate[candidates[targets][:, None], candidates]
    alike = duplicate[candidates[:, None], candidates]
    answers = (duplicate[anchors[:, None], owners] & positive).float() @ alike.float() > 0  # wherever its text stands
    again = alike.tril(-1).any(1)
    exclude = equal | answers | again
    if guide is not None:
        seen = guide[anchors[:, None], candidates]
        exclude = exclude | (seen > seen.gather(1, targets[:, None]) - margin)
    return info_nce(embedding[anchors], embedding[candidates], temperature, targets, exclude)
