"""Low-rank adapters (Hu et al. 2021) in a transformer while it is trained, merged into its weights afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.modules.blocks import find_transformer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


def check_lora(student: SentenceTransformer) -> None:
    """See that a student can have adapters.

    Raises:
        DistilvecError: it has no transformer.
        EnvironmentProblem: peft is not installed.
    """
    if find_transformer(student) is None:
        raise DistilvecError(
            "this model has no transformer to put adapters in", where="student.lora", remedy="Leave it out."
        )
    if find_spec("peft") is None:
        raise EnvironmentProblem(
            "low-rank adapters need the package peft", where="lora", remedy="Install it: pip install 'distilvec[lora]'"
        )


@contextmanager
def adapters(student: SentenceTransformer, *, rank: int, alpha: float, dropout: float, seed: int) -> Iterator[None]:
    """A student with adapters beside every linear map of its transformer, in place; only they can be trained inside.

    At the end they are added to the weights and taken out again. Where the block fails they stay.

    Args:
        rank: r of the adapters, >= 1.
        alpha: their output is multiplied by alpha / rank.
        dropout: on their input, in [0, 1).
        seed: of their start.

    Raises:
        DistilvecError, EnvironmentProblem: as `check_lora`.
    """
    check_lora(student)
    from peft import LoraConfig, LoraModel

    transformer = find_transformer(student)
    assert transformer is not None
    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules="all-linear")  # type: ignore[arg-type]  # a fraction is fine
    adapted = LoraModel(transformer.model, config, "default")
    yield
    adapted.merge_and_unload()
