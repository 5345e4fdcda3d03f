"""Terms that keep a gate and its experts useful."""

from __future__ import annotations

import torch
from torch import Tensor

from distilvec.functional.similarity import relation_matrix
from distilvec.precision import full_precision


@full_precision
def expert_similarity(outputs: Tensor) -> Tensor:
    """Mean over the ordered pairs of different experts of relu(cos), in [0, 1].

    Args:
        outputs: [N, K, d], what each expert makes of each item.

    Returns:
        [N]; 0 with one expert, and for experts that are orthogonal or opposed.

    Source: DistillMoE, eq. 6, first sum.
    """
    experts = outputs.shape[-2]
    itself = torch.eye(experts, dtype=torch.bool, device=outputs.device)
    alike = torch.relu(relation_matrix(outputs)).masked_fill(itself, 0)
    return alike.sum((-2, -1)) / max(experts * (experts - 1), 1)


@full_precision
def gate_floor_penalty(weights: Tensor, floor: float = 0.1) -> Tensor:
    """Sum over the experts of relu(floor - w)^2: [N, K] -> [N]; 0 where no weight is below the floor.

    A floor above 1 / K cannot be met by all of them.

    Source: DistillMoE, eq. 6, second sum.
    """
    return torch.relu(floor - weights).square().sum(-1)


@full_precision
def optimal_gate(losses: Tensor, beta: float) -> Tensor:
    """softmax(-losses / beta): the gate that minimises its weighted losses plus beta KL(gate || uniform).

    Args:
        losses: [N, K], each expert's loss on each item.
        beta: weight of the divergence, > 0, in the units of the losses.

    Returns:
        [N, K], rows that sum to 1.

    Source: DistillMoE, lemma 3.1.
    """
    return (losses / -beta).softmax(-1)


@full_precision
def load_balance(router_probabilities: Tensor, selected: Tensor) -> Tensor:
    """K * sum over k of f_k P_k: 1 when assignments or probabilities are even, K when one expert takes all.

    Args:
        router_probabilities: [N, K], before the selection. P_k is their mean.
        selected: bool [N, K], the assignments; f_k is expert k's share of them. An item without any is padding
            and left out of both.

    Returns:
        [], 0 without assignments. The gradient goes through the probabilities only.

    Source: Switch Transformer (Fedus et al. 2022), eqs. 4 to 6, for any number of assignments per item.
    """
    real = selected.any(-1, keepdim=True)
    share = selected.sum(0).to(router_probabilities.dtype) / selected.sum().clamp_min(1)
    mean = router_probabilities.masked_fill(~real, 0).sum(0) / real.sum().clamp_min(1)
    return selected.shape[-1] * (share * mean).sum()
