"""Aggregating the outputs of experts on the sphere: their lengths and their directions apart.

    y = radius * direction,  radius = sum_k w_k ||e_k||,  direction = barycentre of e_k / ||e_k|| on the sphere

Every result is a combination sum_k c_k e_k whose coefficients depend on the K x K Gram matrix alone, so nothing
of the width d is held but the vectors and the result.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from distilvec.errors import DistilvecError, nearest
from distilvec.functional.precision import full_precision

__all__ = ["spherical_aggregate"]

Mode = Literal["linear", "sba", "norm_free", "unit", "nlerp"]

# 1 - cos of an angle up to which sines are replaced by their series, which is smooth down to 0.
_NEAR = 0.05
_TERMS = 7
# 1 - cos(pi - 1e-3): from there on two directions have no middle.
_OPPOSITE = 1 + math.cos(1e-3)
# 1 - cos(pi - 0.02): from there on a vector pulls a Karcher mean nowhere. Its pull has no direction at pi, and
# near it is the difference of large multiples of the vectors, which float32 rounds to anything.
_BEHIND = 1 + math.cos(0.02)
# Shortest chord (squared) that is scaled up to length 1.
_SHORTEST = 1e-6
# Squared length up to which a vector counts as zero.
_TINY = 1e-24
_KARCHER_STEPS, _KARCHER_TOLERANCE = 10, 1e-6


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

    >>> both = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> round(spherical_aggregate(both, torch.tensor([0.5, 0.5])).norm().item(), 5)
    2.0
    """
    if mode not in get_args(Mode):
        raise DistilvecError(f'There is no aggregation "{mode}"', remedy=nearest(mode, get_args(Mode)))
    if normalize_weights:
        weights = _divide(weights, weights.sum(-1, keepdim=True))
    if mode == "linear":
        # Product and sum apart, as models compute it: a fused product rounds differently.
        return (vectors * weights.unsqueeze(-1)).sum(-2)
    return (_coefficients(vectors @ vectors.mT, weights, mode).unsqueeze(-2) @ vectors).squeeze(-2)


def _coefficients(gram: Tensor, weights: Tensor, mode: Mode) -> Tensor:
    """c [..., K] of sum_k c_k e_k, from the Gram matrix [..., K, K] and the weights [..., K]."""
    squares = gram.diagonal(dim1=-2, dim2=-1)
    zero = squares <= _TINY
    inverse = squares.masked_fill(zero, 1).rsqrt().masked_fill(zero, 0)
    lengths = squares * inverse
    pulls = weights * lengths
    radius = pulls.sum(-1, keepdim=True)
    shares = weights.masked_fill(zero, 0) if mode == "norm_free" else pulls
    shares = _divide(shares, shares.sum(-1, keepdim=True))
    cosines = gram * inverse.unsqueeze(-1) * inverse.unsqueeze(-2)
    direction = _direction(shares, cosines, mode) * inverse
    return direction if mode == "unit" else radius * direction


def _direction(shares: Tensor, cosines: Tensor, mode: Mode) -> Tensor:
    experts = shares.shape[-1]
    if mode == "nlerp" or experts == 1:
        return _chord(shares, cosines)
    return _slerp(shares, cosines) if experts == 2 else _karcher(shares, cosines)


def _chord(shares: Tensor, cosines: Tensor) -> Tensor:
    """The weighted sum of unit vectors, scaled to length 1."""
    return shares / _square(shares, cosines).clamp_min(_SHORTEST).sqrt()


def _slerp(shares: Tensor, cosines: Tensor) -> Tensor:
    """sin(t_i Omega) / sin(Omega) for both shares t_i; every branch gets inputs it can take."""
    x = 1 - cosines[..., 0, 1].unsqueeze(-1)
    near, opposite = x < _NEAR, x > _OPPOSITE
    middle = x.masked_fill(near | opposite, 1)
    on_arc = (shares * _angle(middle)).sin() * _inverse_sine(middle)
    close = shares * _series(shares.square(), x.masked_fill(~near, 0))
    return torch.where(near, close, torch.where(opposite, _chord(shares, cosines), on_arc))


def _karcher(shares: Tensor, cosines: Tensor) -> Tensor:
    """The weighted Karcher mean by repeated log and exp maps, started from the chord.

    The mean is held by its coefficients over the unit vectors; inner products go through their cosines. An item
    that no longer moves is left as it is.
    """
    start = point = _chord(shares, cosines)
    for _ in range(_KARCHER_STEPS):
        image = _apply(cosines, point)
        pulls = shares * _angle_over_sine(1 - image)
        tangent = pulls - (pulls * image).sum(-1, keepdim=True) * point
        square = _square(tangent, cosines).clamp_min(0)
        moving = square > _KARCHER_TOLERANCE**2
        if not bool(moving.any()):
            break
        cosine, sine_over_length = _cos_and_sinc(square)
        point = torch.where(moving, cosine * point + sine_over_length * tangent, point)
    return torch.where(_square(shares, cosines) <= _SHORTEST, start, _chord(point, cosines))


def _angle_over_sine(x: Tensor) -> Tensor:
    """Omega / sin(Omega) for x = 1 - cos(Omega); 0 from pi - 0.02 on."""
    near, behind = x < _NEAR, x > _BEHIND
    away = x.masked_fill(near | behind, 1)
    limit = _series(torch.zeros_like(x), x.masked_fill(~near, 0))
    return torch.where(near, limit, (_angle(away) * _inverse_sine(away)).masked_fill(behind, 0))


def _series(square: Tensor, x: Tensor) -> Tensor:
    """sin(t Omega) / (t sin(Omega)) as a power series in x = 1 - cos(Omega), from t squared; t = 0: the limit."""
    total = torch.ones_like(square * x)
    for n in reversed(range(_TERMS)):
        total = 1 + ((n + 1) ** 2 - square) * (x / ((2 * n + 3) * (n + 1))) * total
    return total


def _cos_and_sinc(square: Tensor) -> tuple[Tensor, Tensor]:
    """cos(a) and sin(a) / a from a squared, smooth at 0."""
    small = square < 1e-4
    angle = square.masked_fill(small, 1).sqrt()
    few = square.masked_fill(~small, 0)
    cosine = torch.where(small, 1 - few / 2 + few.square() / 24, angle.cos())
    return cosine, torch.where(small, 1 - few / 6 + few.square() / 120, angle.sin() / angle)


def _angle(x: Tensor) -> Tensor:
    """Omega in (0, pi) for x = 1 - cos(Omega), without arccos's infinite slope at its ends."""
    return 2 * torch.atan2(x.sqrt(), (2 - x).sqrt())


def _inverse_sine(x: Tensor) -> Tensor:
    return (x * (2 - x)).rsqrt()


def _apply(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _square(vector: Tensor, cosines: Tensor) -> Tensor:
    """Squared length [..., 1] of a combination of unit vectors."""
    return (vector * _apply(cosines, vector)).sum(-1, keepdim=True)


def _divide(values: Tensor, total: Tensor) -> Tensor:
    return values / total.masked_fill(total == 0, math.inf)
