"""The page of `sparse`'s results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.harness.records import Rows, below, seeds
from experiments.harness.tables import cell, head, line, written

HEADER = """# Sparse students

Made by `python -m experiments.sparse.run` (its README says what was trained and judged on what).

## Search on Cranfield

225 queries, 1,398 documents, dot products. nDCG@10 with its 95 % interval over queries, and MRR@10, in percent. Active:
numbers of a vector that are not zero, mean over documents and over queries. Nearest: the teacher's ten nearest among
500 held-out texts that are found, in percent. Texts: read in training, 6,000 of them twice. Minutes: of the training,
on one thread of a machine that was busy with other work; about two and a half of processor time each.
"""
BEFORE = {
    "teacher": "teacher",
    "teacher, kept pieces": "teacher, only the pieces that the student has",
    "untrained": "untrained student",
}


def write_page(rows: Rows, folder: Path) -> str:
    """Write all rows as Markdown to `table.md`; returns the text."""
    lines = [
        HEADER,
        *head(
            "model",
            "parameters",
            "pieces",
            "nDCG@10",
            "MRR@10",
            "active: documents",
            "queries",
            "nearest",
            "seed",
            "texts",
            "minutes",
        ),
    ]
    students = seeds(rows, "student")
    judged = {title: rows[f"{name}-0"] for name, title in BEFORE.items() if f"{name}-0" in rows}
    pieces = [row["pieces"] for row in students.values()]
    if pieces and (kept := BEFORE["teacher, kept pieces"]) in judged:
        judged[kept] = judged[kept] | {"pieces": pieces[0]}
    if judged:
        bm25 = next(iter(judged.values()))["cranfield"]["details"]["bm25"]
        lines.append(line("BM25", "", "", *(f"{100 * bm25[key]:.1f}" for key in ("ndcg@10", "mrr@10")), *[""] * 6))
    judged |= {f"student {seed}": row for seed, row in students.items()}
    lines += [_judged(title, row) for title, row in judged.items()]
    if students:
        lines.append(_mean(list(students.values())))
        gap = max(row["reload_gap"] for row in students.values())
        lines += ["", f"Shipped, and opened again by the stock class: vectors differ by {gap:g} at most."]
    if "differences-0" in rows:
        lines += [
            "",
            "## Differences",
            "",
            "Students less each other model, points of nDCG@10 with 95 % intervals over",
        ]
        lines += ["queries and seeds.", "", *head("less", "difference")]
        for name, found in rows["differences-0"].items():
            if name in BEFORE:
                low, high = (100 * edge for edge in found["interval"])
                lines.append(line(BEFORE[name], f"{100 * found['value']:+.1f} ({low:+.1f} to {high:+.1f})"))
    return written(folder, [*lines, *_tried(below(rows, "probe"))])


def _judged(title: str, row: dict[str, Any]) -> str:
    score, active = row["cranfield"], row["active"]
    low, high = (100 * edge for edge in score["interval"])
    return line(
        title,
        f"{row['parameters'] / 1e6:.2f} M",
        f"{row['pieces']:,}",
        f"{100 * score['value']:.1f} ({low:.1f} to {high:.1f})",
        f"{100 * score['details']['mrr@10']:.1f}",
        *(f"{active[side]:,.0f}" for side in ("documents", "queries")),
        f"{100 * row['likeness']['neighbours']:.1f}",
        row.get("seed", ""),
        f"{row['texts']:,}" if "texts" in row else "",
        f"{row['minutes']:.1f}" if "minutes" in row else "",
    )


def _mean(students: list[dict[str, Any]]) -> str:
    """Mean and deviation over seeds."""
    scores = [row["cranfield"] for row in students]
    return line(
        "students, mean ± deviation",
        "",
        "",
        cell([score["value"] for score in scores], digits=1),
        cell([score["details"]["mrr@10"] for score in scores], digits=1),
        *(cell([row["active"][side] for row in students], 1, 0) for side in ("documents", "queries")),
        cell([row["likeness"]["neighbours"] for row in students], digits=1),
        *[""] * 3,
    )


def _tried(probes: Rows) -> list[str]:
    """What chose rate and weight of FLOPS."""
    lines = ["", "## What chose the settings", "", "Half an epoch, 500 held-out texts that are in no other figure."]
    lines += ["", *head("rate", "FLOPS", "nearest", "active", "the teacher's", "minutes")]
    for row in sorted(probes.values(), key=lambda row: (row["lr"], row["flops"])):
        cells = [f"{100 * row['neighbours']:.1f}", f"{row['active']:.0f}", f"{row['teacher_active']:.0f}"]
        lines.append(line(f"{row['lr']:g}", f"{row['flops']:g}", *cells, f"{row['minutes']:.1f}"))
    return lines
