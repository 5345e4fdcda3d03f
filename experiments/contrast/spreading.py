"""A term that spreads a student's vectors over the sphere, for `run.py` beside this file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.nn.functional import normalize

from distilvec.methods import Method, Needs, Term


class Spreading(Method):
    """Cosines of different texts have mean 0 and mean square 1/d, as those of random directions have.

        L = m1^2 + max(0, m2 - 1/d)

    m1 and m2 are the means of the cosines and of their squares over the pairs of a batch that are no pair of the corpus
    and not equal.

    Source: Zhang et al. 2017, Learning spread-out local feature descriptors (arXiv:1708.06320), eq. 5 and 6; used by
    jina-embeddings-v5 (arXiv:2602.15547).
    """

    name = "spreading"
    summary = "vectors of different texts spread over the sphere"
    paper = "Zhang et al. 2017, Learning spread-out local feature descriptors (arXiv:1708.06320)"
    needs_teacher = False
    trains_on_pairs = True

    def needs(self, student: Any, teachers: Sequence[Any]) -> Needs:
        return Needs(sentence=False, coupled=True, companions=1)

    def build(self, student: Any, teachers: Sequence[Any], sample: Any) -> None:
        """Nothing is learnt."""

    def forward(self, student: Any, teachers: Sequence[Any], batch: Any) -> dict[str, Term]:
        vectors = normalize(student.embedding[0], dim=1)  # [N, d]
        cosines = vectors @ vectors.T
        other = (batch.group[:, None] != batch.group[None]) & ~batch.duplicate
        apart = cosines[other]
        spread = apart.mean().square() + (apart.square().mean() - 1 / vectors.shape[1]).clamp(min=0)
        return {"spreading": Term(spread)}
