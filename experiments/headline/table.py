"""The page of what `headline` found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.records import Rows

#: The best of the methods that were trained this long. DistilCSE, ahead of it in the short runs of `talas`, ends
#: a little behind it here.
BEST = "cosine"


def write_page(rows: Rows, folder: Path) -> str:
    """The best recipe's table, and a line for each other method that is there; also written to `table.md`."""
    found = {name: result for name, result in rows.items() if not name.endswith("-speed")}
    if not found:
        return "Nothing is there yet.\n"
    best = BEST if BEST in found else next(iter(found))
    page = table(best, found[best], rows.get(f"{best}-speed"))
    page += "\n".join(["", "## The same student, data and epochs with other methods", "", *_methods(found)]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(page)
    return page


def _methods(found: dict[str, Any]) -> list[str]:
    lines = ["| method | average in | average out | average all | kept | without overlap |", "|---" * 6 + "|"]
    for method, result in sorted(found.items(), key=lambda item: -item[1]["averages"]["student"]["all"]):
        own, top = result["averages"]["student"], result["averages"]["teacher"]["all"]
        clean = result["clean_averages"]["student"]["all"]
        means = " | ".join(f"{100 * own[group]:.2f}" for group in ("in", "out", "all"))
        lines.append(f"| {method} | {means} | {100 * own['all'] / top:.1f} % | {100 * clean:.2f} |")
    return lines


def table(method: str, result: dict[str, Any], timed: dict[str, Any] | None) -> str:
    tasks = list(result["tasks"]["teacher"])
    lines = [
        "# Headline: a quarter of the parameters on the nine sets of TALAS's protocol",
        "",
        "Made by `python -m experiments.headline.run` (its README says what teacher, student and corpus are); method:",
        f"`{method}`. Probes on all training rows; main metrics in percent, 95 % bootstrap intervals over test items.",
        "",
        "| set | teacher | student | kept |",
        "|---|---|---|---|",
    ]
    for task in tasks:
        cells = []
        for model in ("teacher", "student"):
            score = result["tasks"][model][task]
            low, high = score["interval"] or (np.nan, np.nan)
            cells.append(f"{100 * score['value']:.1f} ({100 * low:.1f} to {100 * high:.1f})")
        lines.append(f"| {task} | {cells[0]} | {cells[1]} | {result['retention'][task]:.1f} % |")
    for group in ("in", "out", "all"):
        both = [100 * result["averages"][model][group] for model in ("teacher", "student")]
        lines.append(f"| **average {group}** | {both[0]:.2f} | {both[1]:.2f} | {100 * both[1] / both[0]:.1f} % |")
    clean = [100 * result["clean_averages"][model]["all"] for model in ("teacher", "student")]
    lines.append(f"| average without overlap | {clean[0]:.2f} | {clean[1]:.2f} | {100 * clean[1] / clean[0]:.1f} % |")
    sizes = result["sizes"]
    lines += ["", f"Parameters {sizes['teacher'][0] / 1e6:.2f} M -> {sizes['student'][0] / 1e6:.2f} M."]
    lines += [] if timed is None else [faster(timed)]
    overlap = {name: count for name, count in result["overlap"].items() if count}
    found = ", ".join(f"{name} {count:,}" for name, count in sorted(overlap.items())) or "none"
    lines.append(f"Training texts that are also texts of a set, the training rows of its probe included: {found}.")
    return "\n".join(lines) + "\n"


def faster(timed: dict[str, Any]) -> str:
    """Both speeds in a sentence."""
    ratio = timed["ratio"]
    return (
        f"Texts per second in float32 with {timed['threads']} thread(s): {timed['teacher']['texts_per_second']:.0f} -> "
        f"{timed['student']['texts_per_second']:.0f}, {ratio[1]:.2f} times as many ({ratio[0]:.2f} to {ratio[2]:.2f} "
        f"over three rounds in turns); one text takes {timed['teacher']['latency_p50_ms']:.1f} -> "
        f"{timed['student']['latency_p50_ms']:.1f} ms."
    )
