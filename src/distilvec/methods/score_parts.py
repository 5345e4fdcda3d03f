"""Common parts of methods on scores: a batch's documents of each query, and what both sides say of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from distilvec.errors import DistilvecError
from distilvec.methods.base import Batch, Method, Needs, Options, Sample, StudentInfo, TeacherInfo

#: Fewer pairs in a sample than this say nothing of a deviation.
_FEWEST = 8
#: Of cosines: a student that hardly tells documents apart (a fresh one) is no measure of how far apart they should be.
_LEAST_SPREAD = 0.05
#: The form of what a cross-encoder says of a document: no similarity of two vectors, but its only number.
NUMBER = "number"


class ScoreOptions(Options):
    """Options of methods on scores."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {"paper": {"similarity": "dot", "raw": True}}

    similarity: Literal["cosine", "dot"] = Field("cosine", description="of the student's vectors; dot [P]")
    raw: bool = Field(
        False,
        description="take the scores as they are [P], as a cross-encoder always does; false: their scale is fitted "
        "once, to a sample [S]",
    )


class ScoreMethod(Method):
    """A method on the numbers of a scorer, brought to the student's scale by one factor: `fitted_scale` says which.

    A cross-encoder learns the scores as they are.
    """

    needs_teacher = False
    trains_on_pairs = ranks = True
    scale: Tensor

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        self.register_buffer("scale", torch.tensor(1.0))
        self.form: str = self.options.similarity

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        return Needs(sentence=False, coupled=True, companions=None, scores=True)

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.form = NUMBER if student.ranks else self.options.similarity
        if not self.options.raw:
            scale = self.fitted_scale(*deviations(sample, self.form))
            self.scale.fill_(1.0 if student.ranks else scale)

    def fitted_scale(self, own: float, theirs: float) -> float:
        """The factor, from the deviations of student's and scorer's numbers."""
        raise NotImplementedError


class ScoredBatch(NamedTuple):
    """Numbers for A queries and the C documents of a batch.

    Attributes:
        anchors: int64 [A], the queries' rows in the batch.
        documents: int64 [C], the documents' rows.
        student: [A, C], the student's similarities.
        scores: [A, C], the scorer's; 0 where there is none.
        real: bool [A, C], which documents are the query's own, have a score, and are no repetition.
        positive: bool [C], which documents are positives.
    """

    anchors: Tensor
    documents: Tensor
    student: Tensor
    scores: Tensor
    real: Tensor
    positive: Tensor


def scored(embedding: Tensor, batch: Batch, similarity: str) -> ScoredBatch:
    """Queries and documents of a batch.

    Args:
        embedding: [B, d] of the batch's rows, in any order.
        batch: with group, role and scores.
        similarity: "cosine", "dot", or `NUMBER` where the documents' vectors are numbers about them and their query.
    """
    assert batch.group is not None and batch.role is not None and batch.scores is not None
    anchors, documents = batch.role.eq(0).nonzero().squeeze(1), batch.role.ne(0).nonzero().squeeze(1)
    given = batch.scores[documents].float()
    together = batch.group[anchors, None] == batch.group[None, documents]
    equal = batch.duplicate[documents[:, None], documents] & (
        batch.group[documents, None] == batch.group[None, documents]
    )
    once = ~equal.tril(-1).any(1)
    # Under autocast a product would be bfloat16, and margins are small differences of large numbers.
    with torch.autocast(embedding.device.type, enabled=False):
        vectors = embedding if embedding.dtype == torch.float64 else embedding.float()
        vectors = normalize(vectors, dim=-1) if similarity == "cosine" else vectors
        student = (
            vectors[documents, 0].expand(len(anchors), -1)
            if similarity == NUMBER
            else vectors[anchors] @ vectors[documents].T
        )
    return ScoredBatch(
        anchors,
        documents,
        student,
        given.nan_to_num(0.0).to(student.dtype).expand_as(student),
        together & (given.isfinite() & once)[None, :],
        batch.role[documents].eq(1),
    )


def margins(values: Tensor, found: ScoredBatch) -> tuple[Tensor, Tensor]:
    """Subtract the value [A, C] (a similarity or score) of the negative from that of the positive, for every triplet.

    Returns:
        [A, C], at the negatives; and bool [A, C], where both have a score.
    """
    positive = found.real & found.positive[None, :]
    best = (values * positive).sum(1, keepdim=True) / positive.sum(1, keepdim=True).clamp_min(1)
    return best - values, found.real & ~found.positive[None, :] & positive.any(1, keepdim=True)


def deviations(sample: Sample, similarity: str) -> tuple[float, float]:
    """Standard deviations of a sample's documents about the mean of their query: of student's and scorer's numbers.

    Raises:
        DistilvecError: the scorer says the same of all, or there are too few documents.
    """
    count, squares, largest = 0, torch.zeros(2, dtype=torch.float64), 1.0
    for output, batch in sample.pairs:
        queries = scored(output.embedding[0], batch, similarity)
        documents = queries.real.sum(1, keepdim=True)
        several = queries.real & (documents > 1)
        count += int(several.sum())
        largest = max(largest, float(queries.scores.abs().max()))
        for side, values in enumerate((queries.student, queries.scores)):
            mean = (values * queries.real).sum(1, keepdim=True) / documents.clamp_min(1)
            squares[side] += (values - mean)[several].double().square().sum()
    if count < _FEWEST:
        raise DistilvecError(
            f"a sample of the corpus has {count} scored documents beside others of their query, too few to fit the "
            "scores' scale to",
            where="scorers",
            remedy="Give more queries with mined negatives (`distilvec mine`), or the method's option raw: true.",
        )
    own, theirs = (squares / count).sqrt().tolist()
    own = max(own, _LEAST_SPREAD) if similarity == "cosine" else own
    if theirs <= 1e-9 * largest:
        raise DistilvecError(
            "all documents of a query have the same score, so there is nothing to learn from them",
            where="scorers",
            remedy="Look at what the scorers are given and what they return.",
        )
    return own, theirs
