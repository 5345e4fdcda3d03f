"""Low-rank adapters (Hu et al. 2021) in a transformer while it is trained, merged into its weights afterwards."""

from __future__ import annotations

from typing import Any

from torch import nn

from distilvec.errors import EnvironmentProblem


def add_lora(model: nn.Module, *, rank: int, alpha: float, dropout: float) -> Any:
    """Put adapters beside every linear map of a transformers model, in place; only they can be trained then.

    Args:
        model: a transformers model.
        rank: r of the adapters, >= 1.
        alpha: their output is multiplied by alpha / rank.
        dropout: on their input, in [0, 1).

    Returns:
        What `merge_lora` takes.

    Raises:
        EnvironmentProblem: peft is not installed.
    """
    try:
        from peft import LoraConfig, LoraModel
    except ImportError as error:
        raise EnvironmentProblem(
            "low-rank adapters need the package peft", where="lora", remedy="Install it: pip install 'distilvec[lora]'"
        ) from error
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules="all-linear")  # type: ignore[arg-type]  # a fraction is fine
    return LoraModel(model, config, "default")


def merge_lora(adapted: Any) -> None:
    """Add the adapters to the weights and take them out again, in place."""
    adapted.merge_and_unload()
