"""Adding up the outputs of experts by their lengths and directions, in a file that ships with models that have experts.

It needs nothing but torch; `distilvec.functional.spherical_aggregate` is made of it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

AGGREGATIONS = ("linear", "sba", "norm_free", "unit", "nlerp")
# From 1 - cos(angle) = _NEAR on sines are computed, below it their series, which is smooth down to 0.
_NEAR, _TERMS = 0.05, 7
# 1 - cos(pi - 1e-3): no middle beyond. 1 - cos(pi - 0.02): beyond, a vector pulls a Karcher mean nowhere.
_OPPOSITE, _BEHIND = 1 + math.cos(1e-3), 1 + math.cos(0.02)
# 1 - cos(pi - 0.02) also because near pi the pull is a difference of large multiples, which float32 rounds to anything.
# Shortest chord (squared) that is scaled up to length 1, and squared length up to which a vector counts as zero.
_SHORTEST, _TINY = 1e-6, 1e-24
# Instead of an angle of 0: a quotient of sines is that of its angles long before.
_NO_ANGLE = 1e-15
KARCHER_STEPS, _KARCHER_TOLERANCE = 10, 1e-6


def aggregate(vectors: Tensor, weights: Tensor, mode: str) -> Tensor:
    """One vector for K weighted ones by their radii and directions: [..., K, d], [..., K] >= 0 -> [..., d].

    Args:
        mode: "sba": radius sum w r, direction the barycentre on the sphere with weights w r (two vectors: slerp; more:
            Karcher mean). "norm_free": the direction's weights are w. "unit": sba's direction, radius 1. "nlerp": the
            weighted sum's direction with sba's radius.

    Returns:
        At least float32. The result is a combination of the vectors whose coefficients come from their K x K Gram
        matrix. Zero vectors have no say, and only they or no weight give zero. Where directions cancel it is nlerp's,
        its denominator at least 1e-3; the length is not promised there.

    Source: SBA, eqs. 4 to 11.
    """
    with torch.autocast(vectors.device.type, enabled=False):
        dtype = torch.promote_types(vectors.dtype, torch.float32)
        vectors, weights = vectors.to(dtype), weights.to(dtype)
        coefficients = _coefficients(vectors @ vectors.mT, weights, mode)
        return (coefficients.unsqueeze(-2) @ vectors).squeeze(-2)


def _coefficients(gram: Tensor, weights: Tensor, mode: str) -> Tensor:
    squares = gram.diagonal(dim1=-2, dim2=-1)
    zero = squares <= _TINY
    inverse = squares.masked_fill(zero, 1).rsqrt().masked_fill(zero, 0)
    pulls = weights * squares * inverse
    radius = pulls.sum(-1, keepdim=True)
    shares = weights.masked_fill(zero, 0) if mode == "norm_free" else pulls
    total = shares.sum(-1, keepdim=True)
    shares = shares / total.masked_fill(total == 0, math.inf)
    cosines = gram * inverse.unsqueeze(-1) * inverse.unsqueeze(-2)
    middle = {1: _chord, 2: _slerp}.get(shares.shape[-1], _karcher) if mode != "nlerp" else _chord
    direction = middle(shares, cosines) * inverse
    return direction if mode == "unit" else radius * direction


def _chord(shares: Tensor, cosines: Tensor) -> Tensor:
    """The weighted sum of unit vectors, scaled to length 1."""
    return shares / _square(shares, cosines).clamp_min(_SHORTEST).sqrt()


def _slerp(shares: Tensor, cosines: Tensor) -> Tensor:
    """sin(t_i a) / sin(a) for both shares t_i; every branch gets inputs it can take."""
    if not torch.is_grad_enabled():
        return _slerp_without_slope(shares, cosines[..., 0, 1].unsqueeze(-1))
    x = 1 - cosines[..., 0, 1].unsqueeze(-1)
    near, opposite = x < _NEAR, x > _OPPOSITE
    middle = x.masked_fill(near | opposite, 1)
    on_arc = (shares * _angle(middle)).sin() * _inverse_sine(middle)
    close = shares * _series(shares.square(), x.masked_fill(~near, 0))
    return torch.where(near, close, torch.where(opposite, _chord(shares, cosines), on_arc))


def _slerp_without_slope(shares: Tensor, cosine: Tensor) -> Tensor:
    """The same for two shares of which one goes with 1 - the other, where nothing is differentiated.

    The quotient of sines is exact for small angles, its slope is not: that is what the series is there for. A third of
    the kernels, which is what a small batch on a GPU waits for.
    """
    angle = cosine.clamp(-1, 1).acos().clamp_min(_NO_ANGLE)
    on_arc = (shares * angle).sin() / angle.sin()
    chord = shares * (1 + 2 * shares.prod(-1, keepdim=True) * (cosine - 1)).clamp_min(_SHORTEST).rsqrt()
    return torch.where(cosine < 1 - _OPPOSITE, chord, on_arc)


def _karcher(shares: Tensor, cosines: Tensor) -> Tensor:
    """The weighted Karcher mean, held by its coefficients, by repeated log and exp maps from the chord."""
    start = point = _chord(shares, cosines)
    for _ in range(KARCHER_STEPS):
        image = _apply(cosines, point)
        pulls = shares * _angle_over_sine(1 - image)
        tangent = pulls - (pulls * image).sum(-1, keepdim=True) * point
        square = _square(tangent, cosines).clamp_min(0)
        moving = square > _KARCHER_TOLERANCE**2
        if not bool(moving.any()):
            break
        small = square < 1e-4
        angle, few = square.masked_fill(small, 1).sqrt(), square.masked_fill(~small, 0)
        cosine = torch.where(small, 1 - few / 2 + few.square() / 24, angle.cos())
        sine = torch.where(small, 1 - few / 6 + few.square() / 120, angle.sin() / angle)
        point = torch.where(moving, cosine * point + sine * tangent, point)
    return torch.where(_square(shares, cosines) <= _SHORTEST, start, _chord(point, cosines))


def _angle_over_sine(x: Tensor) -> Tensor:
    """a / sin(a) for x = 1 - cos(a); 0 from pi - 0.02 on."""
    near, behind = x < _NEAR, x > _BEHIND
    away = x.masked_fill(near | behind, 1)
    limit = _series(torch.zeros_like(x), x.masked_fill(~near, 0))
    return torch.where(near, limit, (_angle(away) * _inverse_sine(away)).masked_fill(behind, 0))


def _series(square: Tensor, x: Tensor) -> Tensor:
    """sin(t a) / (t sin(a)) as a power series in x = 1 - cos(a), from t squared; t = 0: the limit."""
    both = square * x
    one = total = torch.ones_like(both)
    for n in reversed(range(_TERMS)):  # times ((n + 1)^2 - t^2) x / ((2n + 3) (n + 1)), in three kernels
        scale = (2 * n + 3) * (n + 1)
        total = torch.addcmul(one, torch.sub(x * ((n + 1) ** 2 / scale), both, alpha=1 / scale), total)
    return total


def _angle(x: Tensor) -> Tensor:
    """The angle in (0, pi) for x = 1 - cos(angle), without arccos's infinite slope at its ends."""
    return 2 * torch.atan2(x.sqrt(), (2 - x).sqrt())


def _inverse_sine(x: Tensor) -> Tensor:
    return (x * (2 - x)).rsqrt()


def _apply(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _square(vector: Tensor, cosines: Tensor) -> Tensor:
    """Squared length [..., 1] of a combination of unit vectors."""
    return (vector * _apply(cosines, vector)).sum(-1, keepdim=True)
