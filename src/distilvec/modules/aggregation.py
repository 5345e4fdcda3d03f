"""Switching how a loaded model adds up its experts."""

from __future__ import annotations

from typing import Any

from torch import nn

from distilvec.errors import DistilvecError, nearest
from distilvec.modules.blocks import class_names
from distilvec.modules.expert_head import ExpertHead
from distilvec.modules.moe_encoder import MoeEncoderConfig
from distilvec.modules.sphere import AGGREGATIONS


def set_aggregation(model: nn.Module, mode: str, normalize_weights: bool | None = None) -> None:
    """Choose the aggregation of every mixture of experts in a model; it is saved with the model.

    Args:
        model: a sentence-transformers or transformers model with mixtures in its encoder (`MoeEncoder`), a DistillMoE
            head (`ExpertHead`), or both.
        mode: "linear" (the model as it was made), "sba", "norm_free", "unit" or "nlerp", as in
            `distilvec.functional.spherical_aggregate`.
        normalize_weights: whether an encoder divides a token's router weights by their sum; None leaves that as it
            is. A head's always sum to 1.

    Raises:
        DistilvecError: an unknown mode, or no mixture; nothing is changed then.
    """
    if mode not in AGGREGATIONS:
        raise DistilvecError(f'There is no aggregation "{mode}"', remedy=nearest(mode, AGGREGATIONS))
    heads = [module for module in model.modules() if isinstance(module, ExpertHead)]
    # By their type, not their class, which may have come with a folder.
    found: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    configs = {id(each): each for each in found if getattr(each, "model_type", None) == MoeEncoderConfig.model_type}
    if not heads and not configs:
        raise DistilvecError(
            f"this model ({class_names(model)}) has no mixture of experts whose aggregation could be chosen",
            remedy="Use a mixture-of-experts encoder (distilvec.students.upcycle makes one) or a DistillMoE student.",
        )
    for head in heads:
        head.aggregation = mode
    for config in configs.values():
        config.aggregation = mode
        if normalize_weights is not None:
            config.normalize_weights = normalize_weights
