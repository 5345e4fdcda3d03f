"""Binary cross-entropy with a scorer's soft answers: how likely a document answers the query, by itself.

    L = mean over documents of -(σ(s) log σ(s') + (1 - σ(s)) log(1 - σ(s')))

s' is the number of a student that is a cross-encoder, s the scorer's, taken for log-odds. Negatives are not needed.

Source: Hinton et al. 2015 (arXiv:1503.02531), the cross-entropy with soft targets of section 2, of two classes at
temperature 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn.functional import binary_cross_entropy_with_logits

from distilvec.errors import DistilvecError
from distilvec.methods.base import Batch, Method, Needs, Term
from distilvec.methods.score_parts import NUMBER, scored
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals


class ScoreBCE(Method):
    """Terms: `answers` [B], counted at the documents."""

    name = "score_bce"
    summary = "a scorer's answer to whether a document is right, for a student that is a cross-encoder"
    paper = "Hinton et al. 2015, Distilling the knowledge in a neural network, with two classes"
    needs_teacher = False
    trains_on_pairs = ranks = True

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        if not student.ranks:
            raise DistilvecError(
                "score_bce teaches a cross-encoder, and this student gives vectors",
                where="method",
                remedy="Set student.cross_encoder: true, or take margin_mse or score_kl.",
            )
        return Needs(sentence=False, coupled=True, companions=None, scores=True)

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        queries = scored(student.embedding[0], batch, NUMBER)
        values = student.embedding.new_zeros(len(batch.keys), dtype=queries.student.dtype)
        if not len(queries.anchors):
            return {"answers": Term(values, values.bool())}
        losses = binary_cross_entropy_with_logits(queries.student[0], queries.scores[0].sigmoid(), reduction="none")
        counted = values.bool().index_copy(0, queries.documents, queries.real.any(0))
        return {"answers": Term(values.index_copy(0, queries.documents, losses), counted)}
