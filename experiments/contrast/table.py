"""The page of `contrast`'s results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.harness.records import Rows, below
from experiments.harness.tables import cell, head, line, written

EXPERIMENT = "contrast"
#: A quarter of all-MiniLM-L6-v2, which is its teacher.
CUTS = ("cut", "cut + mnrl")
ROWS = ("cosine", "mnrl", "cosine + mnrl", "cosine + guided mnrl", "cosine + mnrl + spreading", *CUTS)
GROUPS = (("nine", "all", "nine sets"), ("others", "all", "four others"), ("retrieval", "retrieval", "retrieval"))
_ABOUT = (
    "Main metrics in percent on parts of the sets (those of `mpnet`), mean ± standard deviation over seeds, and in",
    "brackets the difference of each seed to all-MiniLM-L6-v2, the start. Of ten: the teacher's ten nearest held-out",
    "texts that are found. Search: mean reciprocal rank of the rest of a held-out text, searched by its beginning.",
    "Interpolated: half way between the weights before and after training. Cut: a quarter of all-MiniLM-L6-v2, which",
    "is its teacher; the others learn from mpnet.",
)
_FORMS = ("nDCG@10 in percent over the three searches with vectors as an index may keep them, and what is lost by it.",)
_TUNING = ("One seed; the rate with the best mean of both columns is taken.",)


def write_page(rows: Rows, folder: Path) -> str:
    """Write all rows as Markdown to `table.md`; returns the text."""
    lines = ["# A contrast on pairs beside distillation", "", "Made by `python -m experiments.contrast.run`.", ""]
    shown = ("all-MiniLM-L6-v2", *(name for row in ROWS for name in (row, f"{row}, interpolated")))
    whole = {row: [rows[name] for name in rows if name.rpartition("-")[0] == row] for row in shown}
    whole = {row: each for row, each in whole.items() if each}
    if whole:
        lines += [*_ABOUT, "", *_judged(whole), "", *_FORMS, "", *_smaller(whole), ""]
    if found := below(rows, "tuning"):
        lines += ["## Rates", "", *_TUNING, "", *_rates(found), ""]
    return written(folder, lines[:-1])


def _judged(whole: dict[str, list[dict[str, Any]]]) -> list[str]:
    lines = head("row", "seeds", "rate", *(title for *_, title in GROUPS), "of ten", "search", "minutes")
    top = next(iter(whole.values()))[0]
    teacher = [f"{100 * top[group]['averages']['teacher'][average]:.2f}" for group, average, _ in GROUPS]
    lines.append(line("teacher", "", "", *teacher, "", "", ""))
    for row, each in whole.items():
        cells = []
        for group, average, _ in GROUPS:
            shown = cell([one[group]["averages"]["student"][average] for one in each])
            gaps = [one[group]["above_minilm"]["value"] for one in each]
            told = ", ".join(f"{100 * gap:+.2f}" for gap in gaps)
            cells.append(shown if row == "all-MiniLM-L6-v2" else f"{shown} ({told})")
        cells.append(cell([one["mean"]["of_ten"] for one in each], digits=1))
        cells.append(cell([one["search"]["mean"] for one in each], digits=1))
        minutes = [one["processor_minutes"] for one in each if one.get("processor_minutes", 0) > 1]
        lines.append(line(row, len(each), _rate(each[0]), *cells, cell(minutes, 1, 1)))
    return lines


def _rate(row: dict[str, Any]) -> str:
    return f"{row['lr']:g}" if "lr" in row else ""


def _smaller(whole: dict[str, list[dict[str, Any]]]) -> list[str]:
    forms = list(next(iter(whole.values()))[0]["forms"])
    lines = head("row", *forms, *(f"{form} lost" for form in forms[1:]))
    for row, each in whole.items():
        kept = [cell([one["forms"][form] for one in each]) for form in forms]
        lost = [cell([one["forms"][forms[0]] - one["forms"][form] for one in each]) for form in forms[1:]]
        lines.append(line(row, *kept, *lost))
    return lines


def _rates(found: Rows) -> list[str]:
    lines = head("row", "rate", "of ten", "search")
    for row in found.values():
        lines.append(
            line(
                row["row"],
                f"{row['lr']:g}",
                cell([row["mean"]["of_ten"]], 100, 1),
                cell([row["search"]["mean"]], 100, 1),
            )
        )
    return lines
