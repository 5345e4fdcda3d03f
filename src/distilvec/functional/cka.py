"""Centred kernel alignment with linear kernels: how alike two sets of features of the same rows are.

With X' and Y' centred over the n rows, CKA = ||X'^T Y'||_F^2 / (||X'^T X'||_F ||Y'^T Y'||_F). The norms are
taken from the n x n Gram matrices or from the p x q products, whichever is less work.

With fewer rows than features the plain estimate is near 1 even for unrelated random features. The debiased
one replaces each squared norm by the unbiased estimate of the Hilbert-Schmidt independence criterion.
"""

from __future__ import annotations

import torch
from torch import Tensor

from distilvec.precision import full_precision

# Two centred rows are always perfectly alike; the unbiased estimate divides by n - 3.
_FEWEST_PLAIN, _FEWEST_DEBIASED = 3, 4
# Below it sqrt(CKA) is taken as 0: its slope has no limit there.
_NO_ALIGNMENT = 1e-12


@full_precision
def linear_cka(x: Tensor, y: Tensor, mask: Tensor | None = None, debiased: bool = False) -> Tensor:
    """Linear CKA of two feature matrices with common rows.

    Args:
        x, y: [..., n, p] and [..., n, q].
        mask: bool [..., n], True = real row; None: all rows are real.
        debiased: the unbiased estimate, for at least 4 rows.

    Returns:
        [...] in [0, 1], or [-1, 1] debiased. 0 without gradient where it is undefined: one row or none, fewer
        than 4 debiased, rows that are all equal up to rounding, or (debiased) no similarity to explain.

    Source: Kornblith et al. 2019, eq. 3; debiased: Song et al. 2012, eq. 5, and Nguyen et al. 2021.

    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -2.0]])
    >>> linear_cka(x, -3 * x.flip(-1)).item()
    1.0
    """
    count = _count(x, mask)
    x, y = _centred(x, mask, count), _centred(y, mask, count)
    rows, p, q = x.shape[-2], x.shape[-1], y.shape[-1]
    if rows * (p + q) <= p * q + p * p + q * q:
        first, second = x @ x.mT, y @ y.mT
        cross, own_x, own_y = _inner(first, second), _inner(first, first), _inner(second, second)
    else:
        cross, own_x, own_y = (_inner(z, z) for z in (x.mT @ y, x.mT @ x, y.mT @ y))
    lengths = (x.square().sum(-1), y.square().sum(-1)) if debiased else None
    return _similarity(cross, own_x, own_y, lengths, count)


@full_precision
def cka_distance(x: Tensor, y: Tensor, mask: Tensor | None = None, debiased: bool = False) -> Tensor:
    """1 - sqrt(CKA); debiased, 1 - CKA with neither root nor clamp, because it may be negative.

    Args:
        x, y, mask, debiased: as in `linear_cka`.

    Returns:
        [...] in [0, 1], or [0, 2] debiased. 0 without gradient for fewer than 3 real rows (debiased: 4), which
        say nothing. 1 with a zero gradient where the CKA is 0 or all rows are equal.

    Source: EMO, eq. 14; DistillMoE, eq. 12.
    """
    return _distance(linear_cka(x, y, mask, debiased), _count(x, mask), debiased)


@full_precision
def centred_gram(y: Tensor, mask: Tensor | None = None) -> Tensor:
    """All that CKA takes of one side: Y' Y'^T of the centred rows, scaled so that its trace is 1 (or 0).

    Args:
        y: [..., n, q].
        mask: bool [..., n], True = real row; None: all rows are real. The others are zero in the result.

    Returns:
        [..., n, n].
    """
    y = _centred(y, mask, _count(y, mask))
    gram = y @ y.mT
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]  # 1 or 0; its gradient is that of the scale
    return gram / trace.masked_fill(trace == 0, 1)


