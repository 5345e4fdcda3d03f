"""Does a text get the same vector alone and padded in a batch? Wrong padding and ignored masks show here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.modules.blocks import token_head, without_dropout
from distilvec.modules.pipeline import reads_texts, text_routes

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)
_SHORT = ("A cat.", "Where is the nearest pharmacy?", "The train to Zürich leaves at half past two.")
_LONG = (
    "The old lighthouse keeper wrote down the weather every evening for forty years, and when he died his "
    "notebooks were found in a tin box under the stairs, dry, complete and in perfect order. "
)
_REPEATS = (1, 3)
# Cosine distance: rounding alone stays below these.
_TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-3, "float16": 1e-3}
#: What is wrong where neither side of padding is right; the end says how to encode every text alone.
IGNORED = (
    "Padding changes the vectors on either side, so the model or its pooling ignores the attention mask. "
    "Use another version of the model, or {}"
)

#: Texts and the side of their padding (None = the model's own) -> float32 [n, D], all texts in one forward pass.
Together = Callable[[Sequence[str], str | None], np.ndarray]


@dataclass(frozen=True)
class InvarianceReport:
    """The result of the probe.

    Attributes:
        passed: whether every text kept its vector.
        worst: largest cosine distance between a text's vector alone and in the batch.
        tolerance: what was allowed.
        advice: what is wrong and what to do; empty where it passed.
        finite: whether all vectors were.
    """

    passed: bool
    worst: float
    tolerance: float
    advice: str
    finite: bool = True

    @property
    def warning(self) -> str:
        """The fault and its remedy, in whole sentences; empty if the probe passed."""
        if self.passed or not self.finite:
            return self.advice
        return (
            f"a text gets another vector alone than padded in a batch (cosine distance {self.worst:.2g}, allowed "
            f"{self.tolerance:.2g}). {self.advice}"
        )


def tolerance_of(dtype: str) -> float:
    """Return the cosine distance that rounding in a type ("float32") stays below."""
    return _TOLERANCE.get(dtype, 1e-5)


def probe_texts(
    together: Together,
    *,
    tolerance: float,
    dtype: str = "float32",
    side: str | None = None,
    remedy: str = "",
    gaps: bool = False,
) -> InvarianceReport:
    """Encode short texts alone, and once more in a batch with longer ones, and compare.

    Args:
        together: the model.
        tolerance: largest cosine distance allowed.
        dtype: of the computation.
        side: where it pads; None where nothing is known of it.
        remedy: what is wrong and what helps if padding on the other side changes the vectors, too.
        gaps: whether a text may have no vector, which is NaN throughout.
    """
    alone = np.concatenate([together([text], None) for text in _SHORT])
    report = _compared(alone, _batched(together, None), tolerance, dtype, gaps)
    if report.advice or report.passed:
        return report
    other = "right" if side == "left" else "left"
    if side is not None and cosine_distances(alone, _batched(together, other), gaps).max() <= tolerance:
        remedy = (
            f"Padding is on the {side}, and with padding on the {other} the vectors agree. "
            f'Set "padding_side" to "{other}" in the tokenizer_config.json of the model.'
        )
    return replace(report, advice=remedy)


def probe_items(
    together: Together, items: Sequence[str], *, tolerance: float, dtype: str = "float32", gaps: bool = False
) -> InvarianceReport:
    """Compare images or molecules alone and in a batch: without padding, only normalisation or chance can differ."""
    if not items:
        return InvarianceReport(True, 0.0, tolerance, "")
    alone = np.concatenate([together([item], None) for item in items[:3]])
    report = _compared(alone, together(items, None)[: len(alone)], tolerance, dtype, gaps)
    advice = "Is it in evaluation mode? It normalises over the batch, or drops units at random."
    return report if report.advice or report.passed else replace(report, advice=advice)


def probe_model(model: SentenceTransformer) -> InvarianceReport:
    """Run `probe_texts` on a model as it encodes; the worst route of a `Router`.

    What pads no texts passes: images, molecules, models that write, a tokenizer without a padding token.
    """
    dtype = next((str(each.dtype).removeprefix("torch.") for each in model.parameters()), "float32")
    passed = InvarianceReport(True, 0.0, tolerance_of(dtype), "")
    if not reads_texts(model) or token_head(model) is not None:
        return passed
    remedy, reports = IGNORED.format("encode every text alone (a batch size of 1)."), [passed]
    with without_dropout(model):
        for route, _, first in text_routes(model):
            tokenizer: Any = getattr(first, "tokenizer", None)
            if getattr(tokenizer, "pad_token", "") is not None:
                together, side = _encoding(model, route, tokenizer), getattr(tokenizer, "padding_side", None)
                tolerance = tolerance_of(dtype)
                reports.append(probe_texts(together, tolerance=tolerance, dtype=dtype, side=side, remedy=remedy))
    return max(reports, key=lambda report: report.worst)


def warn_of_batches(model: SentenceTransformer, name: str) -> None:
    """Log what `probe_model` finds wrong with a model, under the name that the person called it."""
    report = probe_model(model)
    if not report.passed:
        logger.warning("%s: %s", name, report.warning)


def _encoding(model: SentenceTransformer, route: str, tokenizer: Any) -> Together:
    """Make the function that encodes texts in one batch with a route of a model."""
    options: dict[str, Any] = {"task": route} if route else {}

    def together(texts: Sequence[str], side: str | None) -> np.ndarray:
        own = getattr(tokenizer, "padding_side", None)
        try:
            if side is not None:
                tokenizer.padding_side = side
            vectors = model.encode(list(texts), batch_size=len(texts), show_progress_bar=False, **options)
            return np.asarray(vectors, np.float32)
        finally:
            if side is not None:
                tokenizer.padding_side = own

    return together


def _batched(together: Together, side: str | None) -> np.ndarray:
    return together([*_SHORT, *(_LONG * count for count in _REPEATS)], side)[: len(_SHORT)]


def cosine_distances(alone: np.ndarray, batched: np.ndarray, gaps: bool = False) -> np.ndarray:
    """Return cosine distances [n]: 0 of equal vectors and gaps on both sides, 2 of other vectors of zeros or NaN."""
    a, b = alone.astype(np.float64), batched.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        distances = 1 - (a * b).sum(axis=1) / norms
    distances[(a == b).all(axis=1)] = 0.0  # two vectors of zeros have no cosine
    if gaps:
        distances[np.isnan(a).all(axis=1) & np.isnan(b).all(axis=1)] = 0.0
    return np.nan_to_num(distances, nan=2.0, posinf=2.0, neginf=2.0)


def _compared(alone: np.ndarray, batched: np.ndarray, tolerance: float, dtype: str, gaps: bool) -> InvarianceReport:
    """Compare two readings [n, D] of the same texts; the advice is empty if they differ and are finite."""
    worst = float(cosine_distances(alone, batched, gaps).max())
    passed = worst <= tolerance
    finite = passed or gaps or bool(np.isfinite(alone).all() and np.isfinite(batched).all())
    remedy = (
        "The largest number of float16 is 65,504: set dtype to bfloat16 or float32."
        if dtype == "float16"
        else "Its weights may be damaged; copy or download the model again."
    )
    advice = "" if finite else f"its vectors hold NaN or infinity in {dtype}. {remedy}"
    return InvarianceReport(passed, worst, tolerance, advice, finite)
