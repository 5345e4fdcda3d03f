"""Parts of Markdown that all pages of the experiments share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def cell(values: Sequence[float | None], factor: float = 100.0, digits: int = 2) -> str:
    """Mean ± standard deviation over seeds; of one value the value, of none nothing.

    Args:
        values: one per seed; None where a seed has none.
        factor: 100 for percent.
    """
    there = [factor * value for value in values if value is not None]
    if not there:
        return ""
    spread = f" ± {np.std(there, ddof=1):.{digits}f}" if len(there) > 1 else ""
    return f"{np.mean(there):.{digits}f}{spread}"


def line(*cells: object) -> str:
    """A row of a table."""
    return f"| {' | '.join(str(each) for each in cells)} |"


def head(*columns: str) -> list[str]:
    """The two lines above a table's rows."""
    return [line(*columns), "|" + "---|" * len(columns)]
