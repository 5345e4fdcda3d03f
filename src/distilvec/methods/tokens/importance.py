"""Importance of tokens by the attention that they receive; important pairs, and masses for a transport."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from distilvec.functional import top_tokens
from distilvec.methods import parts
from distilvec.methods.tokens.pairs import TokenPairs
from distilvec.precision import full_precision

Normalizer = Literal["sum", "softmax"]


@torch.no_grad()
def best_pairs(found: TokenPairs, scores: Tensor, share: float, minimum: int) -> TokenPairs:
    """The max(minimum, floor(share * n)) of each item's n pairs whose teacher tokens score [B, T] highest; cut to the
    largest number that an item keeps.
    """
    chosen = top_tokens(scores.gather(1, found.teacher), found.real, share, minimum)
    most = int(chosen.sum(-1).max()) if chosen.numel() else 0
    order = chosen.int().argsort(dim=-1, descending=True, stable=True)[:, :most]
    return TokenPairs(found.student.gather(1, order), found.teacher.gather(1, order), chosen.gather(1, order))


@torch.no_grad()
@full_precision
def importance(attention: Tensor, rows: Tensor, columns: Tensor, visible: Tensor | None = None) -> Tensor:
    """Sum the attention that each token receives.

    Args:
        attention: [B, T, T], averaged over heads.
        rows: bool [B, T], tokens whose attention counts.
        columns: bool [B, T], tokens that are scored; the others get 0.
        visible: for causal maps, bool [B, T] of the real tokens: sums are divided by what even attention to all
            tokens seen so far would give, because early tokens are seen more often. None = no correction.

    Returns:
        [B, T] sums over rows, not normalised.

    Source: EMO, eq. 6.
    """
    scores = attention.masked_fill(~rows.unsqueeze(-1), 0).sum(-2)
    if visible is not None:
        even = rows.to(scores.dtype) / visible.cumsum(-1).clamp_min(1)
        seen = even.flip(-1).cumsum(-1).flip(-1)  # rows at and after the token
        scores = scores / seen.masked_fill(seen == 0, math.inf)
    return scores.masked_fill(~columns, 0)


@full_precision
def normalized(scores: Tensor, mask: Tensor, by: Normalizer) -> Tensor:
    """Scores [..., n] as masses that sum to 1 over `mask`, 0 elsewhere; all 0 where nothing has a score."""
    if by == "softmax":
        return parts.masked_softmax(scores, mask).masked_fill(~mask, 0)
    scores = scores.masked_fill(~mask, 0)
    total = scores.sum(-1, keepdim=True)
    return scores / total.masked_fill(total == 0, math.inf)


@torch.no_grad()
@full_precision
def path_masses(scores: Tensor, path: TokenPairs, positions: int) -> tuple[Tensor, Tensor]:
    """Masses of both sides when each teacher token shares its score [B, T] equally over its cells of the whole path.

    Returns:
        student [B, S], teacher [B, T], each summing to 1, or 0 for an item without path.
    """
    cell = path.real.to(scores.dtype)
    cells = torch.zeros_like(scores).scatter_add(1, path.teacher, cell)
    theirs = normalized(scores, cells > 0, "sum")
    share = theirs.gather(1, path.teacher) / cells.gather(1, path.teacher).clamp_min(1) * cell
    return scores.new_zeros(len(scores), positions).scatter_add(1, path.student, share), theirs


@torch.no_grad()
@full_precision
def pair_masses(scores: Tensor, columns: Tensor, found: TokenPairs, rows: Tensor, by: Normalizer) -> Tensor:
    """The student's masses [B, S]: a mapped token takes its partner's score, every other the least score there is.

    Args:
        scores: [B, T], normalised.
        columns: bool [B, T], teacher tokens that have a score.
        rows: bool [B, S], student tokens that get a mass.
        by: how they are normalised at the end.

    Source: EMO, eq. 16.
    """
    real = found.real.to(scores.dtype)
    empty = scores.new_zeros(rows.shape)
    mapped = empty.scatter_add(1, found.student, real) > 0
    given = empty.scatter_add(1, found.student, scores.gather(1, found.teacher) * real)
    least = scores.masked_fill(~columns, math.inf).amin(-1, keepdim=True)
    usable = rows & columns.any(-1, keepdim=True)
    return normalized(torch.where(mapped, given, least.masked_fill(least.isinf(), 0)), usable, by)
