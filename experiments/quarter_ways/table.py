"""The page of `quarter_ways`'s results."""

from __future__ import annotations

from pathlib import Path

from experiments.harness.records import Rows
from experiments.harness.tables import head, line, written

_ABOUT = (
    "Cosine: mean of the texts' vectors with the teacher's; order: Spearman's correlation of all cosines with the",
    "teacher's; of ten: the teacher's ten nearest that are found; retrieval: nDCG@10 of the teacher's. In percent.",
)


def write_page(rows: Rows, folder: Path) -> str:
    """Write all rows as Markdown to `table.md`; returns the text."""
    lines = ["# Ways to train a student of a quarter", ""]
    lines += [
        "Made by `python -m experiments.quarter_ways.run` (its README says what was trained and measured on what)."
    ]
    lines += ["", *_ABOUT, ""]
    measures = [f"{kind}: {what}" for kind in ("sentences", "longer") for what in ("cosine", "order", "of ten")]
    header = ["way", "steps", "minutes", *measures, "retrieval"]
    lines += head(*header)
    for name, row in rows.items():
        cells = [
            name.rpartition("-")[0],
            f"{row['training']['steps']:,}",
            f"{row['training']['training_seconds'] / 60:.1f}",
        ]
        for kind in ("sentences", "longer"):
            found = row["agreement"][kind]
            cells += [f"{100 * found[key]:.1f}" for key in ("cosine", "similarity_spearman", "neighbours")]
        scores = row["retrieval"]
        cells.append(f"{100 * scores['student'] / scores['teacher']:.1f} of {100 * scores['teacher']:.1f}")
        lines.append(line(*cells))
    return written(folder, lines)
