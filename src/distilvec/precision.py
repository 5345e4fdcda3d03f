"""Full precision for the functions of this package, whatever the caller's autocast says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

__all__ = ["full_precision"]

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
