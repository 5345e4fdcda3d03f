"""Margin-MSE: the student keeps how much better a scorer finds the positive than each negative.

    L = mean over triplets (q, p, n) of ((s'(q, p) - s'(q, n)) - a (s(q, p) - s(q, n)))²

s' is the student's cosine (or dot product), s the scorer's number. Of a cross-encoder s' is its number, and a = 1. Of
any other student the factor a brings the scores' deviation within a query to that of the untrained student's
similarities, once, on a sample; with `raw` it is 1.

Source: Hofstätter et al. 2020 (arXiv:2010.02666), Margin-MSE, where s' is the dot product and a = 1 (preset `paper`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from distilvec.methods.base import Batch, StudentOutput, TeacherSignals, Term
from distilvec.methods.score_parts import ScoreMethod, ScoreOptions, margins, scored


class MarginMSE(ScoreMethod):
    """Terms: `margin` [B], counted at the negatives."""

    name = "margin_mse"
    summary = "a scorer's margins between the positive and each mined negative; no teacher of vectors"
    paper = "Hofstätter et al. 2020, Improving efficient neural ranking models (arXiv:2010.02666)"
    Options = ScoreOptions

    def fitted_scale(self, own: float, theirs: float) -> float:
        return own / theirs

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        queries = scored(student.embedding[0], batch, self.form)
        own, real = margins(queries.student, queries)
        theirs, _ = margins(queries.scores, queries)
        # A document stands in one query's row.
        missed = ((own - self.scale.to(own.dtype) * theirs).square() * real).sum(0)
        values = missed.new_zeros(len(batch.keys)).index_copy(0, queries.documents, missed)
        counted = torch.zeros_like(values, dtype=torch.bool).index_copy(0, queries.documents, real.any(0))
        return {"margin": Term(values, counted)}
