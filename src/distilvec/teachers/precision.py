"""The precision of a teacher: bfloat16 where it is faster and says the same, and what weights in 8 bits change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from distilvec.modules.invariance import cosine_distances
from distilvec.precision import bfloat16_pays
from distilvec.teachers.text import TextTeacher

#: Texts that are read in both precisions, and the least cosine of their vectors with which bfloat16 is used.
PROBED, LEAST = 32, 0.999
#: Texts that a model in 8 bits and the whole one both read.
COMPARED = 10


def settle_precision(teacher: Any, texts: Sequence[str], held: str | None = None) -> str:
    """Choose between bfloat16 and float32 for a text model that was opened without a dtype; look at what 8 bits change.

    Other teachers are left as they are, and so are weights that lie in half precision on the device.

    Args:
        texts: what it is to read; some are read in both precisions.
        held: precision of the vectors that its store holds, which go on in it; None = there are none yet.

    Returns:
        What was chosen and why, and how near the vectors of a model in 8 bits are to those of the whole one, unless
        there is a store already or no memory for both; empty where nothing was to be chosen.
    """
    said = [_chosen(teacher, texts, held), "" if held else _eight_bits(teacher, texts)]
    return "; ".join(filter(None, said))


def _chosen(teacher: Any, texts: Sequence[str], held: str | None) -> str:
    if not isinstance(teacher, TextTeacher) or not teacher.dtype_open:
        return ""
    weights = {weight.dtype for weight in teacher.model.parameters() if weight.is_floating_point()}
    if weights != {torch.float32}:
        return ""
    if held in ("float32", "bfloat16"):
        other = held != teacher.card.dtype or bfloat16_pays(teacher.device.type)
        teacher.compute_in(held)
        return f"{teacher.card.name} reads in {held}, as what its store holds was read" if other else ""
    if not bfloat16_pays(teacher.device.type):
        return ""
    vectors = []
    for dtype in ("float32", "bfloat16"):
        teacher.compute_in(dtype)
        vectors.append(teacher.encode(list(texts[:PROBED])))
    cosines = 1 - cosine_distances(vectors[0], vectors[1])
    teacher.compute_in("bfloat16" if cosines.min() > LEAST else "float32")
    seen = f"of {len(cosines)} texts the vectors of both have a mean cosine of {cosines.mean():.5f}"
    least = f"and a least one of {cosines.min():.5f}"
    if teacher.card.dtype == "float32":
        return f"{teacher.card.name} reads in float32, not in bfloat16: {seen} {least}, which is not above {LEAST}"
    return f"{teacher.card.name} reads in bfloat16, which is faster here than float32: {seen} {least}"


def _eight_bits(teacher: Any, texts: Sequence[str]) -> str:
    if not isinstance(teacher, TextTeacher) or _memory_left(teacher.device) < 2 * (teacher.card.size_bytes or 0):
        return ""
    whole = teacher.whole()
    if whole is None:
        return ""
    whole.compute_in(teacher.card.dtype)
    some = list(texts[:COMPARED])
    cosines = 1 - cosine_distances(whole.encode(some), teacher.encode(some))
    return (
        f"{teacher.card.name} holds its weights in 8 bits: of {len(some)} texts its vectors and those of the whole "
        f"model have a mean cosine of {cosines.mean():.5f} and a least one of {cosines.min():.5f}"
    )


def _memory_left(device: torch.device) -> int:
    """Bytes that are free where a model lies; 0 where nobody says."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
