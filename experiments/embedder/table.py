"""The page of what `embedder` found."""

from __future__ import annotations

from pathlib import Path

from experiments.harness.records import Rows
from experiments.harness.tables import head, line, written

HEADER = """# student-bpe as an embedder

Made by `python -m experiments.embedder.run` (its README says on what). Percent; nine sets: main metrics' average over
TALAS's protocol; order: Spearman's correlation of all cosines with the teacher's on held-out sentences; ten nearest:
share of the teacher's that are found.
"""


def write_page(rows: Rows, folder: Path) -> str:
    """The table, also written to `table.md`."""
    found = rows["embedder"]
    tasks = list(found["tasks"]["teacher"])
    lines = [HEADER, *head("model", "nine sets", *tasks)]
    for name, scores in found["tasks"].items():
        values = [f"{100 * scores[task]:.1f}" for task in tasks]
        lines.append(line(name, f"{100 * found['averages'][name]['all']:.2f}", *values))
    alike = found["agreement"]
    lines += [
        "",
        f"After {found['steps']:,} steps of 64: order {100 * alike['similarity_spearman']:.1f}, ten nearest "
        f"{100 * alike['neighbours']:.1f}.",
    ]
    return written(folder, lines)
