"""Negative log-likelihoods of Gaussians, with the constant, and of classes."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn.functional import cross_entropy

from distilvec.precision import full_precision

_LOG_TWO_PI = math.log(2 * math.pi)


@full_precision
def gaussian_nll(target: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """Per dimension, -log N(target; mean, exp(log_variance)), in nats.

    Args:
        target, mean, log_variance: [..., D] each, broadcast. Keep the log-variance within about +-80.

    Returns:
        [..., D], the constant log(2 pi) / 2 included. May be negative.
    """
    return 0.5 * (_LOG_TWO_PI + log_variance + (target - mean).square() * (-log_variance).exp())


@full_precision
def triangular_gaussian_nll(target: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
    """-log N(target; mean, P^-1) for the precision P = F F^T, in nats.

    A factor F = diag(s) U with one U for all items needs no matrix per item: it is the value at
    (s * target, s * mean, U) less the sum of log s.

    Args:
        target, mean: [..., D].
        factor: [..., D, D] or [D, D], lower triangular with a positive diagonal; what lies above the diagonal
            is not read.

    Returns:
        [...].
    """
    residual = (target - mean).unsqueeze(-2) @ factor.tril()
    log_determinant = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    constant = 0.5 * _LOG_TWO_PI * factor.shape[-1]
    return constant + 0.5 * residual.squeeze(-2).square().sum(-1) - log_determinant


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
