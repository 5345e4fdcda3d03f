"""The routing of a mixture-of-experts encoder while it runs, and the loss that keeps its load even."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from distilvec.errors import DistilvecError
from distilvec.modules.blocks import class_names, find_blocks, find_transformer
from distilvec.precision import full_precision

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class Routing:
    """The routing of one batch by one mixture.

    Attributes:
        layer: of its block, 1 to L.
        probabilities: [N, S, E], at least float32, before the selection; at padding they mean nothing.
        chosen: long [N, S, K]; E at padding.
        weights: [N, S, K] of the chosen experts, as they were aggregated.
        outputs: gives [N, S, K, d] of the chosen experts, zero at padding.
    """

    layer: int
    probabilities: Tensor
    chosen: Tensor
    weights: Tensor
    outputs: Callable[[], Tensor]

    @property
    def real(self) -> Tensor:
        """bool [N, S], True = not padding."""
        return self.chosen[..., 0] < self.probabilities.shape[-1]

    @property
    def selected(self) -> Tensor:
        """bool [N, S, E], the assignments; none at padding."""
        experts = torch.arange(self.probabilities.shape[-1], device=self.chosen.device)
        return (self.chosen.unsqueeze(-1) == experts).any(-2)


def mixtures(model: nn.Module) -> dict[int, Any]:
    """Layer (1 to L) -> mixture of a mixture-of-experts encoder; empty for every other transformers model."""
    found = find_blocks(model)
    if found is None:
        return {}
    modules = {layer: getattr(block, "mlp", None) for layer, block in enumerate(found[1], 1)}
    return {layer: module for layer, module in modules.items() if hasattr(module, "watchers")}


@contextlib.contextmanager
def routing(model: nn.Module) -> Iterator[list[Routing]]:
    """Collect what the mixtures of a model do in the forward passes within the block, one entry per layer and pass.

    Args:
        model: a sentence-transformers model, or the transformers model in it.
    """
    seen, end = _watched(model)
    with end:
        yield seen


def hand_out_routing(student: SentenceTransformer) -> contextlib.ExitStack:
    """Let a student leave its routers' sums in the features of each forward pass, where a `StudentTap` finds them.

    The features get, for the M mixtures in their order and padding left out, `router_load` float32 [N, M, E], how many
    assignments of the text's tokens each expert has, and `router_probability` [N, M, E], the sum of its probabilities.
    `router_balance` of them is the loss for load balancing.

    Returns:
        What ends it when it is closed.
    """
    transformer = find_transformer(student)
    seen, end = _watched(student)

    def before(module: nn.Module, args: tuple[Any, ...]) -> None:
        seen.clear()

    def after(module: nn.Module, args: tuple[Any, ...], features: dict[str, Any]) -> None:
        features["router_load"] = torch.stack([each.selected.sum(1).float() for each in seen], 1)
        real = [each.probabilities.masked_fill(~each.real.unsqueeze(-1), 0).sum(1) for each in seen]
        features["router_probability"] = torch.stack(real, 1)
        seen.clear()

    assert transformer is not None
    for hook in (transformer.register_forward_pre_hook(before), transformer.register_forward_hook(after)):
        end.callback(hook.remove)
    return end


@full_precision
def router_balance(load: Tensor, probability: Tensor) -> Tensor:
    """E * sum over e of f_e P_e, averaged over layers: `load_balance` of all tokens, from the sums of each text.

    Args:
        load: [N, M, E], how many assignments each expert has of each text.
        probability: [N, M, E], the sum of the probabilities of each text's tokens.

    Returns:
        []; 1 when assignments or probabilities are even, E when one expert takes all, 0 without tokens. The gradient
        goes through the probabilities only.

    Source: Switch Transformer (Fedus et al. 2022), eqs. 4 to 6, for any number of assignments per token.
    """
    assignments, mass = load.sum(0), probability.sum(0)  # [M, E]
    share = assignments / assignments.sum(-1, keepdim=True).clamp_min(1)
    mean = mass / mass.sum(-1, keepdim=True).detach().clamp_min(1)  # each token's probabilities sum to 1
    return load.shape[-1] * (share * mean).sum(-1).mean()


def _watched(model: nn.Module) -> tuple[list[Routing], contextlib.ExitStack]:
    """Record what the mixtures of a model do from now on, until the stack that is returned, too, is closed."""
    from sentence_transformers import SentenceTransformer

    transformer = find_transformer(model) if isinstance(model, SentenceTransformer) else None
    by_layer = mixtures(model if transformer is None else transformer.model)
    if not by_layer:
        raise DistilvecError(
            f"this model ({class_names(model)}) has no mixtures of experts, so there is no routing to see",
            remedy="Use a mixture-of-experts encoder; distilvec.students.upcycle makes one of a dense model.",
        )
    seen: list[Routing] = []
    end = contextlib.ExitStack()

    for layer, module in by_layer.items():
        module.watchers.append(lambda *told, layer=layer: seen.append(Routing(layer, *told)))
        end.callback(module.watchers.remove, module.watchers[-1])
    return seen, end
