"""Finding the transformer inside a student and the list of its blocks, and running a model as it is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.modules.causal import Writer


def find_transformer(student: SentenceTransformer) -> Any | None:
    """The student's `Transformer` or `Writer` (its `.model` is the transformers model); None for static students."""
    from sentence_transformers.base.modules import Transformer

    modules = student.children()
    return next((each for each in modules if isinstance(each, Transformer) or getattr(each, "writes", False)), None)


def find_writer(model: Any) -> Writer | None:
    """The causal language model of a pipeline (`modules.causal`); None where it does not write."""
    first: Any = next(iter(model.children()), None) if isinstance(model, nn.Module) else None
    return first if getattr(first, "writes", False) else None


def token_head(model: nn.Module) -> nn.Linear | None:
    """The map from last states to logits of the next token; None of a model that has none."""
    first = next(iter(model.children()), None)
    head: nn.Linear | None = getattr(first, "token_head", None)
    return head


def class_names(model: nn.Module) -> str:
    """Return what a model is made of, for errors: "Transformer, Pooling"."""
    return ", ".join(type(module).__name__ for module in model.children())


def find_blocks(model: nn.Module) -> tuple[str, nn.ModuleList] | None:
    """The transformer blocks of a transformers model, whatever it calls them.

    It is the module list as long as `config.num_hidden_layers`; among several, the one with most parameters, and
    among equals the outermost.

    Args:
        model: a transformers model, possibly with adapters around it.

    Returns:
        The name of the list within the model, and the list; None where there is none (ALBERT shares one block).
    """
    count = getattr(getattr(model, "config", None), "num_hidden_layers", None)
    if not count:
        return None
    lists = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if not lists:
        return None
    return max(lists, key=lambda each: (parameters(each[1]), -each[0].count(".")))


def parameters(module: nn.Module) -> int:
    """Number of parameters, each shared tensor once."""
    return sum(parameter.numel() for parameter in module.parameters())


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """With a model in eval mode; afterwards each of its parts is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
