"""Losses on class logits."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy

from distilvec.precision import full_precision

__all__ = ["soft_cross_entropy"]


@full_precision
def soft_cross_entropy(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of the two softmaxes at the temperature, in nats.

    Neither multiplied by temperature^2 nor reduced by the teacher's entropy, so that its least value is that
    entropy.

    Args:
        student, teacher: logits [N, C].
        temperature: > 0.

    Returns:
        [N], >= 0.

    Source: Hinton et al. 2015, section 2.
    """
    return cross_entropy(student / temperature, (teacher / temperature).softmax(-1), reduction="none")
