"""Parts of Markdown that all pages of the experiments share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

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


def spread(values: Sequence[float], digits: int = 1, middle: float | None = None) -> str:
    """A middle, the mean unless given, with the least and the largest of several values in brackets."""
    middle = float(np.mean(values)) if middle is None else middle
    ends = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
    return f"{middle:.{digits}f}{ends}"


def written(folder: Path, lines: Iterable[str]) -> str:
    """The page of these lines, which is also written to the folder's `table.md`."""
    page = "\n".join(lines) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(page, encoding="utf-8")
    return page
