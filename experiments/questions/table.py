"""The page of `questions`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from experiments.harness.records import Rows, seeds
from experiments.harness.tables import head, line, written

EXPERIMENT = "questions"
_HEAD = (
    "# Questions that a language model writes",
    "",
    "Made by `python -m experiments.questions.run` (its README says how).",
    "",
    "nDCG@10 in percent on Cranfield's 225 queries over its abstracts, which are also what the students are taught.",
    "Of several seeds the mean, and each seed; the interval is of the first seed, over queries.",
    "",
)


def write_page(rows: Rows, folder: Path) -> str:
    """Write all rows as Markdown to `table.md`; returns the text."""
    lines = [*_HEAD, *head("student", "seeds", "nDCG@10", "each", "95 % interval", "questions", "minutes")]
    teacher = rows.get("teacher-0")
    if teacher:
        lines.append(line("BM25", "", f"{100 * teacher['bm25']:.1f}" if teacher["bm25"] else "", "", "", "", ""))
    for name in ("teacher", "texts", "texts and questions", "texts, then pairs"):
        found = list(seeds(rows, name).values())
        if not found:
            continue
        scores = [next(iter(row["scores"].values())) for row in found]
        values = [100 * score["value"] for score in scores]
        low, high = (100 * each for each in scores[0]["interval"])
        asked = f"{found[0]['questions']:,} of {found[0]['texts']:,} texts" if "questions" in found[0] else ""
        minutes = f"{np.mean([row['minutes'] for row in found]):.1f}" if "minutes" in found[0] else ""
        each = ", ".join(f"{value:.1f}" for value in values) if len(values) > 1 else ""
        lines.append(line(name, len(found), f"{np.mean(values):.1f}", each, f"{low:.1f} to {high:.1f}", asked, minutes))
    tried = {row["lr"]: row for name, row in rows.items() if name.startswith("tuning/")}
    if tried:
        shown = (f"{lr:g}: {100 * next(iter(row['held_out'].values())):.1f}" for lr, row in sorted(tried.items()))
        lines += ["", f"nDCG@10 on the pairs that the first seed holds out, by rate, in percent: {'; '.join(shown)}."]
    written_ones = next((row["examples"] for row in rows.values() if row.get("examples")), [])
    if written_ones:
        lines += ["", "The first questions:", "", *(f"- {each}" for each in written_ones)]
    return written(folder, lines)
