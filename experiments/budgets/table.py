"""The page of what `budgets` found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.records import Rows
from experiments.harness.tables import head, line, written

from distilvec.choosing.prediction import Prediction, extrapolate, powers

BUDGETS = {"twentieth": 1_100_000, "eighth": 2_840_000}


#: Points within which a prediction is to be.
NEAR = 1.0


HEADER = """# What plan predicts within a budget, and what training reached

Made by `python -m experiments.budgets.run` (its README says what was trained on what). Order: Spearman's correlation of
all cosines with the teacher's on held-out texts, in percent, at the start and after short trainings. Predicted: as
`plan` does now, from the probes. One seed. Trained were twelve, evenly spaced in the table's order, and those for which
earlier orders had asked.
"""


def predictions(plan: dict[str, Any]) -> dict[str, Prediction]:
    """Name -> what `plan` says of a candidate, from its curve and the others'."""
    curves = {row["name"]: {int(steps): value for steps, value in row["curve"].items()} for row in plan["rows"]}
    others = powers(list(curves.values()))
    return {name: extrapolate(curve, plan["steps"], others) for name, curve in curves.items()}


def write_page(rows: Rows, folder: Path) -> str:
    """The tables of what is there, also written to `table.md`."""
    lines = [HEADER, "## How far off", ""]
    lines += head(
        "budget", "candidates", "steps", "trained", "off by, mean", "at most", "within 1 point", "in interval"
    )
    there = [size for size in BUDGETS if f"{size}/plan" in rows]
    lines += [_summary(rows, size) for size in there]
    for size in there:
        lines += ["", f"## {size}: at most {BUDGETS[size] / 1e6:.2f} M parameters", "", *_table(rows, size)]
    return written(folder, lines)


def _misses(rows: Rows, size: str) -> dict[str, tuple[float, float, bool]]:
    """Candidate -> what training reached, how much more that is than predicted, whether it is in the interval."""
    found = {}
    for name, said in predictions(rows[f"{size}/plan"]).items():
        if trained_row := rows.get(f"{size}/{name}"):
            value = trained_row["agreement"]["similarity_spearman"]
            found[name] = 100 * value, 100 * (value - said.middle), said.low <= value <= said.high
    return found


def _summary(rows: Rows, size: str) -> str:
    plan, misses = rows[f"{size}/plan"], _misses(rows, size).values()
    off = [abs(each) for _, each, _ in misses]
    values = (f"{np.mean(off):.1f}", f"{max(off):.1f}") if off else ("", "")
    near, inside = sum(each <= NEAR for each in off), sum(within for _, _, within in misses)
    counts = (str(len(plan["rows"])), f"{plan['steps']:,}", str(len(off)))
    return line(size, *counts, *values, f"{near} of {len(off)}", f"{inside} of {len(off)}")


def _table(rows: Rows, size: str) -> list[str]:
    plan, misses = rows[f"{size}/plan"], _misses(rows, size)
    said = predictions(plan)
    rounds = sorted({int(steps) for row in plan["rows"] for steps in row["curve"]})
    shown = ("start", *(f"{each} steps" for each in rounds if each))
    lines = head("candidate", "parameters", *shown, "predicted", "reached", "off by")
    for row in plan["rows"]:
        reached, off, _ = misses.get(row["name"], (None, None, None))
        came = ["", ""] if reached is None else [f"{reached:.1f}", f"{off:+.1f}"]
        curve = [f"{100 * row['curve'][str(each)]:.1f}" if str(each) in row["curve"] else "" for each in rounds]
        lines.append(line(row["name"], f"{row['parameters'] / 1e6:.2f} M", *curve, str(said[row["name"]]), *came))
    return lines
