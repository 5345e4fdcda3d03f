"""Selection of tokens: by probability mass, or by a share of the best."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from distilvec.precision import full_precision


@torch.no_grad()
@full_precision
def smallest_mass_set(
    probabilities: Tensor, threshold: float, mask: Tensor | None = None, k_max: int | None = None
) -> Tensor:
    """The fewest entries whose mass reaches the threshold, up to rounding.

    Args:
        probabilities: [..., m], >= 0, already normalised over the mask.
        threshold: mass to reach, in (0, 1].
        mask: bool [..., m], True = real.
        k_max: keep at most so many, the likeliest.

    Returns:
        bool [..., m]. All real entries where the threshold cannot be reached, none where none is real. Among
        equals the earlier comes first.

    Source: DistillMoE, DynamicCKA; the set is that of nucleus sampling (Holtzman et al. 2020).

    >>> smallest_mass_set(torch.tensor([0.1, 0.7, 0.2]), 0.9).tolist()
    [False, True, True]
    """
    if mask is not None:
        probabilities = probabilities.masked_fill(~mask, -1)
    mass, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = mass.clamp_min(0).cumsum(-1) - mass
    # Without the slack 0.7 + 0.2 does not reach 0.9 in float64.
    chosen = (before < threshold - 4 * torch.finfo(mass.dtype).eps) & (mass >= 0)
    if k_max is not None:
        chosen[..., k_max:] = False
    return torch.zeros_like(chosen).scatter(-1, order, chosen)


@torch.no_grad()
@full_precision
def top_tokens(scores: Tensor, mask: Tensor, share: float, minimum: int) -> Tensor:
    """The best max(minimum, floor(share * n)) of the n real tokens, never more than n.

    Args:
        scores: [..., T].
        mask: bool [..., T], True = real.
        share: of the real tokens, in [0, 1].
        minimum: fewest tokens.

    Returns:
        bool [..., T]. Among equals the earlier comes first.

    Source: EMO, section 3 (top third of the mapped tokens).
    """
    lowest = torch.finfo(scores.dtype).min
    ranked = scores.clamp_min(lowest).masked_fill(~mask, -math.inf)
    order = ranked.argsort(dim=-1, descending=True, stable=True)
    real = mask.sum(-1, keepdim=True)
    exact = real.float() if real.device.type == "mps" else real.double()  # which has no float64
    wanted = (exact * share).floor().long().clamp_min(minimum).minimum(real)
    chosen = torch.arange(scores.shape[-1], device=scores.device) < wanted
    return torch.zeros_like(chosen).scatter(-1, order, chosen)
