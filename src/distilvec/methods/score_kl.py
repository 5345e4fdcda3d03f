"""Listwise scores: the student orders a query's documents with the probabilities that a scorer gives them.

    L = mean over queries of KL(softmax(a s(q, d)) || softmax(s'(q, d) / T))

over the query's own documents d, the positive and its mined negatives. s' is the student's cosine (or dot product), s
the scorer's number; a brings the scores to unit deviation within a query, once, on a sample; with `raw` it is 1. Of a
cross-encoder s' is its number, and a = T = 1.

Source: the KL term of TCT-ColBERT (Lin et al. 2020, arXiv:2010.11386), over a query's mined documents instead of the
batch's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from distilvec.methods.base import Batch, StudentOutput, TeacherSignals, Term
from distilvec.methods.score_parts import NUMBER, ScoreMethod, ScoreOptions, scored


class ScoreKLOptions(ScoreOptions):
    #: T, of the similarities [S].
    constants: ClassVar[dict[str, Any]] = {"student_temperature": 0.05}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"similarity": "dot", "raw": True, "student_temperature": 1.0}
    }


class ScoreKL(ScoreMethod):
    """Terms: `listwise` [B], counted at the queries."""

    name = "score_kl"
    summary = "a scorer's order of each query's mined documents, as probabilities; no teacher of vectors"
    paper = "Lin et al. 2020, Distilling dense representations for ranking (arXiv:2010.11386)"
    Options = ScoreKLOptions

    def fitted_scale(self, own: float, theirs: float) -> float:
        return 1 / theirs

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        queries = scored(student.embedding[0], batch, self.form)
        wanted = _log_softmax(self.scale.to(queries.scores.dtype) * queries.scores, queries)
        temperature = 1.0 if self.form == NUMBER else self.options.fixed.student_temperature
        own = _log_softmax(queries.student / temperature, queries)
        missed = (wanted.exp() * (wanted - own)).masked_fill(~queries.real, 0.0).sum(1)
        values = missed.new_zeros(len(batch.keys)).index_copy(0, queries.anchors, missed)
        several = queries.real.sum(1) > 1
        counted = torch.zeros_like(values, dtype=torch.bool).index_copy(0, queries.anchors, several)
        return {"listwise": Term(values, counted)}


def _log_softmax(values: Tensor, queries: Any) -> Tensor:
    """[A, C] over the query's own documents; 0 elsewhere, so that no gradient is lost in infinities."""
    lowest = torch.finfo(values.dtype).min
    return values.masked_fill(~queries.real, lowest).log_softmax(1).masked_fill(~queries.real, 0.0)
