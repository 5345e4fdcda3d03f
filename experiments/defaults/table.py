"""The page of what `defaults` found."""

from __future__ import annotations

from pathlib import Path

from experiments.harness.records import Rows
from experiments.harness.tables import written

MODELS = ("untrained", "free", "student")


def _cell(score: list[float] | None) -> str:
    return "" if score is None else "{:.1f} ({:.1f} to {:.1f})".format(*(100 * each for each in score))


def write_page(rows: Rows, folder: Path) -> str:
    """The table of all rows."""
    lines = [
        "# Teacher and texts, nothing else",
        "",
        "Made by `python -m experiments.defaults.run` (its README says how).",
        "",
    ]
    lines += ["Share of the teacher's ten nearest held-out texts that are found, in percent, with 95 % intervals.", ""]
    lines += ["| teacher, corpus, seed | untrained | free baseline | student |", "| --- | --- | --- | --- |"]
    for name in sorted(rows):
        found = [rows[name]["scores"].get(model) for model in MODELS]
        lines.append(f"| {name} | {' | '.join(map(_cell, found))} |")
    return written(folder, lines)
