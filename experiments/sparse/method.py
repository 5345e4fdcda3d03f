"""A loss for sparse students, as a method of one's own."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from distilvec.functional import relation_matrix
from distilvec.methods import parts
from distilvec.methods.base import Batch, Options, StudentOutput, TeacherSignals, Term
from distilvec.methods.projected import PerTeacher


class SparseOptions(Options):
    relations: float = Field(1.0, ge=0, description="weight of the cosines within the batch")
    flops: float = Field(0.1, ge=0, description="weight of the FLOPS regulariser, in units of the teacher's FLOPS")


class SparseVectors(PerTeacher):
    """Terms: `vectors` [V, B], `relations` [V, B], `flops` []; the student's numbers are the teacher's, piece by piece.

    All three are ratios to what the teacher's own vectors of the batch give, so that weights mean the same for teachers
    of any scale.
    """

    name = "sparse_vectors"
    summary = "squared error of sparse vectors and of their cosines, and FLOPS"
    paper = "Formal et al. 2021, SPLADE v2 (arXiv:2109.10086); Paria et al. 2020, FLOPS (arXiv:2004.05665)"
    Options = SparseOptions
    coupled = True

    def terms_of(self, index: int, student: StudentOutput, signals: TeacherSignals, batch: Batch) -> dict[str, Term]:
        own, target = student.embedding, parts.sentence(signals)  # [V, B, d] and [B, d], both of the kept pieces
        rows = signals.present
        error = (own - target).square().sum(-1) / target.square().sum(-1).mean()  # [V, B]
        relations, wanted = relation_matrix(own), relation_matrix(target)  # [V, B, B] and [B, B]
        others = ~batch.duplicate & rows  # equal texts say nothing of the order
        gaps = parts.masked_mean((relations - wanted).square(), others)  # [V, B]
        scale = parts.masked_mean(wanted.square(), others).mean().clamp_min(1e-6)
        return {
            "vectors": parts.counted(error, rows, 1.0),
            "relations": parts.counted(gaps / scale, rows, self.options.relations),
            "flops": Term(flops(own) / flops(target), None, self.options.flops),
        }


def flops(vectors: Tensor) -> Tensor:
    """Squared length of a batch's mean vector, [..., B, d] -> []: multiplications that an inverted index would need."""
    return vectors.mean(-2).square().sum(-1).mean()
