"""Holding a model's linear layers in 8 bits, for models that are too large as they are."""

from __future__ import annotations

import importlib.util
from typing import Any

from distilvec.errors import EnvironmentProblem


def eight_bits() -> Any:
    """Return what transformers takes as `quantization_config`: int8 weights with a scale for each row (torchao).

    Computation stays as it is; a linear layer takes a quarter of its float32 memory.

    Raises:
        EnvironmentProblem: torchao is not installed.
    """
    if importlib.util.find_spec("torchao") is None:
        raise EnvironmentProblem(
            "weights in 8 bits need torchao, which is not installed",
            where="teachers.load",
            remedy="pip install 'distilvec[torchao]'",
        )
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    return TorchAoConfig(Int8WeightOnlyConfig())
