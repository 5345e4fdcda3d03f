"""The page of `image_starts`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.rates import ENDS, differences_table, rates_table, shown, tuned
from experiments.harness.records import Rows, committed, seeds
from experiments.harness.setting import Setting, differences_of, end_note, points, varied
from experiments.harness.tables import cell, head, line, written

HEADER = (
    """# Pretrained image students

Made by `python -m experiments.image_starts.run` (its README says what was trained and judged on what). Accuracy in
percent of a perceptron on frozen vectors, mean of three probes; over seeds of the student the mean and the standard
deviation.
"""
    + ENDS
    + "\n"
)
SETS = ("CIFAR-10", "Fashion-MNIST", "MNIST")
#: The row that rows of one teacher vary.
LIKE = "likelihood"
START = "start"
#: Rows of one teacher each, and that which is best on the test images with seed 0.
SINGLE = tuple(f"{LIKE} from {name}" for name in ("resnet56", "mlperf", "imagenet", "birds"))
BEST_SINGLE = f"{LIKE} from the best"
#: First and second side of a difference.
COMPARED = (
    ("likelihood", START),
    ("likelihood", "squared error"),
    ("likelihood", "cosine"),
    ("likelihood, ours", "likelihood"),
    *((LIKE, name) for name in SINGLE),
)


def write_page(rows: Rows, folder: Path) -> str:
    """The tables, also written to `table.md`."""
    names = (name.rpartition("-")[0] for name in rows if not name.startswith("tuning/"))
    lines = [HEADER, *head("student", "seeds", "rate", *SETS, "average")]
    for name in dict.fromkeys(names):
        runs = list(seeds(rows, name).values())
        values = [cell([_accuracy(run, each) for run in runs]) for each in SETS]
        average = cell([float(np.mean([_accuracy(run, each) for each in SETS])) for run in runs])
        called = "no distillation: the network that the others start from" if name == START else name
        lr = shown(runs[0]["lr"], tuned(rows, name.partition(" from ")[0])) if "lr" in runs[0] else ""
        lines.append(line(called, len(runs), lr, *values, average))
    lines += ["", "## Differences", "", "Points, with the wider interval of that over sets and that over seeds.", ""]
    lines += head("first", "second", "difference", "interval", "of")
    lines += differences_table(
        (pair, differences_of(*(points(scores(rows, row)) for row in pair))) for pair in COMPARED
    )
    lines += [
        "",
        "## Rates",
        "",
        "Average accuracy on validation images, at full length, seed 0.",
        "",
        *rates_table(rows),
    ]
    return written(folder, lines)


def scores(rows: Rows, row: str) -> dict[int | None, dict[str, float]]:
    """Seed -> set -> accuracy in [0, 1]; the network before has no seed."""
    found = {seed: {name: _accuracy(run, name) for name in SETS} for seed, run in seeds(rows, row).items()}
    return {None: found[0]} if row == START and found else dict(found)


def best_single(rows: Rows) -> str | None:
    """The row of one teacher with the highest average at seed 0; None before all are there."""
    found = {row: scores(rows, row).get(0) for row in SINGLE}
    means = {row: float(np.mean(list(run.values()))) for row, run in found.items() if run}
    return max(means, key=means.__getitem__) if len(means) == len(SINGLE) else None


def _accuracy(run: dict[str, Any], name: str) -> float:
    return float(run["tasks"][name]["value"])


def setting(student: str, results: Path) -> Setting:
    rows = committed("image_starts", results)
    return Setting(
        lambda row: points(scores(rows, row)),
        lambda row: end_note(rows, varied(row)),
        lambda row: START,
        resolve=lambda row: best_single(rows) if row == BEST_SINGLE else row,
        parts={"labels never seen": ("Fashion-MNIST", "MNIST")},
    )
