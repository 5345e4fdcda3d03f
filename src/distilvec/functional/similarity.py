"""Cosine similarities and the differences between two tables of them.

A zero vector has the cosine 0 with everything, itself included, and gets no gradient.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from distilvec.precision import full_precision

_TINY = 1e-24


@full_precision
def normalize(x: Tensor, dim: int = -1, eps: float = 1e-12) -> Tensor:
    """Vectors of length 1 along `dim`.

    A vector no longer than `eps` becomes zero and gets the gradient zero: dividing by `eps` instead would
    send it a gradient of 1 / eps.

    >>> normalize(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    length = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    return x / length.masked_fill(length <= eps, math.inf)


@full_precision
def cosine_distance(x: Tensor, y: Tensor) -> Tensor:
    """1 - cos(x, y), between 0 and 2 up to rounding; 1 where a vector is zero, without gradient there.

    Args:
        x, y: [..., d] and [..., d], broadcast over the leading dimensions.

    Returns:
        [...].

    >>> cosine_distance(torch.tensor([1.0, 0.0]), torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])).tolist()
    [0.0, 1.0, 2.0]
    """
    lengths = torch.linalg.vector_norm(x, dim=-1) * torch.linalg.vector_norm(y, dim=-1)
    return 1 - (x * y).sum(-1) / lengths.masked_fill(lengths <= _TINY, math.inf)


@full_precision
def relation_matrix(x: Tensor) -> Tensor:
    """Cosine similarities of all pairs of rows: [..., N, d] -> [..., N, N], in [-1, 1] up to rounding."""
    unit = normalize(x)
    return unit @ unit.mT


@full_precision
def relation_gap(x: Tensor, y: Tensor) -> Tensor:
    """Mean squared difference of two relation matrices, ||R(x) - R(y)||_F^2 / N^2, in [0, 4].

    The widths may differ: only relations are compared, so rotations and rescaled rows change nothing.
    The diagonal counts in N^2 and is 0 (a row that is zero on one side only adds its 1). Memory: O(N^2).

    Args:
        x, y: [..., N, d] and [..., N, e].

    Returns:
        [...]. 0 with one row that is not zero, and without rows.

    Source: TALAS, eq. 5 (layer-anchored self-distillation).
    """
    # In place: backward needs neither table, and with large N each is the largest tensor of the step.
    difference = relation_matrix(x).sub_(relation_matrix(y))
    return difference.square().sum((-2, -1)) / max(x.shape[-2], 1) ** 2


@full_precision
def margin_gap(x: Tensor, y: Tensor, margin: float, mask: Tensor | None = None) -> Tensor:
    """Per row i, the mean over real rows j != i of relu(|R(x)_ij - R(y)_ij| - margin), in [0, 2].

    Args:
        x, y: [..., N, d] and [..., N, e].
        margin: difference of two cosines that costs nothing, >= 0.
        mask: bool [N], True = real row; None: all rows are real.

    Returns:
        [..., N]; 0 where there is no other row.

    Source: DistillMoE, third expert.
    """
    excess = torch.relu((relation_matrix(x) - relation_matrix(y)).abs() - margin)
    others = ~torch.eye(x.shape[-2], dtype=torch.bool, device=x.device)
    if mask is not None:
        others = others & mask
    return excess.masked_fill(~others, 0).sum(-1) / others.sum(-1).clamp_min(1)
