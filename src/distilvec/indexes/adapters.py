"""Maps from a new model's vectors to an old index's: fitted, applied, and written as stock modules.

Symbols: x [d] a new model's vector, y [D] the stored one of the same text; X, Y their rows, centred where said.

    procrustes    y = s R x + b,  R the polar factor of Y'X (Schönemann 1966): its columns (d <= D, the zero-padded
                  form) or its rows (d > D) are orthonormal, s the least-squares scale
    ridge         y = W x + b,  W' = (X'X + g I)^-1 X'Y,  g = penalty * tr(X'X) / d  (Hoerl and Kennard 1970)
    low rank      y = W V_r V_r' x-fitted: the ridge map, its fitted values kept on their r main axes V_r
                  (reduced-rank regression, Izenman 1975)
    residual      y = A x + b + W2 gelu(W1 x + c): A, b of the ridge map; W1, c drawn at random and kept; W2 the ridge
                  map from the hidden units to what A x + b leaves (a random-feature network, as in Huang et al. 2006)

All follow from sums over rows (`PairMoments`), added up block by block in float64; nothing takes gradient steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_BLOCK = 8192


class PairMoments:
    """Sums over `count` pairs of rows, in float64: what a linear map is fitted to, however many rows there were."""

    def __init__(self, width: int, target: int) -> None:
        self.count = 0
        self._x, self._y = np.zeros(width), np.zeros(target)
        self._xx, self._xy = np.zeros((width, width)), np.zeros((width, target))

    def add(self, x: Array, y: Array) -> PairMoments:
        """Add rows x [n, d] and y [n, D]; returns itself."""
        for start in range(0, len(x), _BLOCK):
            a, b = (np.asarray(each[start : start + _BLOCK], np.float64) for each in (x, y))
            self._x += a.sum(axis=0)
            self._y += b.sum(axis=0)
            self._xx += a.T @ a
            self._xy += a.T @ b
        self.count += len(x)
        return self

    @property
    def means(self) -> tuple[Array, Array]:
        """The means of x, [d], and of y, [D]."""
        return self._x / self.count, self._y / self.count

    @property
    def centred(self) -> tuple[Array, Array]:
        """X'X [d, d] and X'Y [d, D] of centred rows."""
        x, y = self.means
        return self._xx - self.count * np.outer(x, x), self._xy - self.count * np.outer(x, y)


@dataclass(frozen=True)
class LinearMap:
    """y = W x + b.

    Attributes:
        kind: "procrustes", "ridge" or "low rank".
        setting: what was chosen of it, for a person.
        weight: W, float32 [D, d].
        bias: b, float32 [D].
        factors: W as two, [D, r] and [r, d], where that is smaller.
    """

    kind: str
    setting: str
    weight: Array
    bias: Array
    factors: tuple[Array, Array] | None = None

    def __call__(self, x: Array) -> Array:
        """float32 [n, D] of rows [n, d]."""
        return np.asarray(np.asarray(x, np.float32) @ self.weight.T + self.bias)

    @property
    def parameters(self) -> int:
        """Numbers in it."""
        return sum(each.size for each in self.factors or (self.weight,)) + self.bias.size

    def modules(self) -> list[Any]:
        """The same as stock `Dense` modules."""
        if self.factors is None:
            return [_dense(self.weight, self.bias)]
        out, inner = self.factors
        return [_dense(inner, None), _dense(out, self.bias)]


@dataclass(frozen=True)
class ResidualMap:
    """y = A x + b + W2 gelu(W1 x + c).

    Attributes:
        kind, setting: as of a linear map.
        linear: A and b.
        inner: W1, float32 [h, d], and c [h].
        outer: W2, float32 [D, h].
    """

    kind: str
    setting: str
    linear: LinearMap
    inner: tuple[Array, Array]
    outer: Array

    def __call__(self, x: Array) -> Array:
        """float32 [n, D] of rows [n, d]."""
        weight, shift = self.inner
        z = np.asarray(x, np.float32) @ weight.T + shift
        return np.asarray(self.linear(x) + _gelu(z) @ self.outer.T)

    @property
    def parameters(self) -> int:
        """Numbers in it, as it ships: x passes the hidden layer in two units for each of its numbers."""
        hidden = len(self.inner[0]) + 2 * self.inner[0].shape[1]
        return hidden * (self.inner[0].shape[1] + 1) + len(self.outer) * (hidden + 1)

    def modules(self) -> list[Any]:
        """The same as two stock `Dense` modules with GELU between them.

        gelu(z) - gelu(-z) = z, exactly: gelu(z) = z F(z), and F(z) + F(-z) = 1 for the normal distribution F. So x
        passes the hidden layer in units x and -x, and the second layer takes A times their difference.
        """
        from torch.nn import GELU

        weight, shift = self.inner
        width = weight.shape[1]
        carried = np.eye(width, dtype=np.float32)
        first = np.concatenate([weight, carried, -carried])
        second = np.concatenate([self.outer, self.linear.weight, -self.linear.weight], axis=1)
        bias = np.concatenate([shift, np.zeros(2 * width, np.float32)])
        return [_dense(first, bias, GELU()), _dense(second, self.linear.bias)]


Map = LinearMap | ResidualMap


def procrustes(moments: PairMoments) -> LinearMap:
    """The best rotation with scale and offset; between widths the polar factor of the same product.

    Into fewer numbers (d > D) that is the best only where x is spread alike in all directions; the ridge map has no
    such limit.

    >>> x = np.random.default_rng(0).normal(size=(50, 2))
    >>> turned = 3 * x @ np.array([[0.0, 1.0], [-1.0, 0.0]]) + 1
    >>> (procrustes(PairMoments(2, 2).add(x, turned)).weight.round(4) + 0.0).T.tolist()
    [[0.0, 3.0], [-3.0, 0.0]]
    """
    gram, cross = moments.centred
    left, _, right = np.linalg.svd(cross.T, full_matrices=False)
    turn = left @ right
    scale = float((turn * cross.T).sum() / max(float(np.trace(turn @ gram @ turn.T)), 1e-12))
    return _with_offset("procrustes", f"scale {scale:.3g}", scale * turn, moments)


def ridge(moments: PairMoments, penalty: float) -> LinearMap:
    """The affine map with the least squared error and a penalty on W, relative to the mean square of x, > 0."""
    gram, cross = moments.centred
    width = len(gram)
    strength = max(penalty * float(np.trace(gram)) / width, 1e-12)
    weight = np.linalg.solve(gram + strength * np.eye(width), cross).T
    return _with_offset("ridge", f"penalty {penalty:g}", weight, moments)


def low_rank(full: LinearMap, moments: PairMoments, ranks: Sequence[int]) -> list[LinearMap]:
    """The ridge map on the r main axes of what it fits, for each r."""
    gram, _ = moments.centred
    weight = full.weight.astype(np.float64)
    # The axes of W G W' are the left singular vectors of W G^(1/2), [D, d]: an index may have thousands of numbers.
    values, turned = np.linalg.eigh(gram)
    axes, _, _ = np.linalg.svd(weight @ (turned * np.sqrt(np.maximum(values, 0))), full_matrices=False)
    maps = []
    for rank in ranks:
        main = axes[:, :rank]
        made = _with_offset("low rank", f"rank {rank}", main @ (main.T @ weight), moments)
        factors = main.astype(np.float32), (main.T @ weight).astype(np.float32)
        smaller = sum(each.size for each in factors) < made.weight.size
        maps.append(replace(made, factors=factors if smaller else None))
    return maps


def residual(
    start: LinearMap, x: Array, y: Array, penalties: Sequence[float], *, hidden: int, seed: int = 0
) -> list[ResidualMap]:
    """The network on top of the ridge map, for each penalty on W2.

    Args:
        start: A and b.
        x, y: rows [n, d] of length 1 and [n, D]; read block by block.
        penalties: relative to the mean square of the hidden units, > 0.
        hidden: h.
        seed: of W1 and c.
    """
    random = np.random.default_rng(seed)
    # Drawn so that W1 x has unit variance.
    inner = (
        random.normal(size=(hidden, x.shape[1])).astype(np.float32),
        random.normal(size=hidden).astype(np.float32) / 2,
    )
    moments = PairMoments(hidden, y.shape[1])
    for begin in range(0, len(x), _BLOCK):
        rows, wanted = x[begin : begin + _BLOCK], y[begin : begin + _BLOCK]
        moments.add(_gelu(rows @ inner[0].T + inner[1]), wanted - start(rows))
    maps = []
    for penalty in penalties:
        outer = ridge(moments, penalty)
        linear = replace(start, bias=start.bias + outer.bias)
        maps.append(ResidualMap("residual", f"{hidden} hidden units, penalty {penalty:g}", linear, inner, outer.weight))
    return maps


def _gelu(z: Array) -> Array:
    from scipy.special import ndtr

    return np.asarray((z * ndtr(z)).astype(np.float32))


def _with_offset(kind: str, setting: str, weight: Array, moments: PairMoments) -> LinearMap:
    x, y = moments.means
    return LinearMap(kind, setting, weight.astype(np.float32), (y - weight @ x).astype(np.float32))


def _dense(weight: Array, bias: Array | None, activation: Any = None) -> Any:
    import torch
    from sentence_transformers.base.modules import Dense

    return Dense(
        in_features=weight.shape[1],
        out_features=weight.shape[0],
        bias=bias is not None,
        activation_function=activation,
        init_weight=torch.from_numpy(np.ascontiguousarray(weight)),
        init_bias=None if bias is None else torch.from_numpy(np.ascontiguousarray(bias)),
    )
