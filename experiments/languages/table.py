"""The page of what `run.py` found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.records import Rows
from experiments.harness.tables import head, line, written

LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pl", "pt", "ru", "zh")
TESTS = {"stsb": "STS-B (Spearman, 700 pairs)", "tatoeba": "Tatoeba (the nearest of 1,000 English sentences)"}


def write_page(rows: Rows, folder: Path) -> str:
    """Write table.md into a folder and return it."""
    teacher = rows.get("teacher-0")
    students = {name: row for name, row in rows.items() if "stsb" in row and name != "teacher-0"}
    lines = [
        "# Ten languages, or two",
        "",
        "Made by `python -m experiments.languages.run`; the README beside it says how.",
        "",
    ]
    for test, title in TESTS.items():
        if teacher is None:
            break
        lines += [f"## {title}", "", "In percent; kept: of the teacher's, on average and in the worst language.", ""]
        shown = [language for language in LANGUAGES if language in teacher[test]]
        lines += [*head("model", "parameters", "kept", "worst", *shown)]
        lines.append(_row("teacher", teacher, teacher, test, shown))
        lines += [_row(name, row, teacher, test, shown) for name, row in students.items()]
        lines.append("")
    cut = {name: row for name, row in rows.items() if "cut" in row}
    return written(folder, lines + _choices(rows) + _starts(rows) + _cuts(cut) + _costs(students))


def _row(name: str, row: dict[str, Any], teacher: dict[str, Any], test: str, shown: list[str]) -> str:
    values = row[test]
    there = [language for language in shown if language in values]
    kept = np.mean([values[each] for each in there]) / np.mean([teacher[test][each] for each in there])
    shares = {each: values[each] / teacher[test][each] for each in there}
    worst = min(shares, key=lambda each: shares[each])
    cells = [f"{100 * values[each]:.1f}" if each in values else "" for each in shown]
    about = [f"{100 * kept:.1f} %", f"{worst}, {100 * shares[worst]:.1f} %"] if row is not teacher else ["", ""]
    return line(name, f"{row['parameters'] / 1e6:.2f} M", *about, *cells)


def _choices(rows: Rows) -> list[str]:
    """What students were chosen by."""
    chosen = {name: row for name, row in rows.items() if "cosine" in row and not name.startswith("start/")}
    if not chosen:
        return []
    lines = ["## Chosen by", "", "News sentences whose translation is the nearest of 500 English ones, in percent, and"]
    lines += ["the mean cosine with the teacher's vectors of the same sentences; nine languages.", ""]
    lines += [*head("run", "found", "least", "cosine", "least")]
    for name, row in chosen.items():
        found, cosine = list(row["news"].values()), list(row["cosine"].values())
        cells = [f"{100 * np.mean(found):.1f}", f"{100 * min(found):.1f}", f"{np.mean(cosine):.3f}"]
        lines.append(line(name, *cells, f"{min(cosine):.3f}"))
    return [*lines, ""]


def _starts(rows: Rows) -> list[str]:
    """Shapes before training."""
    starts = {name.removeprefix("start/"): row for name, row in rows.items() if name.startswith("start/")}
    if not starts:
        return []
    shown = list(next(iter(starts.values()))["news"])
    lines = ["## Shapes before training", "", "Layers, pieces x rank of the table, units of the feed-forward networks."]
    lines += [
        "News sentences whose translation is the nearest of 150 English ones, in percent; cosine with the teacher."
    ]
    lines += ["Pooled: pieces counted over all languages together.", ""]
    lines += [*head("shape", "parameters", "found", *shown, "cosine")]
    for name, row in starts.items():
        found = [row["news"][each] for each in shown]
        cells = [f"{row['parameters'] / 1e6:.2f} M", *(f"{100 * each:.1f}" for each in (np.mean(found), *found))]
        lines.append(line(name, *cells, f"{np.mean(list(row['cosine'].values())):.3f}"))
    return [*lines, ""]


def _cuts(students: Rows) -> list[str]:
    lines = [
        "## Tokenised as by the teacher",
        "",
        "Share of sentences, in percent. The Chinese news are in traditional",
    ]
    lines += ["characters, which no other text here shows.", ""]
    lines += [*head("student", "sentences", *LANGUAGES)]
    for name, row in students.items():
        for source, shares in row["cut"].items():
            cells = [f"{100 * shares[each]:.0f}" if each in shares else "" for each in LANGUAGES]
            lines.append(line(name, source, *cells))
    return [*lines, ""] if students else []


def _costs(students: Rows) -> list[str]:
    lines = ["## What it took", "", *head("student", "texts", "minutes", "shape")]
    for name, row in students.items():
        shape = ", ".join(f"{key} {value}" for key, value in row["shape"].items() if key != "of")
        lines.append(line(name, f"{row['texts']:,}", f"{row['minutes']:.0f}", shape))
    return [*lines, ""] if students else []
