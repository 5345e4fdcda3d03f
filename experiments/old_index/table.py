"""The page of `old_index`'s results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from experiments.harness.records import Rows, below
from experiments.harness.tables import line, written


def write_page(rows: Rows, folder: Path) -> str:
    """Write all rows as Markdown to `table.md`; returns the text."""
    lines = [
        "# Old indexes",
        "",
        "Made by `python -m experiments.old_index.run` (its README says what was measured on what).",
    ]
    faults, clean, adapted = (below(rows, part) for part in ("faults", "clean", "adapt"))
    if faults:
        lines += ["", "## Planted faults", "", *_faults(faults)]
    if clean:
        lines += ["", "## Clean indexes", "", *_clean(clean)]
    if adapted:
        lines += ["", "## New models on an old index", "", *_adapted(adapted)]
    return written(folder, lines)


def _faults(rows: Rows) -> list[str]:
    lines = [
        "Named rightly: the only finding, of the right kind. Rows told: where the check names rows as exact, the share",
        "of planted rows among those told, and of those told among the planted, mean.",
        "",
        "| fault | planted | found | named rightly | rows told: right | complete |",
        "|---|---|---|---|---|---|",
    ]
    total = np.zeros(3, int)
    for name, row in rows.items():
        cases = row["cases"]
        counts = [len(cases), row["found"], row["right"]]
        total += counts
        told = [case for case in cases if case["told_among_wrong_rows"] is not None]
        shares = [
            f"{np.mean([case[key] for case in told]):.3f}" if told else ""
            for key in ("wrong_rows_among_told", "told_among_wrong_rows")
        ]
        lines.append(line(name.rpartition("-")[0], *map(str, counts), *shares))
    return [*lines, line("all", *map(str, total), "", "")]


def _clean(rows: Rows) -> list[str]:
    lines = [
        "Lowest cosine: the lowest median of a check's rows. Each check states a false-alarm rate of 0.1 % at most.",
        "",
        "| index | checked | accused | lowest cosine |",
        "|---|---|---|---|",
    ]
    for name, row in rows.items():
        lowest = min(each["cosine"] for each in row["cosines"])
        lines.append(line(name.rpartition("-")[0], str(row["cases"]), str(len(row["accused"])), f"{lowest:.6f}"))
    cases, accused = sum(row["cases"] for row in rows.values()), sum(len(row["accused"]) for row in rows.values())
    lines.append(line("all", str(cases), str(accused), ""))
    if not accused:
        bound = 1 - 0.05 ** (1 / cases)
        lines += ["", f"None of {cases}: with 95 % confidence the rate is below {bound:.1%}."]
    return lines


def _adapted(rows: Rows) -> list[str]:
    lines = [
        "Recall@10 times 100 of held-out texts' own ten nearest in the old index, by kind of map and by rows that the",
        "map saw; settings of each are chosen on other held-out texts. Bold: the one that ships.",
        "",
        "| new model | rows | Procrustes | ridge | low rank | residual |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows.values():
        for size in sorted({point["rows"] for point in row["points"]}):
            points = {point["kind"]: point for point in row["points"] if point["rows"] == size}
            cells = [_marked(points[kind], row["chosen"]) for kind in ("procrustes", "ridge", "low rank", "residual")]
            lines.append(line(row["model"], f"{size:,}", *cells))
    lines += [
        "",
        "As it ships. Queries: recall@10 of the one document that belongs to a query, times 100, on the old index by",
        "the adapted model, by the old model, and, without a map, on an index of the new model's own; overlap: share",
        "of the old model's first ten.",
        "",
        "| new model | map | numbers | recall@10 | cosine | queries: adapted | old model | own index | overlap |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows.values():
        asked, chosen = row["queries"], row["chosen"]
        figures = [asked["recall"], asked["old_recall"], row["own_index_recall"], asked["overlap"]]
        lines.append(
            line(
                f"{row['model']}: {row['about']}",
                f"{chosen['kind']}, {chosen['setting']}",
                f"{chosen['parameters']:,}",
                f"{100 * row['recall']:.1f}",
                f"{row['agreement']['cosine']:.3f}",
                *(f"{100 * figure:.1f}" for figure in figures),
            )
        )
    return lines


def _marked(point: dict[str, float | str], chosen: dict[str, float | str]) -> str:
    shown = f"{100 * float(point['report']):.1f}"
    return f"**{shown}**" if point == chosen else shown
