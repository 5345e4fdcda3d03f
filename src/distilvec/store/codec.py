"""How float32 vectors are stored and read back."""

from __future__ import annotations

import numpy as np

from distilvec.errors import DataError


def pack(vectors: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Round vectors to the stored dtype.

    Args:
        vectors: float32 [n, D], finite.
        dtype: "float16", "float32", or "int8" (symmetric, one scale per row: value = integer * scale).

    Returns:
        Values [n, D] in that dtype, and float32 [n] scales for int8 (None otherwise).

    Raises:
        DataError: where a value does not fit into float16.
    """
    if dtype == "int8":
        # float64, so that the quotient of a tiny row by its tiny scale stays within 127.
        scale = (np.abs(vectors).max(axis=1) / np.float32(127)).astype(np.float32)
        divisor = np.where(scale > 0, scale, 1).astype(np.float64)
        return np.clip(np.rint(vectors / divisor[:, None]), -127, 127).astype(np.int8), scale
    if dtype == "float16":
        with np.errstate(over="ignore"):
            values = vectors.astype(np.float16)
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])
            raise DataError(
                f"a vector has a value of {np.abs(vectors[row]).max():.4g}, float16 ends at 65504",
                where=f"row {row} of the vectors",
                remedy="Keep this teacher's vectors in float32 (storage: float32 in a recipe).",
            )
        return values, None
    return vectors.astype(np.float32, copy=True), None


def unpack(values: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    """What `pack` stored, as float32 [n, D]."""
    vectors = values.astype(np.float32)
    if scale is not None:
        vectors *= scale[:, None]
    return vectors
