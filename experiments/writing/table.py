"""The page of `writing`, and its scores as the page of claims takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.rates import ENDS, at_an_end, shown
from experiments.harness.records import Rows, committed, pairs_of_seeds, seeds
from experiments.harness.setting import END, UNTRAINED, Setting, points
from experiments.harness.tables import cell, head, line, written
from experiments.writing.data import OUTSIDE, TASKS

EXPERIMENT = "writing"
#: Row -> method and options.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "sft": ("sft", {}),
    "uld": ("uld", {}),
    "mined": ("mined", {}),
    "cdm": ("cdm", {}),
    "multilevel_ot": ("multilevel_ot", {}),
    "dskd": ("dskd", {}),
    "emo": ("emo", {}),
    "distillmoe": ("distillmoe", {}),
    "distillmoe paper": ("distillmoe", {"preset": "paper"}),
}
REFERENCES = ("teacher", "untrained student")
SETS = (*TASKS, *OUTSIDE)

HEADER = (
    """# Students that write

Made by `python -m experiments.writing.run` (its README says who teaches whom on what, and how rates are chosen).
ROUGE-L of the likeliest answers in percent; "in" and "out" are averages over the kinds that were trained on and the
others. Drawn: ROUGE-L of answers drawn from the model's own distribution. Bits: per byte of the right answers, over all
sets. ± is the standard deviation over seeds. The row `dskd` is older than a mend of its loss (see the changelog).
"""
    + ENDS
    + "\n"
)


def write_page(rows: Rows, folder: Path) -> str:
    """Everything that is there, as Markdown; also written to `table.md`."""
    lines = [HEADER, *head("row", "seeds", "lr", "in", "out", *SETS, "drawn", "exact", "bits")]
    for name in REFERENCES:
        if name in rows:
            lines.append(_line(name, "", [rows[name]]))
    for name in ROWS:
        lr = best_rate(rows, name)
        runs = list(seeds(rows, f"{name}-{lr:g}").values()) if lr else []
        if runs:
            lines.append(_line(name, shown(lr, tried(rows, name)), runs))
    if "store" in rows:
        rest = rows["store"]["rest"]
        mean, most = (f"{100 * rest[name]:.2f} %" for name in ("mean", "p99"))
        kept = f"The store keeps {rest['candidates']} next tokens a place, at {rest['places']:,} places."
        lines += ["", f"{kept} They leave {mean} of the teacher's mass on average, and more than {most} at one in 100."]
    return written(folder, [*lines, *_differences(rows), *_examples(rows)])


def _line(name: str, lr: str, runs: list[dict[str, Any]]) -> str:
    def mean(run: dict[str, Any], key: str, sets: tuple[str, ...] = SETS) -> float:
        return float(np.mean([run["tasks"][each][key] for each in sets]))

    values = [cell([mean(run, "value", group) for run in runs]) for group in (TASKS, OUTSIDE)]
    values += [cell([run["tasks"][each]["value"] for run in runs]) for each in SETS]
    values += [cell([mean(run, key) for run in runs]) for key in ("sampled", "exact_match")]
    values.append(cell([mean(run, "bits_per_byte") for run in runs], 1, 3))
    return line(name, len(runs) if lr else "", lr, *values)


def best_rate(rows: Rows, row: str) -> float | None:
    """The learning rate with the best ROUGE-L on validation items of seed 0; of equals the smallest."""
    found = tried(rows, row)
    return max(sorted(found), key=found.__getitem__) if found else None


def tried(rows: Rows, row: str) -> dict[float, float]:
    """Rate -> ROUGE-L of a row on validation items."""
    runs = [run for name, run in rows.items() if run.get("row") == row and name.endswith("-grid")]
    return {run["lr"]: run["validation"]["value"] for run in runs}


def scores(rows: Rows, row: str, key: str = "value") -> dict[int | None, dict[str, float]]:
    """Seed -> set -> a figure of a row (ROUGE-L) at the rate that was chosen for it; a reference has no seed."""
    lr = best_rate(rows, row)
    found: dict[int | None, dict[str, Any]] = dict(seeds(rows, f"{row}-{lr:g}")) if lr else {}
    if row in REFERENCES and row in rows:
        found = {None: rows[row]}
    return {seed: {name: run["tasks"][name][key] for name in SETS} for seed, run in found.items()}


def paired(rows: Rows, one: str, other: str, key: str = "value") -> dict[str, dict[int | None, float]]:
    """Set -> seed -> the figure of one row minus that of another; ROUGE-L in points."""
    first, second = scores(rows, one, key), scores(rows, other, key)
    factor = 100 if key == "value" else 1
    found: dict[str, dict[int | None, float]] = {}
    for a, b in pairs_of_seeds(first, second):
        for name in SETS:
            found.setdefault(name, {})[a if a is not None else b] = factor * (first[a][name] - second[b][name])
    return found


def _differences(rows: Rows) -> list[str]:
    """Every row against labels alone, with the wider of the 95 % intervals over sets and over seeds."""
    from experiments.harness.verdicts import figure, judge

    found = []
    for row in list(ROWS)[1:]:
        points, bits = (paired(rows, row, "sft", key) for key in ("value", "bits_per_byte"))
        if points:
            first, second = judge("written", points), judge("written", bits)
            low, high = second.interval or (float("nan"),) * 2
            shown = f"{second.value:+.3f} ({low:+.3f} to {high:+.3f})"
            found.append(line(row, figure(first.value, first.interval), shown, first.basis))
    title = "Minus labels alone, with the wider of the 95 % intervals over sets and over seeds"
    return ["", f"## {title}", "", *head("row", "ROUGE-L", "bits per byte", "from"), *found] if found else []


def _examples(rows: Rows) -> list[str]:
    """One answer of each kind: what is right, and what teacher, labels alone and DistillMoE write."""
    named = {"teacher": rows.get("teacher")}
    for row in ("sft", "distillmoe"):
        lr = best_rate(rows, row)
        named[row] = rows.get(f"{row}-{lr:g}-0") if lr else None
    there = {name: run for name, run in named.items() if run}
    if "teacher" not in there:
        return []
    lines = ["", "## One item of each", ""]
    for name in SETS:
        first = there["teacher"]["written"][name][0]
        lines += [f"- **{first['prompt']}**", f"    - right: {first['answer']}"]
        lines += [f"    - {model}: {run['written'][name][0]['written']}" for model, run in there.items()]
    return lines


def setting(student: str, results: Path) -> Setting:
    rows = committed(EXPERIMENT, results)
    return Setting(
        lambda row: points(scores(rows, row)),
        lambda row: [(END, row)] if at_an_end(tried(rows, row)) else [],
        lambda row: UNTRAINED,
    )
