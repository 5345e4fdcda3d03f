"""The page of `sharpness`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.records import Rows, below, committed, folders, seeds
from experiments.harness.setting import UNTRAINED, Note, Scores, Setting, clean, grouped
from experiments.harness.tables import cell, head, line, written
from experiments.harness.verdicts import SEEDS, UNTESTED, Finding, student_interval, untested, verdict
from experiments.talas import table as talas_table

EXPERIMENT = "sharpness"
OPTIMIZERS = ("adamw", "sam", "disam", "asam")
#: Lanczos steps at most.
ITERATIONS = 20
#: A row of TALAS's comparison -> what it is here.
OPTIMIZER_OF = {"talas": "adamw", **{f"talas+{name}": name for name in OPTIMIZERS[1:]}}
#: Table 4: largest eigenvalue after 1, 3, 5, 10 and 30 epochs.
PAPER = {"adamw": (30.24, 21.48, 19.66, 18.66, 17.41), "asam": (14.89, 12.94, 11.59, 10.85, 9.93)}

HEADER = """# Sharpness-aware steps under TALAS's objective

Made by `python -m experiments.sharpness.run`; its README says how. Scores are averages over nine sets in percent,
without test rows that are in the corpus. Eigenvalue: the largest of the Hessian of the whole objective, over the
encoder's parameters. Gap: the objective on held-out texts minus that on training texts, and that minus what it was
before the first step, as the texts are not the same. Seconds: of training alone. ± is the standard deviation over
seeds.
"""


def write_page(rows: Rows, folder: Path) -> str:
    """The Markdown tables of everything that is there, also written to `table.md`."""
    lines = [HEADER, *_tuning(rows)]
    for epochs in sorted((name for name in folders(rows) if name.isdigit()), key=int):
        found = {name: [with_gaps(run) for run in runs_of(rows, epochs, name).values()] for name in OPTIMIZERS}
        lines += ["", f"## {epochs} epochs: scores", ""]
        lines += head("optimizer", "radius", "rate", "seeds", "inside the domain", "outside", "average", "seconds")
        for name, runs in found.items():
            if runs:
                about = "" if runs[0]["rho"] is None else f"{runs[0]['rho']:g}", f"{runs[0]['lr']:g}", len(runs)
                averages = talas_table.clean_cells(runs, talas_table.IN_DOMAIN) if "clean" in runs[0] else [""] * 3
                seconds = cell([run["training_seconds"] for run in runs], 1, 0)
                lines.append(line(name, *about, *averages, seconds))
        points = sorted({point["epoch"] for runs in found.values() for run in runs for point in run["points"]})
        for title, value, digits in (
            ("eigenvalue", lambda point: point["curvature"], 1),
            ("gap", lambda point: point["gap"], 4),
        ):
            lines += ["", f"## {epochs} epochs: {title}", ""]
            lines += head("optimizer", "seeds", *(f"epoch {epoch:g}" for epoch in points))
            for name, runs in found.items():
                if runs:
                    taken = [
                        [value(p) for run in runs for p in run["points"] if p["epoch"] == epoch] for epoch in points
                    ]
                    lines.append(line(name, len(runs), *(cell(each, 1, digits) for each in taken)))
    seen = [point for row in rows.values() for point in row.get("points", [])]
    if seen:
        rough = sum(not point["converged"] for point in seen)
        lines += [
            "",
            f"Of {len(seen)} eigenvalues {rough} had not converged in {ITERATIONS} steps; such a one is a lower bound.",
        ]
    told = "; ".join(f"{name} {'/'.join(f'{value:g}' for value in values)}" for name, values in PAPER.items())
    lines += ["", f"The paper's eigenvalues (MiniLM, other settings), epochs 1/3/5/10/30: {told}."]
    return written(folder, lines)


def with_gaps(run: dict[str, Any]) -> dict[str, Any]:
    """The run, each of its points with the gap's growth since the first."""
    gaps = [point["held_out"] - point["loss"] for point in run["points"]]
    return {**run, "points": [{**p, "gap": gap - gaps[0]} for p, gap in zip(run["points"], gaps, strict=True)]}


