"""The page of mixtures.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
from common import RESULTS

from distilvec.functional.sphere import Mode

HERE = RESULTS / "mixtures"
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


def write_page(here: Path) -> str:
    """Everything that is there, as Markdown; also written to `table.md`."""
    page = HEADER + "\n".join([*_base(here), *_scores(here), *_training(here), *_geometry(here)]) + "\n"
    here.mkdir(parents=True, exist_ok=True)
    (here / "table.md").write_text(page)
    return page


def _read(file: Path) -> dict[str, Any] | None:
    return json.loads(file.read_text()) if file.exists() else None


def _rows(here: Path, mode: str) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(here.glob(f"{mode}-[0-9].json"))]


def _cell(values: list[float], factor: float = 100, digits: int = 2) -> str:
    mean = factor * float(np.mean(values))
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ± {factor * float(np.std(values, ddof=1)):.{digits}f}"


def _means(tasks: dict[str, Any]) -> list[float]:
    return [float(np.mean([tasks[task]["value"] for task in group])) for group in GROUPS.values()]


def _base(here: Path) -> list[str]:
    found = _read(here / "base-mixture.json")
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


def _scores(here: Path) -> list[str]:
    lines = ["", "## Scores", "", f"| row | seeds | {' | '.join([*GROUPS, *TASKS])} |", "|---" * (2 + 9) + "|"]
    for mode in (*MODES, "dense"):
        before, runs = _read(here / f"before-{mode}.json"), _rows(here, mode)
        if before is not None:
            values = [*_means(before["tasks"]), *(before["tasks"][task]["value"] for task in TASKS)]
            lines.append(f"| {mode}, before | | {' | '.join(_cell([value]) for value in values)} |")
        if runs:
            means = list(zip(*(_means(run["tasks"]) for run in runs), strict=True))
            each = [[run["tasks"][task]["value"] for run in runs] for task in TASKS]
            cells = [_cell(list(values)) for values in (*means, *each)]
            lines.append(f"| {mode}, fine-tuned | {len(runs)} | {' | '.join(cells)} |")
    return [*lines, *_differences(here)]


def _differences(here: Path) -> list[str]:
    """Each row against linear, seed by seed: the order of the data is the same in both."""
    linear = {run["seed"]: _means(run["tasks"]) for run in _rows(here, "linear")}
    lines = ["", f"| fine-tuned, minus linear | seeds | {' | '.join(GROUPS)} |", "|---" * 5 + "|"]
    for mode in MODES[1:]:
        runs = [run for run in _rows(here, mode) if run["seed"] in linear]
        if runs:
            gaps = np.array([np.subtract(_means(run["tasks"]), linear[run["seed"]]) for run in runs])
            cells = " | ".join(_cell(list(column)) for column in gaps.T)
            lines.append(f"| {mode} | {len(runs)} | {cells} |")
    return lines if len(lines) > 3 else []


def differences(here: Path, one: str, other: str, group: str) -> list[float]:
    """One aggregation minus another on a group of tasks, in points, for each seed that both have."""
    place = list(GROUPS).index(group)
    means = [{run["seed"]: _means(run["tasks"])[place] for run in _rows(here, mode)} for mode in (one, other)]
    return [100 * (means[0][seed] - means[1][seed]) for seed in means[0] if seed in means[1]]


def _training(here: Path) -> list[str]:
    lines = [
        "",
        "## Cost and stability of the fine-tuning",
        "",
        "| row | seeds | steps | seconds | loss, first | loss, last | gradient norm, median | largest |",
        "|---" * 8 + "|",
    ]
    for mode in (*MODES, "dense"):
        runs = _rows(here, mode)
        if runs:
            cells = [
                _cell([run["training_seconds"] for run in runs], 1, 0),
                _cell([run["losses"][0] for run in runs], 1, 3),
                _cell([run["losses"][-1] for run in runs], 1, 3),
                _cell([run["grad_norm"]["median"] for run in runs], 1),
                f"{max(run['grad_norm']['largest'] for run in runs):.2f}",
            ]
            lines.append(f"| {mode} | {len(runs)} | {runs[0]['steps']} | {' | '.join(cells)} |")
    return lines


def _geometry(here: Path) -> list[str]:
    found = {"the checkpoint": _read(here / "geometry.json")}
    found |= {f"{mode}, fine-tuned": next(iter(_rows(here, mode)), {}).get("geometry") for mode in MODES}
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
