"""The page of `scores`'s results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.harness.records import Rows, below, seeds
from experiments.harness.tables import head, line, spread, written

ARMS = {
    "start": "untrained student",
    "vectors": "vectors alone",
    "scores": "{} alone",
    "both": "{} beside vectors",
    "teacher": "teacher of vectors",
}


def write_page(rows: Rows, folder: Path) -> str:
    """Write all rows as Markdown to `table.md`; returns the text."""
    lines = ["# Scores as lessons", ""]
    lines += ["Made by `python -m experiments.scores.run` (its README says what was trained and judged on what)."]
    probes = below(rows, "probe")
    tasks = list(next((row["tasks"] for row in rows.values() if "tasks" in row), {}))
    if tasks:
        count = len(seeds(rows, "vectors"))
        lines += [
            "",
            "## Retrieval",
            "",
            f"nDCG@10 in percent, mean over {count} seeds, with the least and the largest.",
            "",
        ]
        lines += head("student", *tasks, "mean")
        for name, words in ARMS.items():
            found = list(seeds(rows, name).values())
            if found:
                label = words.format(_chosen(probes, name))
                lines.append(_line(label, [[100 * row["tasks"][task]["value"] for task in tasks] for row in found]))
        first = next(row["tasks"] for row in rows.values() if "tasks" in row)
        if all(first[task]["bm25"] is not None for task in tasks):
            lines.append(_line("BM25, words alone", [[100 * first[task]["bm25"] for task in tasks]]))
    differences = below(rows, "difference")
    if differences:
        lines += ["", "## Differences", "", "In points of nDCG@10, with paired 95 % intervals over test queries.", ""]
        lines += head("", *tasks, "mean of the three")
        for name, row in differences.items():
            lines.append(line(name.rpartition("-")[0], *(_between(row[task]) for task in (*tasks, "all"))))
    if "scorer-0" in rows:
        lines += ["", "## The scorer itself", "", *_scorer(rows["scorer-0"])]
    if probes:
        lines += ["", "## Chosen by the validation pairs", "", "nDCG@10 after a quarter of the training.", ""]
        lines += head("setting", "validation")
        for name, row in probes.items():
            arm, *options = name.rpartition("-")[0].split(", ")
            method = options.pop(0) if arm != "vectors" else ""
            words = ", ".join([ARMS[arm].format(method), *options])
            lines.append(f"| {words} | {100 * row['validation']:.2f} |")
    return written(folder, lines)


def _chosen(probes: Rows, arm: str) -> str:
    """The method with which an arm reached most on the validation pairs."""
    reached = {name: row["validation"] for name, row in probes.items() if name.startswith(f"{arm}, ")}
    return max(reached, key=lambda name: reached[name]).split(", ")[1] if reached else "scores"


def _scorer(row: dict[str, Any]) -> list[str]:
    found, share = row["sorted"], row["among_them"]
    lines = [
        "300 test queries, the teacher's 20 nearest documents of 2,000 sorted anew by the scorer; the answer is among",
        f"them for {100 * share:.1f} % of the queries.",
        "",
        *head("order", "answer first, %", "reciprocal rank"),
    ]
    lines += [f"| {name} | {100 * each['first']:.1f} | {each['reciprocal']:.3f} |" for name, each in found.items()]
    accuracy = row.get("validation", {}).get("accuracy")
    if accuracy is not None:
        lines += ["", f"Accuracy on labelled validation pairs, a third of them answers: {100 * accuracy:.1f} %."]
    return lines


def _line(name: str, runs: list[list[float]]) -> str:
    columns = [*zip(*runs, strict=True), [sum(run) / len(run) for run in runs]]
    return line(name, *(spread(list(column), 2) for column in columns))


def _between(found: dict[str, Any]) -> str:
    low, high = (100 * bound for bound in found["interval"])
    return f"{100 * found['value']:+.2f} ({low:+.2f} to {high:+.2f})"
