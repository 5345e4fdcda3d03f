"""Similarity of two texts as a number."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from distilvec.modules.task_head import TaskHead
from distilvec.tasks.base import Task


class SimilarityRegression(Task):
    """Squared error of the similarity, in units in which the training scores have about the size of a cosine.

    Joint: a linear head predicts the standardised score, (score - mean) / deviation. Separate: the cosine of the two
    vectors predicts the score brought to [0, 1]. The head keeps shift and scale, so that predictions are scores again.
    """

    kind: ClassVar[str] = "similarity"
    metric: ClassVar[str] = "spearman"
    head: TaskHead

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        target = (labels.to(logits.dtype) - self.head.shift) / self.head.scale
        return (logits[..., 0] - target).square()
