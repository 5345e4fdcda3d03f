"""The items of one training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Batch:
    """The items of one step, `B` of them.

    Attributes:
        keys: uint8 [B, 16], the 128-bit content keys.
        duplicate: bool [B, B], True where two rows are equal items (the diagonal is True).
        labels: [B] class index or score, or None.
        domain: int64 [B] index into the corpus' domain names, or None.
        group: int64 [B], equal for the rows of one pair or triplet, or None.
        role: int64 [B], anchor 0, positive 1, negative 2, or None.
        scores: float32 [B], what the scorers say of a document and its anchor; NaN where nothing, or None.
        progress: how far the training is, 0 = start, 1 = end: for weights that follow a schedule.
    """

    keys: Tensor
    duplicate: Tensor
    labels: Tensor | None = None
    domain: Tensor | None = None
    group: Tensor | None = None
    role: Tensor | None = None
    scores: Tensor | None = None
    progress: float = 0.0

    @staticmethod
    def equal_items(keys: Tensor) -> Tensor:
        """uint8 [B, 16] -> bool [B, B], True where the keys are equal."""
        import torch

        # As two words: [B, B, 16] bytes would be most of a large batch's memory. Of a copy, as a word begins at a
        # multiple of its length.
        first, second = keys.clone(memory_format=torch.contiguous_format).view(torch.int64).unbind(1)
        return (first[:, None] == first) & (second[:, None] == second)
