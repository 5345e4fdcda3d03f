"""The probe of `modules.invariance` on a teacher."""

from __future__ import annotations

from collections.abc import Sequence

from distilvec.modules.invariance import IGNORED, InvarianceReport, probe_items, probe_texts, tolerance_of
from distilvec.teachers.base import Teacher

__all__ = ["InvarianceReport", "batch_invariance"]


def batch_invariance(
    teacher: Teacher, tolerance: float | None = None, items: Sequence[str] | None = None
) -> InvarianceReport:
    """Encode short texts alone, and once more in a batch with longer ones, and compare.

    A callable or a service is asked four times with few texts. Vectors from elsewhere pass: nothing is computed for
    them.

    Args:
        tolerance: largest cosine distance allowed; default by the teacher's dtype (1e-5 in float32).
        items: what is encoded where the teacher does not read texts; the first three alone, too.
    """
    card, can = teacher.card, teacher.can
    if tolerance is None:  # services answer in half precision, and not always the same
        tolerance = 1e-3 if can.paid else tolerance_of(card.dtype)
    if can.made:
        return InvarianceReport(True, 0.0, tolerance, "")
    if items is not None:
        return probe_items(teacher.together, list(items)[:12], tolerance=tolerance, dtype=card.dtype, gaps=can.gaps)
    remedy = "It gives a text another vector when others stand beside it. Set batch_size to 1."
    if not can.paid:
        remedy = IGNORED.format("set token_budget to 1 so that every text is encoded alone.")
    return probe_texts(
        teacher.together,
        tolerance=tolerance,
        dtype=card.dtype,
        side=None if teacher.tokens is None else teacher.tokens.side,
        remedy=remedy,
        gaps=can.gaps,
    )
