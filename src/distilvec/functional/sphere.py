"""Aggregating the outputs of experts on the sphere: their lengths and their directions apart.

    y = radius * direction,  radius = sum_k w_k ||e_k||,  direction = barycentre of e_k / ||e_k|| on the sphere

Every result is a combination sum_k c_k e_k whose coefficients depend on the K x K Gram matrix alone, so nothing
of the width d is held but the vectors and the result. The arithmetic is in `modules.sphere`, a file that ships with
models.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from torch import Tensor

from distilvec.errors import DistilvecError, nearest
from distilvec.modules.sphere import aggregate
from distilvec.precision import full_precision

Mode = Literal["linear", "sba", "norm_free", "unit", "nlerp"]


@full_precision
def spherical_aggregate(
    vectors: Tensor, weights: Tensor, mode: Mode = "sba", normalize_weights: bool = False
) -> Tensor:
    """One vector for K weighted ones.

    Args:
        vectors: [..., K, d], outputs of the experts.
        weights: [..., K], >= 0. Where they do not sum to 1 the radius is scaled by their sum.
        mode: "linear": the weighted sum. "sba": radius sum w r, direction the barycentre on the sphere with
            weights w r (two vectors: slerp; more: Karcher mean). "norm_free": the direction's weights are w.
            "unit": sba's direction, radius 1. "nlerp": linear's direction with sba's radius.
        normalize_weights: divide the weights by their sum first.

    Returns:
        [..., d]. A zero vector has no say in the direction; only zero vectors, or no weight, give zero. Where
        directions cancel (two more than pi - 1e-3 apart; a weighted sum of unit vectors shorter than 1e-3) the
        direction is nlerp's, its denominator at least 1e-3: finite, with a finite gradient, but the length is
        not promised there, nor exact near it in float32 (1e-4 at 178 degrees, 2e-2 at 179.9).
        With three or more, a vector more than pi - 0.02 from the mean does not pull it.

    Raises:
        DistilvecError: an unknown mode.

    Source: SBA, eqs. 4 to 11; the Karcher mean extends eq. 8, whose angles exist for two vectors only.

    >>> import torch
    >>> both = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> round(spherical_aggregate(both, torch.tensor([0.5, 0.5])).norm().item(), 5)
    2.0
    """
    if mode not in get_args(Mode):
        raise DistilvecError(f'There is no aggregation "{mode}"', remedy=nearest(mode, get_args(Mode)))
    if normalize_weights:
        total = weights.sum(-1, keepdim=True)
        weights = weights / total.masked_fill(total == 0, math.inf)
    if mode == "linear":
        # Product and sum apart, as models compute it: a fused product rounds differently.
        return (vectors * weights.unsqueeze(-1)).sum(-2)
    return aggregate(vectors, weights, mode)
