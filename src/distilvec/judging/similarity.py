"""Pairs of texts and the cosine of their vectors: graded similarity and yes-or-no pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from distilvec.errors import DataError
from distilvec.judging.encoder import Encode
from distilvec.judging.metrics import measure
from distilvec.judging.scores import Outputs, Score
from distilvec.judging.tasks import JudgingTask, cosines, same_length
from distilvec.tasks.labels import finite_numbers


class _Pairwise(JudgingTask):
    """Two columns of texts, scored by the cosine of their vectors."""

    def __init__(self, name: str, text1: Sequence[str], text2: Sequence[str], **options: Any) -> None:
        super().__init__(name, **options)
        self.text1, self.text2 = list(text1), list(text2)

    def test_items(self) -> list[tuple[str, ...]]:
        return list(zip(self.text1, self.text2, strict=True))

    def _cosines(self, encode: Encode) -> npt.NDArray[np.float32]:
        vectors = encode(self.text1 + self.text2)
        # Rounding takes away the sums' rounding errors: equal pairs are ties.
        return cosines(vectors[: len(self.text1)], vectors[len(self.text1) :]).astype(np.float32)


class SimilarityTask(_Pairwise):
    """Spearman's correlation of the cosine with people's scores (Pearson in the details).

    Args:
        scores: finite numbers, larger = more alike.
    """

    kind: ClassVar[str] = "similarity"

    def __init__(
        self, name: str, text1: Sequence[str], text2: Sequence[str], scores: Sequence[float], **options: Any
    ) -> None:
        super().__init__(name, text1, text2, **options)
        same_length(name, text1=text1, text2=text2, score=scores)
        self.scores = finite_numbers(np.asarray(scores, np.float32), f"task {name}").astype(np.float32)
        if not np.ptp(self.scores):
            raise DataError(
                f"all scores are {self.scores[0]:g}, and nothing correlates with that", where=f"task {name}"
            )

    def score(self, encode: Encode) -> Score:
        predicted = self._cosines(encode)
        outputs = Outputs("spearman", self.scores, predicted)
        return self._scored(outputs, {"pearson": measure("pearson", self.scores, predicted)})


class PairTask(_Pairwise):
    """Average precision of the cosine for pairs that are alike or not.

    The details give the best accuracy any one threshold reaches on the test pairs, that threshold, and the base rate:
    the average precision of a model that knows nothing.

    Args:
        labels: True = alike.
    """

    kind: ClassVar[str] = "pairs"

    def __init__(
        self, name: str, text1: Sequence[str], text2: Sequence[str], labels: Sequence[bool], **options: Any
    ) -> None:
        super().__init__(name, text1, text2, **options)
        same_length(name, text1=text1, text2=text2, label=labels)
        self.labels = np.asarray(labels, dtype=bool)
        if self.labels.all() or not self.labels.any():
            raise DataError(
                f"all {len(self.labels)} pairs have the same label, {bool(self.labels.all())}", where=f"task {name}"
            )

    def score(self, encode: Encode) -> Score:
        predicted = self._cosines(encode)
        best, threshold = _best_threshold(self.labels, predicted)
        details = {"best_accuracy": best, "threshold": threshold, "base_rate": float(self.labels.mean())}
        return self._scored(Outputs("average_precision", self.labels, predicted), details)


def _best_threshold(labels: npt.NDArray[np.bool_], cosine: npt.NDArray[np.float32]) -> tuple[float, float]:
    """Highest accuracy of "alike when the cosine is above the threshold", and a threshold that reaches it."""
    order = np.argsort(-cosine, kind="stable")
    ranked = cosine[order].astype(np.float64)
    # After the first k pairs are called alike: their positives plus the negatives among the rest are right.
    right = np.concatenate([[0], np.cumsum(np.where(labels[order], 1, -1))]) + (~labels).sum()
    edges = np.concatenate([[ranked[0] + 1e-6], (ranked[:-1] + ranked[1:]) / 2, [ranked[-1] - 1e-6]])
    possible = np.concatenate([[True], ranked[:-1] > ranked[1:], [True]])  # no threshold parts equal cosines
    best = int(np.argmax(np.where(possible, right, -1)))
    return float(right[best] / len(labels)), float(edges[best])
