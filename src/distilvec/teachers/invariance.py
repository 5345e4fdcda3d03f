"""Does a text get the same vector alone and padded in a batch? Wrong padding and ignored masks show here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_SHORT = ("A cat.", "Where is the nearest pharmacy?", "The train to Zürich leaves at half past two.")
_LONG = (
    "The old lighthouse keeper wrote down the weather every evening for forty years, and when he died his "
    "notebooks were found in a tin box under the stairs, dry, complete and in perfect order. "
)
_REPEATS = (1, 3)
# Cosine distance: rounding alone stays below these.
_TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-3, "float16": 1e-3}


@dataclass(frozen=True)
class InvarianceReport:
    """What the probe found.

    Attributes:
        passed: whether every text kept its vector.
        worst: largest cosine distance between a text's vector alone and in the batch.
        tolerance: what was allowed.
        text: the text that moved most.
        advice: what is wrong and what to do; empty where it passed.
    """

    passed: bool
    worst: float
    tolerance: float
    text: str
    advice: str


def batch_invariance(
    teacher: Any, tolerance: float | None = None, items: Sequence[str] | None = None
) -> InvarianceReport:
    """Encode short texts alone, and once more in a batch with longer ones, and compare.

    A callable or a service is asked four times with few texts. Vectors from elsewhere pass: nothing is computed for
    them.

    Args:
        teacher: any teacher.
        tolerance: largest cosine distance allowed; default by the teacher's dtype (1e-5 in float32).
        items: what is encoded where the teacher does not read texts; the first three alone, too.
    """
    if tolerance is None:
        tolerance = _TOLERANCE.get(teacher.card.dtype, 1e-5)
        if teacher.card.kind in ("callable", "service"):  # services answer in half precision, and not always the same
            tolerance = 1e-3
    if teacher.card.kind == "vectors":
        return InvarianceReport(True, 0.0, tolerance, "", "")
    if items is not None:
        return _of_items(teacher, tolerance, list(items)[:12])
    alone = np.concatenate([teacher.together([text]) for text in _SHORT])
    gaps = _gaps(alone, _batched(teacher, None), getattr(teacher, "gaps", False))
    worst = int(gaps.argmax())
    if gaps[worst] <= tolerance:
        return InvarianceReport(True, float(gaps[worst]), tolerance, _SHORT[worst], "")
    return InvarianceReport(False, float(gaps[worst]), tolerance, _SHORT[worst], _advice(teacher, alone, tolerance))


def _of_items(teacher: Any, tolerance: float, items: list[str]) -> InvarianceReport:
    """Images or molecules: nothing is padded, so what differs is a normalisation over the batch, or chance."""
    if not items:
        return InvarianceReport(True, 0.0, tolerance, "", "")
    alone = np.concatenate([teacher.together([item]) for item in items[:3]])
    gaps = _gaps(alone, teacher.together(items)[: len(alone)], getattr(teacher, "gaps", False))
    worst = int(gaps.argmax())
    passed = bool(gaps[worst] <= tolerance)
    advice = "" if passed else "Is it in evaluation mode? It normalises over the batch, or drops units at random."
    return InvarianceReport(passed, float(gaps[worst]), tolerance, items[worst], advice)


def _batched(teacher: Any, side: str | None) -> np.ndarray:
    texts = [*_SHORT, *(_LONG * count for count in _REPEATS)]
    vectors: np.ndarray = teacher.together(texts, side)
    return vectors[: len(_SHORT)]


def _gaps(alone: np.ndarray, batched: np.ndarray, may_lack: bool = False) -> np.ndarray:
    """Cosine distances [n]; a vector of zeros or NaN counts as far away, one lacking in both ways not where it may."""
    a, b = alone.astype(np.float64), batched.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        gaps = 1 - (a * b).sum(axis=1) / norms
    if may_lack:
        gaps[np.isnan(a).all(axis=1) & np.isnan(b).all(axis=1)] = 0.0
    return np.nan_to_num(gaps, nan=2.0, posinf=2.0, neginf=2.0)


def _advice(teacher: Any, alone: np.ndarray, tolerance: float) -> str:
    if teacher.card.kind in ("callable", "service"):
        return "It gives a text another vector when others stand beside it. Set batch_size to 1."
    tokens = getattr(teacher, "tokens", None)
    if tokens is not None:
        other = "right" if tokens.side == "left" else "left"
        if _gaps(alone, _batched(teacher, other)).max() <= tolerance:
            return (
                f"Padding is on the {tokens.side}, and with padding on the {other} the vectors agree. "
                f'Set "padding_side" to "{other}" in the tokenizer_config.json of the model.'
            )
    return (
        "Padding changes the vectors on either side, so the model or its pooling ignores the attention mask. "
        "Use another version of the model, or set token_budget to 1 so that every text is encoded alone."
    )
