"""The mixture of experts of a `MoeEncoder`: router, experts and what they are aggregated to.

This file is copied into the folder of every such model, so it imports nothing but torch and transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN

from .sphere import aggregate

__all__ = ["ExpertLayers", "Experts", "MixtureOfExperts"]


class Router(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(config.hidden_size, config.num_experts, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens).softmax(-1, dtype=torch.promote_types(tokens.dtype, torch.float32))


class ExpertLayers(nn.Module):
    """The experts' weights in two blocks [E * F, d]; expert e has the rows from e * F on, and W2 is not transposed."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        rows = config.num_experts * config.intermediate_size
        self.shape = (config.num_experts, config.intermediate_size, config.hidden_size)
        self.w1 = nn.Parameter(torch.empty(rows, config.hidden_size))
        self.w2 = nn.Parameter(torch.empty(rows, config.hidden_size))
        if config.expert_bias:
            self.b1 = nn.Parameter(torch.zeros(rows))
        else:
            self.register_parameter("b1", None)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, tokens: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return what each token's experts make of it; every expert sees its own tokens only.

        Args:
            tokens: [T, d].
            chosen: long [T, K], experts; E = none (padding).

        Returns:
            outputs [n, d] of the assignments sorted by expert, and long [n], where each stands in `chosen.flatten()`.
            Assignments to none are left out or, where that would make the host wait for the device, zero.
        """
        experts, order = chosen.flatten().sort(stable=True)
        ends = torch.searchsorted(experts, torch.arange(self.shape[0], device=experts.device), right=True)
        if _has_grouped_product(tokens, self.shape):
            return self._grouped(tokens, experts, order, ends.to(torch.int32), chosen.shape[1]), order
        stops = ends.tolist()
        sizes = [stop - start for start, stop in zip([0, *stops], stops)]
        order = order[: stops[-1]]
        inputs = tokens.index_select(0, order // chosen.shape[1]).split(sizes)
        # Unbinding and splitting stack the experts' gradients once; slices would each make a gradient of full size.
        first, second = (weight.view(self.shape).unbind(0) for weight in (self.w1, self.w2))
        biases = [None] * len(sizes) if self.b1 is None else self.b1.view(self.shape[:2]).unbind(0)
        outputs = [
            self.activation(functional.linear(inputs[e], first[e], biases[e])) @ second[e]
            for e, size in enumerate(sizes)
            if size
        ]
        return (torch.cat(outputs) if outputs else tokens[:0] @ first[0].mT @ second[0]), order

    def _grouped(self, tokens: Tensor, experts: Tensor, order: Tensor, ends: Tensor, top_k: int) -> Tensor:
        """The same in two products for all experts; rows beyond the last end hold anything, so they are emptied."""
        real = (torch.arange(len(order), device=order.device) < ends[-1]).unsqueeze(-1)
        dtype = _product_type(tokens)
        inputs = torch.where(real, tokens.index_select(0, order // top_k), 0).to(dtype)
        first, second = (weight.view(self.shape).to(dtype) for weight in (self.w1, self.w2))
        states = functional.grouped_mm(inputs, first.mT, offs=ends)
        if self.b1 is not None:
            biases = self.b1.view(self.shape[:2]).to(dtype)
            states = states + biases.index_select(0, experts.clamp_max(self.shape[0] - 1))
        states = self.activation(torch.where(real, states, 0))
        return torch.where(real, functional.grouped_mm(states, second, offs=ends), 0)


def _product_type(tokens: Tensor) -> torch.dtype:
    """Return what a matrix product of these tokens would be computed in."""
    kind = tokens.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tokens.dtype


def _has_grouped_product(tokens: Tensor, shape: tuple[int, int, int]) -> bool:
    """bfloat16 on CUDA from Ampere on, rows of a multiple of 16 bytes; elsewhere torch has none, or loops itself."""
    return (
        tokens.is_cuda
        and hasattr(functional, "grouped_mm")
        and _product_type(tokens) == torch.bfloat16
        and shape[1] % 8 == shape[2] % 8 == 0
        and torch.cuda.get_device_capability(tokens.device) >= (8, 0)
    )


class Experts(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.mlp = ExpertLayers(config)
        self.bias = nn.Parameter(torch.zeros(config.hidden_size))


class MixtureOfExperts(nn.Module):
    """[N, S, d] -> [N, S, d]; the bias is added once, to what the experts' outputs are aggregated to.

    Attributes:
        watchers: each is called after each forward with probabilities [N, S, E], chosen [N, S, K] (E at padding),
            weights [N, S, K] and a function that gives the chosen experts' outputs [N, S, K, d] (zero at padding).
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.router = Router(config)
        self.experts = Experts(config)
        self.watchers: list[Callable[..., None]] = []

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """mask: bool [N, S], True = real; what is not goes to no expert."""
        config, tokens = self.config, states.flatten(0, 1)
        probabilities = self.router(tokens)
        weights, chosen = probabilities.topk(config.experts_per_token, dim=-1)
        if config.normalize_weights:
            weights = weights / weights.sum(-1, keepdim=True)
        if mask is not None:
            chosen = chosen.masked_fill(~mask.flatten().unsqueeze(-1), config.num_experts)
        weights = weights.to(tokens.dtype)
        outputs, order = self.experts.mlp(tokens, chosen)

        def by_token() -> Tensor:
            rows = outputs.new_zeros(chosen.numel(), outputs.shape[-1])
            return rows.index_copy(0, order, outputs).unflatten(0, chosen.shape)

        if config.aggregation == "linear":
            weighted = outputs * weights.flatten().index_select(0, order).unsqueeze(-1)
            mixed = torch.zeros_like(tokens).index_add(0, order // chosen.shape[1], weighted.to(tokens.dtype))
        else:
            mixed = aggregate(by_token(), weights, config.aggregation).to(tokens.dtype)
        size = states.shape[:2]
        for watcher in self.watchers:
            of_text = (x.unflatten(0, size) for x in (probabilities, chosen, weights))
            watcher(*of_text, lambda: by_token().unflatten(0, size))
        return (mixed + self.experts.bias).view_as(states)