@full_precision
def cka_distance_to_gram(x: Tensor, gram: Tensor, mask: Tensor | None = None, debiased: bool = False) -> Tensor:
    """`cka_distance(x, y, mask, debiased)`, from `gram = centred_gram(y, mask)` in place of y.

    Args:
        x: [..., n, p].
        gram: [..., n, n].
        mask, debiased: as in `linear_cka`.
    """
    count = _count(x, mask)
    x = _centred(x, mask, count)
    own = x @ x.mT
    cross, own_x, own_y = _inner(own, gram), _inner(own, own), _inner(gram, gram)
    lengths = (own.diagonal(dim1=-2, dim2=-1), gram.diagonal(dim1=-2, dim2=-1)) if debiased else None
    return _distance(_similarity(cross, own_x, own_y, lengths, count), count, debiased)


def _similarity(
    cross: Tensor, own_x: Tensor, own_y: Tensor, lengths: tuple[Tensor, Tensor] | None, count: Tensor
) -> Tensor:
    """CKA from squared norms of products of centred rows; debiased where the rows' squared lengths are given."""
    undefined = (own_x == 0) | (own_y == 0)
    if lengths is not None:
        rounding = 16 * torch.finfo(cross.dtype).eps
        plain_x, plain_y = own_x, own_y
        cross = _unbiased(cross, *lengths, count)
        own_x = _unbiased(own_x, lengths[0], lengths[0], count)
        own_y = _unbiased(own_y, lengths[1], lengths[1], count)
        undefined = (count < _FEWEST_DEBIASED) | (own_x <= rounding * plain_x) | (own_y <= rounding * plain_y)
    scale = (own_x * own_y).masked_fill(undefined, 1).sqrt()
    return (cross / scale).masked_fill(undefined, 0).clamp(0.0 if lengths is None else -1.0, 1.0)


def _distance(similarity: Tensor, count: Tensor, debiased: bool) -> Tensor:
    if not debiased:
        none = similarity <= _NO_ALIGNMENT
        similarity = similarity.masked_fill(none, 1).sqrt().masked_fill(none, 0)
    return (1 - similarity).masked_fill(count < (_FEWEST_DEBIASED if debiased else _FEWEST_PLAIN), 0)


def _count(x: Tensor, mask: Tensor | None) -> Tensor:
    """Real rows as a float tensor, [...] or []."""
    return x.new_tensor(x.shape[-2]) if mask is None else mask.sum(-1).to(x.dtype)


def _centred(x: Tensor, mask: Tensor | None, count: Tensor) -> Tensor:
    """Rows minus their mean, scaled to Frobenius norm 1: CKA does not see the scale, float32 does.

    The scale is a constant for the gradient, which it does not change. Spread that rounding of the mean alone
    would leave is no spread: the rows become zero.
    """
    hidden = None if mask is None else ~mask.unsqueeze(-1)
    if hidden is not None:
        x = x.masked_fill(hidden, 0)
    centred = x - x.sum(-2, keepdim=True) / count.clamp_min(1)[..., None, None]
    if hidden is not None:
        centred = centred.masked_fill(hidden, 0)
    size = torch.linalg.vector_norm(x.detach(), dim=(-2, -1), keepdim=True)
    spread = torch.linalg.vector_norm(centred.detach(), dim=(-2, -1), keepdim=True)
    return centred / spread.masked_fill(spread <= 16 * torch.finfo(x.dtype).eps * size, torch.inf)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((-2, -1))


def _unbiased(product: Tensor, first: Tensor, second: Tensor, count: Tensor) -> Tensor:
    """n (n - 3) times the unbiased HSIC, from ||X'^T Y'||_F^2 and the squared row lengths of centred rows."""
    n = count.clamp_min(_FEWEST_DEBIASED)
    diagonal = n / (n - 2) * (first * second).sum(-1)
    return product - diagonal + first.sum(-1) * second.sum(-1) / ((n - 1) * (n - 2))
