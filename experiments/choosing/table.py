"""The page of what `choosing` found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from experiments.harness.records import Rows
from experiments.harness.tables import written

from distilvec.choosing.prediction import RUNS, kind_of, predict

TEXTS_READ = 26_000


def write_page(rows: Rows, folder: Path) -> str:
    """The table of what is there, also written to `table.md`."""
    lines = [
        "# What plan predicts, and what training reached",
        "",
        "Made by `python -m experiments.choosing.run` (its README says what was trained on what). Kept: the average",
        "over eight sets in percent of the teacher's; one seed.",
        "",
        "Predicted: as `plan` did before any of these runs was known to it. From the others: as it does now, from all",
        "committed runs but those of the student itself; the kinds of student that it tells apart were drawn after",
        "these runs were seen, which flatters it.",
        "",
        "| candidate | parameters | before training | predicted | reached | off by | in the interval | from the others "
        "| off by |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    missed, now, inside = [], [], []
    for row in rows["plan"]["rows"] if "plan" in rows else ():
        if row["name"] not in rows:
            continue
        kept = 100 * rows[row["name"]]["average"] / rows["teacher"]["average"]
        start = 100 * max(ways["all"] for ways in row["kept"].values() if "all" in ways)
        low, middle, high = (100 * row["predicted"][end] for end in ("low", "middle", "high"))
        missed.append(kept - middle)
        own = {run.student for run in RUNS if run.start == round(start / 100, 4)}  # two are students of earlier runs
        others = [run for run in RUNS if run.student not in own]
        later = predict(start / 100, TEXTS_READ, kind_of(row["section"]), runs=others)
        now.append(kept - 100 * later.middle)
        inside.append(low <= kept <= high)
        lines.append(
            f"| {row['name']} | {row['parameters'] / 1e6:.2f} M | {start:.1f} | {middle:.1f} ({low:.1f} to {high:.1f}) "
            f"| {kept:.1f} | {kept - middle:+.1f} | {'yes' if inside[-1] else 'no'} "
            f"| {100 * later.middle:.1f} ({100 * later.low:.1f} to {100 * later.high:.1f}) | {now[-1]:+.1f} |"
        )
    if missed:
        lines += [
            "",
            f"Off by {np.mean(np.abs(missed)):.1f} points on average, {max(map(abs, missed)):.1f} at most; "
            f"{sum(inside)} of {len(inside)} in the interval. "
            f"From the others: {np.mean(np.abs(now)):.1f} and {max(map(abs, now)):.1f}.",
        ]
    return written(folder, lines)
