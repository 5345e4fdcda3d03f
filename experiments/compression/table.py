"""The page of what `compression` found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.harness.records import Rows, committed
from experiments.harness.tables import line, written
from experiments.headline.table import BEST

from distilvec.report.sections.compressed import Compression


@dataclass(frozen=True)
class Static:
    """A static student: its table, and how it is trained."""

    dimensions: int
    vocabulary: int | None = None
    epochs: float = 2


STATIC = {
    "static, 256 numbers, all pieces": Static(256),
    "static, 384 numbers, 5,000 pieces": Static(384, 5000),
    "static, 256 numbers, 21,500 pieces": Static(256, 21_500),
    "static, 256 numbers, 21,500 pieces, 6 epochs": Static(256, 21_500, epochs=6),
}


def write_page(rows: Rows, folder: Path) -> str:
    """Write all rows as Markdown to `table.md`; returns the text."""
    lines = ["# The headline student compressed, and static students beside it", ""]
    lines += ["Made by `python -m experiments.compression.run` (its README says what was measured on what)."]
    if "headline" in rows:
        found = {key: value for key, value in rows["headline"].items() if key != "seconds"}
        table = Compression.model_validate(found)
        lines += ["", "## Compressed", "", _markdown(table), ""]
    students = [rows[name] for name in STATIC if name in rows]
    best = committed("headline").get(BEST)
    if students and best:
        full = best["averages"]["teacher"]["all"]
        lines += [
            "## Static students",
            "",
            "Averages over the nine sets in percent; kept: of the teacher's. Of 1,000 held-out sentences of the pool,",
            "times 100: neighbours, the share of the teacher's ten nearest that are found again; order, Spearman's",
            "correlation of all cosines with the teacher's. One seed.",
            "",
            "| model | parameters | Avg-In | Avg-Out | Avg | kept | neighbours | order | texts/s, 1 thread |",
            "|---|---|---|---|---|---|---|---|---|",
            _line("teacher", None, best["averages"]["teacher"], full, None, None),
            _line("headline student", None, best["averages"]["student"], full, best["agreement"], None),
        ]
        for each in students:
            row = STATIC[each["name"]]
            for model in ("untrained", "trained") if row == Static(row.dimensions, row.vocabulary) else ("trained",):
                rate = each["speed"]["texts_per_second"]
                agreed = each.get("agreement", {}).get(model)
                title = f"{each['name']}, {model}"
                lines.append(_line(title, each["parameters"], each["averages"][model], full, agreed, rate))
    return written(folder, lines)


def _markdown(table: Compression) -> str:
    """Without speeds: the machine did other work beside."""
    for row in table.rows:
        row.texts_per_second = row.latency_p50_ms = row.latency_p95_ms = None
    return table.grid().markdown()


def _line(
    name: str,
    parameters: int | None,
    averages: dict[str, float],
    full: float,
    agreed: dict[str, float] | None,
    rate: float | None,
) -> str:
    shown = " | ".join(f"{100 * averages[group]:.2f}" for group in ("in", "out", "all"))
    size = "" if parameters is None else f"{parameters / 1e6:.2f} M"
    likes = [f"{100 * agreed[key]:.1f}" for key in ("neighbours", "similarity_spearman")] if agreed else ["", ""]
    cells = [name, size, shown, f"{100 * averages['all'] / full:.1f} %", *likes, "" if rate is None else f"{rate:,.0f}"]
    return line(*cells)
