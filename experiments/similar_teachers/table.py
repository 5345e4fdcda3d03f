"""The page of `similar_teachers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.rates import ENDS, differences_table, rates_table, shown, tuned
from experiments.harness.records import Rows, below, committed, folders, seeds
from experiments.harness.setting import Note, Scores, Setting, clean, differences_of, end_note, varied
from experiments.harness.tables import cell, head, line, written

HEADER = (
    """# Teachers of similar strength

Made by `python -m experiments.similar_teachers.run` (its README says what was trained and judged on what). Macro-F1 in
percent, without test rows that are in the corpus; over seeds the mean and the standard deviation.
"""
    + ENDS
    + "\n"
)
ABOUT_STEPS = "Steps: share of the first teacher's ten nearest that held-out texts find, in percent; seed 0."
#: What of it a run logs.
NEIGHBOURS = "eval_agreement_neighbours"
TEACHERS = ("minilm", "pairs", "nli", "wide")
#: Rows that rows of one teacher each vary, called "ROW, from TEACHER".
VARIED = ("likelihood, ours", "cosine, ours")
#: The end of what is called that of these which is best on the six sets with seed 0.
BEST_SINGLE = ", from the best"
#: First and second side of a difference.
COMPARED = (
    ("likelihood, raw", "squared error, raw"),
    ("likelihood, standardised", "squared error, standardised"),
    ("likelihood, standardised", "cosine, random start"),
    ("likelihood, raw", "likelihood, standardised"),
    ("squared error, raw", "squared error, standardised"),
    ("squared error, raw", "cosine, random start"),
    ("likelihood, standardised", "likelihood, ours"),
    ("cosine, random start", "cosine, ours"),
    ("likelihood, ours", "cosine, ours"),
    *((row, f"{row}, from {name}") for row in VARIED for name in TEACHERS),
)


def trained(rows: Rows) -> list[str]:
    """Names of the rows ("STUDENT/ROW") of which there is a seed, in the order in which they came."""
    names = (name.rpartition("-")[0] for name in rows if not name.startswith(("tuning/", "references/")))
    return list(dict.fromkeys(names))


def write_page(rows: Rows, folder: Path) -> str:
    """The tables, also written to `table.md`."""
    references = below(rows, "references")
    sets = list(next(iter(references.values()))["clean"])
    lines = [HEADER, *head("model", "seeds", "rate", "six sets", *sets)]
    for name, found in sorted(references.items(), key=lambda each: each[0] in folders(rows)):  # teachers first
        called = f"{name}, before" if name in folders(rows) else f"teacher `{name}`"
        lines.append(line(called, "", "", f"{100 * found['clean_averages']['all']:.2f}", *_values([found], sets)))
    for name in trained(rows):
        runs = list(seeds(rows, name).values())
        averages = cell([run["clean_averages"]["all"] for run in runs])
        lr = shown(runs[0]["lr"], tuned(rows, name.partition(", from ")[0]))
        lines.append(line(name.replace("/", ": "), len(runs), lr, averages, *_values(runs, sets)))
    lines += ["", "## Differences", "", "Points, with the wider interval of that over sets and that over seeds.", ""]
    lines += head("student", "first", "second", "difference", "interval", "of")
    lines += _compared(rows)
    lines += ["", "## Rates", "", "Average over validation splits, at full length, seed 0.", "", *rates_table(rows)]
    lines += ["", "## On the way", "", ABOUT_STEPS, "", *_on_the_way(rows)]
    return written(folder, lines)


def best_single(rows: Rows, student: str, varied: str) -> str | None:
    """Of the rows of one teacher that vary a row the best by its average at seed 0; None before all are there."""
    found = {row: seeds(rows, f"{student}/{row}").get(0) for row in (f"{varied}, from {name}" for name in TEACHERS)}
    means = {row: run["clean_averages"]["all"] for row, run in found.items() if run}
    return max(means, key=means.__getitem__) if len(means) == len(TEACHERS) else None


def _compared(rows: Rows) -> list[str]:
    students = dict.fromkeys(name.partition("/")[0] for name in trained(rows))
    return differences_table(
        ((student, *pair), differences_of(*(clean(seeds(rows, f"{student}/{row}")) for row in pair)))
        for student in students
        for pair in COMPARED
    )


def _values(runs: list[dict[str, Any]], sets: list[str]) -> list[str]:
    return [f"{100 * np.mean([run['clean'][name] for run in runs]):.1f}" for name in sets]


def _on_the_way(rows: Rows) -> list[str]:
    lines = []
    for name in trained(rows):
        run = seeds(rows, name).get(0)
        if run and run["log"]:
            shown = (f"{entry['step']:,}: {100 * entry[NEIGHBOURS]:.1f}" for entry in run["log"])
            lines.append(f"- {name}: {', '.join(shown)}")
    return lines


def setting(student: str, results: Path) -> Setting:
    rows, student = committed("similar_teachers", results), student.partition("/")[2]

    def resolve(row: str) -> str | None:
        name = row.removesuffix(BEST_SINGLE)
        return row if name == row else best_single(rows, student, name)

    def scores(row: str) -> Scores:
        own = {None: rows[f"references/{student}"]} if row == "before" and f"references/{student}" in rows else {}
        return clean(own or dict(seeds(rows, f"{student}/{row}")))

    def notes(row: str) -> list[Note]:
        return end_note(rows, f"{student}/{varied(row)}")

    return Setting(scores, notes, start=lambda row: "before", like=varied, resolve=resolve)
