"""Conversion of float32 vectors to and from the stored dtype."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: From here on float16 rounds to infinity.
BEYOND = 65520.0
_SMALL = 2.0**-10


class Misfit(NamedTuple):
    """Tell how many of some vectors cannot be stored, the row of the first, what it has, and what to do about it."""

    number: int
    row: int
    what: str
    remedy: str


def misfit(vectors: np.ndarray, dtype: str) -> Misfit | None:
    """Look for a vector, of float32 [n, D], that is not finite or too large for the stored dtype."""
    largest = np.abs(vectors).max(axis=1, initial=0)
    wrong = np.flatnonzero(~(largest < (BEYOND if dtype == "float16" else np.inf)))
    if not len(wrong):
        return None
    row = int(wrong[0])
    if not np.isfinite(largest[row]):
        return Misfit(
            len(wrong), row, "values that are not finite", "Try the teacher in float32, or leave the item out."
        )
    what = f"a value of {largest[row]:.4g}, float16 ends at 65504"
    return Misfit(len(wrong), row, what, "Keep this teacher's vectors in float32 (storage: float32 in a recipe).")


def pack(vectors: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Round vectors to the stored dtype.

    Args:
        vectors: float32 [n, D], without a `misfit`.
        dtype: "float16", "float32", or "int8" (symmetric, one scale per row: value = integer * scale).

    Returns:
        Values [n, D] in that dtype, and float32 [n] scales (value = stored value * scale): of int8 always, of float16
        powers of two where a row is too small for it, None where every row keeps its precision without.
    """
    if dtype == "int8":
        # float64, so that the quotient of a tiny row by its tiny scale stays within 127.
        scale = (np.abs(vectors).max(axis=1) / np.float32(127)).astype(np.float32)
        divisor = np.where(scale > 0, scale, 1).astype(np.float64)
        return np.clip(np.rint(vectors / divisor[:, None]), -127, 127).astype(np.int8), scale
    if dtype == "float16":
        return _enlarged(vectors, vectors.astype(np.float16))
    return vectors.astype(np.float32, copy=True), None


def _enlarged(vectors: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Divide rows that float16 would round to nothing by the power of two that brings their largest value to [1, 2).

    Float16 has 11 bits for values from 2^-14 on and loses them one by one below. A row whose largest value is 2^-10 or
    more is left as it is: what it loses there is within 2^-15 of that value.
    """
    largest = np.abs(vectors).max(axis=1, initial=0).astype(np.float64)
    small = (largest > 0) & (largest < _SMALL)
    if not small.any():
        return values, None
    scale = np.ones(len(vectors), np.float32)
    scale[small] = np.exp2(np.floor(np.log2(largest[small])))
    values[small] = (vectors[small] / scale[small, None].astype(np.float64)).astype(np.float16)
    return values, scale


def unpack(values: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    """Return what `pack` stored, as float32 [n, D]."""
    vectors = values.astype(np.float32)
    if scale is not None:
        vectors *= scale[:, None]
    return vectors
