"""Optimal transport with an entropy term, and the one-dimensional case without one."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor
from torch.nn.functional import pad

from distilvec.precision import full_precision

# The logarithm of no mass. A finite number keeps differences and gradients finite; its exponential is 0.
_NOTHING = -1e30
# Asking an accelerator whether all items have converged makes it wait: not after every iteration.
_ASK_EVERY = 8


@overload
def sinkhorn(
    cost: Tensor,
    source: Tensor,
    target: Tensor,
    epsilon: float,
    iterations: int = ...,
    tolerance: float = ...,
    return_error: Literal[False] = ...,
) -> Tensor: ...
@overload
def sinkhorn(
    cost: Tensor,
    source: Tensor,
    target: Tensor,
    epsilon: float,
    iterations: int = ...,
    tolerance: float = ...,
    *,
    return_error: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@full_precision
def sinkhorn(
    cost: Tensor,
    source: Tensor,
    target: Tensor,
    epsilon: float,
    iterations: int = 100,
    tolerance: float = 1e-6,
    return_error: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The plan that minimises <plan, cost> - epsilon * entropy(plan) between two distributions.

    Works on logarithms, so a small epsilon does not underflow. An item whose error has reached the tolerance
    is left as it is while others go on, so that the items of a batch do not influence one another.
    Differentiable through the iterations; callers who want the plan as a constant call it without gradients.

    Args:
        cost: [..., n, m]; what it holds at entries without mass does not matter.
        source: [..., n], >= 0; rows with mass 0 (padding) stay 0, with a zero gradient.
        target: [..., m], >= 0, of the same total; likewise.
        epsilon: weight of the entropy, > 0, in the units of the cost.
        iterations: at most so many.
        tolerance: an item has converged when the L1 error of its column sums is at most this (the row sums
            are exact up to rounding).
        return_error: also return that error.

    Returns:
        The plan [..., n, m], and with `return_error` the error reached, [...]. No mass: a plan of zeros.

    Source: Cuturi 2013, algorithm 1, in logarithms (Peyre and Cuturi 2019, remark 4.23).

    >>> half = torch.tensor([0.5, 0.5])
    >>> sinkhorn(torch.zeros(2, 2), half, half, epsilon=0.1).tolist()
    [[0.25, 0.25], [0.25, 0.25]]
    """
    rows, columns = source > 0, target > 0
    kernel = torch.where(rows.unsqueeze(-1) & columns.unsqueeze(-2), cost / -epsilon, _NOTHING)
    log_source = source.masked_fill(~rows, 1).log()
    log_target = target.masked_fill(~columns, 1).log()
    f, g = kernel.new_zeros(kernel.shape[:-1]), kernel.new_zeros((*kernel.shape[:-2], kernel.shape[-1]))
    ask = 1 if kernel.device.type == "cpu" else _ASK_EVERY
    done = kernel.new_zeros((*kernel.shape[:-2], 1), dtype=torch.bool)
    for step in range(iterations):
        reached = torch.logsumexp(kernel + f.unsqueeze(-1), -2)
        if step:
            done = done | (_column_error(reached, g, target) <= tolerance).unsqueeze(-1)
            if step % ask == 0 and bool(done.all()):
                break
        new_g = (log_target - reached).masked_fill(~columns, 0)
        new_f = (log_source - torch.logsumexp(kernel + new_g.unsqueeze(-2), -1)).masked_fill(~rows, 0)
        f, g = torch.where(done, f, new_f), torch.where(done, g, new_g)
    plan = (kernel + f.unsqueeze(-1) + g.unsqueeze(-2)).exp()
    if not return_error:
        return plan
    return plan, _column_error(torch.logsumexp(kernel + f.unsqueeze(-1), -2), g, target)


@torch.no_grad()
def _column_error(reached: Tensor, g: Tensor, target: Tensor) -> Tensor:
    return ((reached + g).exp() - target).abs().sum(-1)


@full_precision
def transport_cost(cost: Tensor, plan: Tensor) -> Tensor:
    """<plan, cost>: [..., n, m], [..., n, m] -> [...]; 0 for a plan without mass."""
    return (cost * plan).sum((-2, -1))


@full_precision
def sorted_wasserstein(p: Tensor, q: Tensor) -> Tensor:
    """Sum of |sort(p) - sort(q)|, both sorted downwards, the shorter padded with zeros at its end.

    Args:
        p, q: [..., n] and [..., m], for example class probabilities over different vocabularies.

    Returns:
        [...], >= 0; at most 2 for probabilities. The order of the entries does not matter.

    Source: ULD (Boizard et al. 2024), eq. 5.

    >>> sorted_wasserstein(torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.25, 0.25])).item()
    0.5
    """
    p, q = p.sort(dim=-1, descending=True).values, q.sort(dim=-1, descending=True).values
    width = max(p.shape[-1], q.shape[-1])
    return (pad(p, (0, width - p.shape[-1])) - pad(q, (0, width - q.shape[-1]))).abs().sum(-1)
