"""The page of `molecules_long`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.rates import ENDS, differences_table, rates_table, shown, tuned
from experiments.harness.records import Rows, below, committed, seeds
from experiments.harness.setting import Setting, differences_of, end_note, points, varied
from experiments.harness.tables import cell, head, line, written
from experiments.molecules.rows import NETWORKS, NUMBERS

HEADER = (
    """# Molecules at length

Made by `python -m experiments.molecules_long.run` (its README says what was trained and judged on what). In percent,
means over the columns of each task file, and over files: area under the ROC curve, R2 of esol, freesolv and
lipophilicity; over seeds of the student the mean and the standard deviation.
"""
    + ENDS
    + "\n"
)
TEACHERS = (*NETWORKS, "descriptors")
LIKE = "likelihood"
BEFORE = "before"
#: The row of the teacher that is best on validation molecules.
BEST_SINGLE = f"{LIKE} from the best"
#: First and second side of a difference; the likelihood of chosen teachers stands beside them.
COMPARED = ((LIKE, "squared error"), (LIKE, "cosine"), ("cosine", "squared error"), (LIKE, BEFORE))


def write_page(rows: Rows, folder: Path) -> str:
    """The tables, also written to `table.md`."""
    teachers = below(rows, "teachers")
    first = next(iter([*teachers.values(), *_students(rows).values()]), None)
    files = list(_by_file(first["tasks"])) if first else []
    lines = [HEADER, *head("model", "seeds", "rate", "classes", "numbers", *files)]
    for name, found in teachers.items():
        lines.append(line(f"teacher {name}", "", "", *_values([found], files)))
    for name in _students(rows):
        runs = list(seeds(rows, name).values())
        called = "untrained" if name == BEFORE else name
        lr = shown(runs[0]["lr"], tuned(rows, name.partition(" from ")[0])) if "lr" in runs[0] else ""
        lines.append(line(called, len(runs), lr, *_values(runs, files)))
    lines += ["", "## Differences", "", "Points, with the wider interval of that over files and that over seeds.", ""]
    lines += head("first", "second", "difference", "interval", "of")
    pairs = (*COMPARED, *((LIKE, name) for name in chosen(rows)))
    lines += differences_table((pair, differences_of(*(points(scores(rows, row)) for row in pair))) for pair in pairs)
    lines += ["", "## Rates", "", "Validation molecules, mean over files, at full length, seed 0.", ""]
    lines += rates_table(rows)
    return written(folder, lines)


def chosen(rows: Rows) -> list[str]:
    """Rows of the two teachers that are best on validation molecules, the best first, and of both together."""
    teachers = below(rows, "teachers")
    best = sorted(teachers, key=lambda name: -float(teachers[name]["validation"]))[:2]
    return [f"{LIKE} from {name}" for name in [*best, "+".join(best)]] if len(best) == 2 else []


def scores(rows: Rows, row: str) -> dict[int | None, dict[str, float]]:
    """Seed -> column -> score in [0, 1]; the student before has no seed."""
    found = {seed: dict(run["tasks"]) for seed, run in seeds(rows, row).items()}
    return {None: found[0]} if row == BEFORE and found else dict(found)


def mean_of_files(found: dict[str, float]) -> float:
    """The mean over files of the means over their columns."""
    return float(np.mean(list(_by_file(found).values())))


def _by_file(found: dict[str, float]) -> dict[str, float]:
    grouped: dict[str, list[float]] = {}
    for name, value in found.items():
        grouped.setdefault(name.partition(" ")[0], []).append(value)
    return {file: float(np.mean(values)) for file, values in grouped.items()}


def _students(rows: Rows) -> dict[str, dict[str, Any]]:
    """Row -> one of its runs, in the order in which they came."""
    return {name.rpartition("-")[0]: run for name, run in rows.items() if not name.startswith(("tuning/", "teachers/"))}


def _values(runs: list[dict[str, Any]], files: list[str]) -> list[str]:
    each = [_by_file(run["tasks"]) for run in runs]
    classes = [float(np.mean([found[file] for file in files if file not in NUMBERS])) for found in each]
    numbers = [float(np.mean([found[file] for file in files if file in NUMBERS])) for found in each]
    return [cell(classes), cell(numbers), *(cell([found[file] for found in each]) for file in files)]


def setting(student: str, results: Path) -> Setting:
    rows = committed("molecules_long", results)
    return Setting(
        lambda row: points(scores(rows, row)),
        lambda row: end_note(rows, varied(row)),
        lambda row: BEFORE,
        resolve=lambda row: next(iter(chosen(rows)), None) if row == BEST_SINGLE else row,
    )
