"""The page of mixtures.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
from layout import cell
from records import Rows, seeds

from distilvec.functional.sphere import Mode

EXPERIMENT = "mixtures"
MODES: tuple[str, ...] = get_args(Mode)
GROUPS = {
    "similarity": ("stsb", "sick", "sts12"),
    "clustering": ("banking77",),
    "pair classification": ("mrpc", "scitail"),
}
TASKS = tuple(task for tasks in GROUPS.values() for task in tasks)

HEADER = """# Mixtures of experts under five aggregations

Made by `python experiments/mixtures.py` (its header says what was trained on what). Similarity: Spearman; clustering:
V-measure; pair classification: average precision; all in percent. ± is the standard deviation over seeds.
"""


def write_page(rows: Rows, folder: Path) -> str:
    """Everything that is there, as Markdown; also written to `table.md`."""
    page = HEADER + "\n".join([*_base(rows), *_scores(rows), *_training(rows), *_geometry(rows)]) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(page)
    return page


def _runs(rows: Rows, mode: str) -> list[dict[str, Any]]:
    return list(seeds(rows, mode).values())


def _means(tasks: dict[str, Any]) -> list[float]:
    return [float(np.mean([tasks[task]["value"] for task in group])) for group in GROUPS.values()]


def _base(rows: Rows) -> list[str]:
    found = rows.get("base-mixture")
    if found is None:
        return []
    lines = ["", "## The checkpoint", "", "Share of the assignments that the busiest expert of each mixture has:", ""]
    for when, key in (("upcycled", "loads_before"), ("trained", "loads")):
        shares = ", ".join(f"{100 * max(load):.0f} %" for load in found[key])
        lines.append(f"- {when}: {shares} (even: {100 / len(found[key][0]):.1f} %)")
    if found["balance"]:
        lines.append(
            f"- load-balancing loss {found['balance'][0]:.3f} in the first steps, {found['balance'][-1]:.3f} in the "
            f"last (1 = even), over {found['steps']:,} steps"
        )
    return lines


def _scores(rows: Rows) -> list[str]:
    lines = ["", "## Scores", "", f"| row | seeds | {' | '.join([*GROUPS, *TASKS])} |", "|---" * (2 + 9) + "|"]
    for mode in (*MODES, "dense"):
        before, runs = rows.get(f"before-{mode}"), _runs(rows, mode)
        if before is not None:
            values = [*_means(before["tasks"]), *(before["tasks"][task]["value"] for task in TASKS)]
            lines.append(f"| {mode}, before | | {' | '.join(cell([value]) for value in values)} |")
        if runs:
            means = list(zip(*(_means(run["tasks"]) for run in runs), strict=True))
            each = [[run["tasks"][task]["value"] for run in runs] for task in TASKS]
            cells = [cell(list(values)) for values in (*means, *each)]
            lines.append(f"| {mode}, fine-tuned | {len(runs)} | {' | '.join(cells)} |")
    return [*lines, *_differences(rows)]


def _differences(rows: Rows) -> list[str]:
    """Each row against linear, seed by seed: the order of the data is the same in both."""
    linear = {run["seed"]: _means(run["tasks"]) for run in _runs(rows, "linear")}
    lines = ["", f"| fine-tuned, minus linear | seeds | {' | '.join(GROUPS)} |", "|---" * 5 + "|"]
    for mode in MODES[1:]:
        runs = [run for run in _runs(rows, mode) if run["seed"] in linear]
        if runs:
            gaps = np.array([np.subtract(_means(run["tasks"]), linear[run["seed"]]) for run in runs])
            cells = " | ".join(cell(list(column)) for column in gaps.T)
            lines.append(f"| {mode} | {len(runs)} | {cells} |")
    return lines if len(lines) > 3 else []


def paired(rows: Rows, one: str, other: str, group: str) -> dict[str, dict[int | None, float]]:
    """Task of a group -> seed -> one aggregation minus another in points."""
    first, second = seeds(rows, one), seeds(rows, other)
    both = [seed for seed in first if seed in second]
    values = {
        task: {seed: [run[seed]["tasks"][task]["value"] for run in (first, second)] for seed in both}
        for task in GROUPS[group]
    }
    return {task: {seed: 100 * (a - b) for seed, (a, b) in each.items()} for task, each in values.items() if both}


def _training(rows: Rows) -> list[str]:
    lines = [
        "",
        "## Cost and stability of the fine-tuning",
        "",
        "| row | seeds | steps | seconds | loss, first | loss, last | gradient norm, median | largest |",
        "|---" * 8 + "|",
    ]
    for mode in (*MODES, "dense"):
        runs = _runs(rows, mode)
        if runs:
            cells = [
                cell([run["training_seconds"] for run in runs], 1, 0),
                cell([run["losses"][0] for run in runs], 1, 3),
                cell([run["losses"][-1] for run in runs], 1, 3),
                cell([run["grad_norm"]["median"] for run in runs], 1),
                f"{max(run['grad_norm']['largest'] for run in runs):.2f}",
            ]
            lines.append(f"| {mode} | {len(runs)} | {runs[0]['steps']} | {' | '.join(cells)} |")
    return lines


def _geometry(rows: Rows) -> list[str]:
    found = {"the checkpoint": rows.get("geometry")}
    found |= {f"{mode}, fine-tuned": next(iter(_runs(rows, mode)), {}).get("geometry") for mode in MODES}
    lines = [
        "",
        "## Geometry",
        "",
        "Of all mixtures together, medians over tokens; the pictures are in `geometry/`. Angular factor: length of the",
        "linear output over the weighted sum of the experts' lengths.",
        "",
        "| model | norm ratio | angle | above 40 degrees | mass | angular factor | anisotropy | effective rank |",
        "|---" * 8 + "|",
    ]
    for name, each in found.items():
        if each and each["mixtures"]:
            whole, space = each["mixtures"][0], each["space"]
            lines.append(
                f"| {name} | {whole['norm_ratio']['median']:.2f} | {whole['angle']['median']:.0f} | "
                f"{100 * whole['wide']:.0f} % | {whole['mass']['median']:.2f} | "
                f"{whole['angular']['linear']['median']:.3f} | {space['mean_cosine']:.3f} | "
                f"{space['effective_rank']:.0f} |"
            )
    return lines
