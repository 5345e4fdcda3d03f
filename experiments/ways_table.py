"""The page of quarter_ways.py's results."""

from __future__ import annotations

from pathlib import Path

from records import Rows

_ABOUT = (
    "Cosine: mean of the texts' vectors with the teacher's; order: Spearman's correlation of all cosines with the",
    "teacher's; of ten: the teacher's ten nearest that are found; retrieval: nDCG@10 of the teacher's. In percent.",
)


def write_page(rows: Rows, folder: Path) -> str:
    """What is there, as Markdown; also written to `table.md`."""
    lines = ["# Ways to train a student of a quarter", ""]
    lines += ["Made by `python experiments/quarter_ways.py` (its header says what was trained and measured on what)."]
    lines += ["", *_ABOUT, ""]
    measures = [f"{kind}: {what}" for kind in ("sentences", "longer") for what in ("cosine", "order", "of ten")]
    header = ["way", "steps", "minutes", *measures, "retrieval"]
    lines += [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
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
        lines.append(f"| {' | '.join(cells)} |")
    text = "\n".join(lines) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(text)
    return text
