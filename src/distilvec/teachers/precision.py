"""In which precision a teacher reads whose recipe leaves it open: bfloat16 where it is faster and says the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from distilvec.precision import bfloat16_pays
from distilvec.teachers.text import TextTeacher

#: Texts that are read in both precisions, and the least cosine of their vectors with which bfloat16 is used.
PROBED, LEAST = 32, 0.999


def settle_precision(teacher: Any, texts: Sequence[str], held: str | None = None) -> str:
    """Choose between bfloat16 and float32 for a text model that was opened without a dtype.

    Args:
        teacher: any; others than such a model are left as they are, and so are weights that lie in half precision on
            the device.
        texts: what it is to read; some are read in both precisions.
        held: precision of the vectors that its store holds, which go on in it; None = there are none yet.

    Returns:
        One sentence on what was chosen and why; empty where nothing was to be chosen.
    """
    if not isinstance(teacher, TextTeacher) or not teacher.dtype_open or not bfloat16_pays(teacher.device.type):
        return ""
    weights = {weight.dtype for weight in teacher.model.parameters() if weight.is_floating_point()}
    if weights != {torch.float32}:
        return ""
    if held in ("float32", "bfloat16"):
        teacher.compute_in(held)
        return f"{teacher.card.name} reads in {held}, as what its store holds was read"
    cosines = _cosines(teacher, list(texts[:PROBED]))
    teacher.compute_in("bfloat16" if cosines.min() > LEAST else "float32")
    seen = f"of {len(cosines)} texts the vectors of both have a mean cosine of {_shown(cosines.mean())}"
    least = f"and a least one of {_shown(cosines.min())}"
    if teacher.card.dtype == "float32":
        return f"{teacher.card.name} reads in float32, not in bfloat16: {seen} {least}, which is not above {LEAST}"
    return f"{teacher.card.name} reads in bfloat16, which is faster here than float32: {seen} {least}"


def _cosines(teacher: TextTeacher, texts: list[str]) -> np.ndarray:
    """float64 [n], of each text's vectors in both precisions; 0 where one is not finite, 1 where both are zero."""
    vectors = []
    for dtype in ("float32", "bfloat16"):
        teacher.compute_in(dtype)
        vectors.append(teacher.encode(texts).astype(np.float64))
    full, narrow = vectors
    lengths = np.linalg.norm(full, axis=1) * np.linalg.norm(narrow, axis=1)
    with np.errstate(invalid="ignore"):
        cosines = (full * narrow).sum(1) / np.where(lengths == 0, 1.0, lengths)
    cosines[(lengths == 0) & (full == narrow).all(axis=1)] = 1.0
    return np.nan_to_num(cosines, nan=0.0)


def _shown(cosine: float) -> str:
    """As many digits as tell it from 1."""
    return f"{cosine:.5f}"
