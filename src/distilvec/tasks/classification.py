"""Classification of texts, and of pairs of texts: paraphrase, entailment."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from distilvec.modules.task_head import TaskHead
from distilvec.tasks.base import Task


class Classification(Task):
    """Cross-entropy over C classes.

    Args:
        values: the labels of a corpus that are whole numbers, ascending, one per class; None where they are class
            codes already.
    """

    kind: ClassVar[str] = "classification"
    metric: ClassVar[str] = "accuracy"
    head: TaskHead
    values: Tensor | None

    def __init__(self, head: TaskHead, alpha: float = 0.5, values: list[int] | None = None) -> None:
        super().__init__(head, alpha)
        table = None if values is None else torch.tensor(values, dtype=torch.long)
        # Of the data, not of the model: no checkpoint needs it.
        self.register_buffer("values", table, persistent=False)

    def codes(self, labels: Tensor) -> Tensor:
        if self.values is None:
            return labels.long()
        return torch.searchsorted(self.values.to(labels.device), labels.long())

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        codes = self.codes(labels).expand(logits.shape[:-1])
        return torch.nn.functional.cross_entropy(logits.movedim(-1, 1), codes, reduction="none")


class PairClassification(Classification):
    """Cross-entropy over C classes of a pair.

    The pair is one input (joint: both texts with the tokenizer's own separator) or two vectors u and v, classified
    from [u, v, |u - v|, u * v] (separate).
    """

    kind: ClassVar[str] = "pairs"
