"""Vectors as whatever Python object somebody has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.errors import DataError


def as_vectors(given: Any, where: str) -> npt.NDArray[np.float32]:
    """float32 of arrays, lists, frames' columns, and torch tensors of any type on any device.

    Args:
        given: what there is; its shape is not looked at.
        where: for messages.

    Raises:
        DataError: no array of numbers can be made of it.
    """
    try:
        if hasattr(given, "detach"):  # torch's, which this file does not import
            given = given.detach().cpu().float()
        return np.asarray(given, dtype=np.float32)
    except (TypeError, ValueError, OverflowError, RuntimeError) as problem:
        raise DataError(
            f"no array of numbers can be made of a {type(given).__name__}: {str(problem)[:200]}",
            where=where,
            remedy="Give a NumPy array [n, D].",
        ) from problem
