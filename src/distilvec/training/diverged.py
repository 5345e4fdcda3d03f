"""Errors for a loss or a gradient that is not finite: the rows that it came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from distilvec.errors import DivergedError
from distilvec.training.distributed import gather_rows

Texts = Callable[[Sequence[int]], list[str]]


def diverged_loss(
    result: dict[str, Any], inputs: dict[str, Any], texts: Texts | None, step: int, *, gathered: bool
) -> DivergedError:
    """Names the rows whose teacher vectors or own losses are not finite; where that tells nothing, all of them.

    Args:
        result, inputs: of the distiller's forward.
        texts: corpus rows -> texts.
        gathered: whether the losses are those of the rows of all processes.
    """
    broken = [name for name, value in result["terms"].items() if not torch.isfinite(value)]
    rows, items = inputs["rows"], result["items"]
    bad = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    for teacher in inputs["teachers"]:
        if (vectors := teacher.get("sentence")) is not None:
            bad |= ~torch.isfinite(vectors).all(-1) & teacher["present"]
    if gathered:
        rows, bad = gather_rows(rows), gather_rows(bad)
    if not bad.any() and items is not None and len(items) == len(rows):
        bad = ~torch.isfinite(items)
    shown = _shown(rows[bad] if bad.any() else rows, texts)
    return DivergedError(
        f"the loss is not finite (terms {', '.join(broken) or 'total'}) for corpus rows {shown}",
        where=f"step {step}",
        remedy="Look at these rows' texts and teacher vectors, or lower optimizer.lr. The last checkpoint is kept.",
    )


def diverged_gradient(rows: Tensor, texts: Texts | None, step: int) -> DivergedError:
    """Names all rows of the step."""
    return DivergedError(
        f"the gradient is not finite, though the loss is, for corpus rows {_shown(rows, texts)}",
        where=f"step {step}",
        remedy="Lower optimizer.lr, or look at these rows. The last checkpoint is kept.",
    )


def _shown(rows: Tensor, texts: Texts | None) -> str:
    """At most five rows with the beginning of their texts."""
    numbers = rows.tolist()[:5]
    beginnings = texts(numbers) if texts else [""] * len(numbers)
    shown = "; ".join(f"{row}: {text[:60]!r}" for row, text in zip(numbers, beginnings, strict=True))
    return shown + (f" and {len(rows) - 5} more" if len(rows) > 5 else "")
