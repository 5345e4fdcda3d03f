"""Full precision for functions of this package under any autocast, and whether bfloat16 pays on this machine."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

__all__ = ["bfloat16_pays", "full_precision"]

P = ParamSpec("P")
R = TypeVar("R")


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Runs `function` outside autocast, on tensors of one float type of at least float32.

    Casting alone is not enough: inside autocast the product of two float32 tensors is a bfloat16 one.
    Half-precision arguments become float32; where one argument is float64, all floating ones become
    float64. Integer and boolean tensors, and everything that is no tensor, pass unchanged.
    """

    @functools.wraps(function)
    def outside_autocast(*args: P.args, **kwargs: P.kwargs) -> R:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        floating = [tensor for tensor in tensors if tensor.is_floating_point()]
        wide = any(tensor.dtype == torch.float64 for tensor in floating)
        dtype = torch.float64 if wide else torch.float32
        if any(tensor.dtype != dtype for tensor in floating):
            args = tuple(_cast(value, dtype) for value in args)  # type: ignore[assignment]
            kwargs = {name: _cast(value, dtype) for name, value in kwargs.items()}  # type: ignore[assignment]
        device = tensors[0].device.type if tensors else "cpu"
        if not torch.is_autocast_enabled(device):
            return function(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return function(*args, **kwargs)

    return outside_autocast


def _cast(value: object, dtype: torch.dtype) -> object:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


@functools.cache
def bfloat16_pays(device: str | None = None) -> bool:
    """Tell whether a device multiplies matrices faster in bfloat16 than in float32.

    Processors are measured once per process, for some hundredths of a second, where they have instructions for it:
    seen were ones on which bfloat16 takes half of float32's time, and ones on which it takes twice as much. Stores and
    checkpoints keep the precision they began in, whatever a later process measures.

    Args:
        device: "cuda", "cpu" or another kind, which gains nothing; None = CUDA where there is one, else the processor.
    """
    if device not in (None, "cpu", "cuda"):
        return False
    if device != "cpu" and (device == "cuda" or torch.cuda.is_available()):
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    if "avx512_bf16" not in flags and "amx_bf16" not in flags:
        return False
    # In turns, and the best of each: other load on the machine slows single rounds, and where it is close all of them.
    narrow = full = float("inf")
    for number in range(64):
        narrow, full = min(narrow, _product_seconds(torch.bfloat16)), min(full, _product_seconds(torch.float32))
        if number >= 7 and not 1.0 < full / narrow < 1.5:
            break
    return narrow * 1.2 < full  # casting has its price too


def _product_seconds(dtype: torch.dtype) -> float:
    """Return what a block's product of some texts' tokens takes."""
    tokens, weights = torch.ones(1024, 384, dtype=dtype), torch.ones(384, 384, dtype=dtype)
    start = time.perf_counter()
    torch.nn.functional.linear(tokens, weights)
    return time.perf_counter() - start
