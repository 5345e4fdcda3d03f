"""The page of what `defaults` found."""

from __future__ import annotations

from pathlib import Path

from experiments.harness.records import Rows
from experiments.harness.tables import written

MODELS = ("untrained", "free", "student")
#: Corpora too small to measure anything on themselves -> texts to train on; so many others of the same kind judge.
FEW, JUDGED = {"banking77-20": 20, "banking77-40": 40, "banking77-80": 80}, 500


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
    lines += _table(rows, [name for name in sorted(rows) if not _few(name) and " at " not in name])
    lines += ["", "Trained on twenty to eighty texts, and judged on 500 others:", ""]
    lines += _table(rows, [name for name in sorted(rows) if _few(name)])
    lines += ["", "At other learning rates than the default's, by which it was chosen:", ""]
    lines += _table(rows, [name for name in sorted(rows) if " at " in name])
    return written(folder, lines)


def _few(name: str) -> bool:
    return name.rpartition("-")[0].rpartition("/")[2] in FEW


def _table(rows: Rows, names: list[str]) -> list[str]:
    lines = ["| teacher, corpus, seed | untrained | free baseline | student |", "| --- | --- | --- | --- |"]
    for name in names:
        found = [rows[name]["scores"].get(model) for model in MODELS]
        lines.append(f"| {name} | {' | '.join(map(_cell, found))} |")
    return lines