def runs_of(rows: Rows, epochs: str, name: str) -> dict[int, dict[str, Any]]:
    """Seed -> result of an optimizer's rows of so many epochs."""
    return seeds(rows, f"{epochs}/{name}")


def ratios(rows: Rows, epochs: str, one: str, other: str) -> dict[int, float]:
    """Seed -> how many times larger the other's eigenvalue is, the geometric mean over the points after the start."""
    first, second = runs_of(rows, epochs, one), runs_of(rows, epochs, other)
    found = {}
    for seed in first.keys() & second.keys():
        own, others = (
            {point["epoch"]: point["curvature"] for point in runs[seed]["points"] if point["epoch"] > 0}
            for runs in (first, second)
        )
        each = [np.log(others[epoch] / own[epoch]) for epoch in own.keys() & others.keys()]
        if each:
            found[seed] = float(np.exp(np.mean(each)))
    return dict(sorted(found.items()))


def radius_at_an_end(rows: Rows, name: str) -> bool:
    """Whether the radius of an optimizer was the smallest or the largest of those tried, or the only one."""
    tried = {
        float(row["row"].split()[1])
        for row in below(rows, "embedder/tuning").values()
        if row["row"].split()[0] == name and " " in row["row"]
    }
    used = {run["rho"] for run in runs_of(rows, "5", name).values()} - {None}
    return any(rho <= min(tried) or rho >= max(tried) for rho in used) if tried else False


def _tuning(rows: Rows) -> list[str]:
    """Row by rate: validation in percent."""
    tried = list(below(rows, "embedder/tuning").values())
    rates = sorted({row["lr"] for row in tried})
    if not tried:
        return []
    lines = ["## Rates and radii", "", "Average over three validation splits after five epochs, seed 0.", ""]
    lines += head("optimizer and radius", *(f"{lr:g}" for lr in rates))
    for name in dict.fromkeys(row["row"] for row in tried):
        values = {row["lr"]: row["validation"] for row in tried if row["row"] == name}
        lines.append(line(name, *(cell([values[lr]]) if lr in values else "" for lr in rates)))
    return lines


#: Epochs of each setting in the claims.
EPOCHS = {"embedder/own radius": "5", "embedder/own radius, longer": "15"}


def setting(student: str, results: Path) -> Setting:
    rows, before = committed(EXPERIMENT, results), talas_table.setting("embedder", results)

    def notes(row: str) -> list[Note]:
        name = OPTIMIZER_OF.get(row, row)
        return [("radius at the end of the grid", name)] if radius_at_an_end(rows, name) else []

    def scores(row: str) -> Scores:
        found = seeds(rows, f"{EPOCHS[student]}/{OPTIMIZER_OF.get(row, row)}")
        return before.scores(row) if row == UNTRAINED else clean(found)

    return Setting(scores=scores, notes=notes, start=before.start)


def measured(results: Path, first: str, second: str, student: str) -> Finding:
    """How many times larger the largest eigenvalue is with the second, over five checkpoints.

    Checkpoints of one run were not drawn, so only seeds make an interval.
    """
    found = ratios(committed(EXPERIMENT, results), EPOCHS[student], first, second)
    if not found:
        return untested("no run of both with one seed")
    logs = np.log(list(found.values()))
    value, basis = float(np.exp(logs.mean())), f"{len(found)} seed{'s'[: len(found) > 1]}"
    basis = "; ".join([basis, *grouped(map(setting(student, results).notes, (first, second)))])
    over = student_interval(logs, float(logs.mean()))
    if len(found) < SEEDS or over is None:
        return Finding(UNTESTED, value, None, basis, "one seed" if len(found) == 1 else "two seeds")
    (low, high), p = over
    interval = (float(np.exp(low)), float(np.exp(high)))
    return Finding(verdict("better", (low, high)), value, interval, basis, seeds=interval, p=p)
