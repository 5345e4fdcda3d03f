"""The page of `mixtures`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
from experiments.harness.records import Rows, committed
from experiments.harness.setting import Scores, Setting, points
from experiments.harness.tables import cell, head, line, written
from experiments.harness.verdicts import UNTESTED, Finding, untested

from distilvec.functional.sphere import Mode

EXPERIMENT = "mixtures"
MODES: tuple[str, ...] = get_args(Mode)
GROUPS = {
    "similarity": ("stsb", "sick", "sts12"),
    "clustering": ("banking77", "ag_news"),
    "pair classification": ("mrpc", "scitail"),
}
TASKS = tuple(task for tasks in GROUPS.values() for task in tasks)
#: Of each mixture.
EXPERTS, ACTIVE = 8, 2
#: Seeds are counted on from one start to the next.
SEEDS = 100

HEADER = """# Mixtures of experts under five aggregations

Made by `python -m experiments.mixtures.run` (its README says what was trained on what). Similarity: Spearman;
clustering: V-measure; pair classification: average precision; all in percent. ± is the standard deviation over the
runs: those of both starts together.
"""


def write_page(rows: Rows, folder: Path) -> str:
    """Everything that is there, as Markdown; also written to `table.md`."""
    lines = [*_starts(rows), *_rates(rows), *_scores(rows), *_differences(rows), *_training(rows), *_geometry(rows)]
    return written(folder, [HEADER.removesuffix("\n"), *lines])


def starts_of(rows: Rows) -> list[int]:
    """The numbers of the starts that something was trained from."""
    return sorted({int(name.partition("/")[0]) for name in rows if "/" in name})


def at_rates(rows: Rows, mode: str) -> dict[float, dict[int, dict[str, Any]]]:
    """Rate -> run -> result of an aggregation; a run is SEEDS times its start plus its seed."""
    found: dict[float, dict[int, dict[str, Any]]] = {}
    for name, row in rows.items():
        start, _, rest = name.partition("/")
        if rest.startswith(f"{mode}, "):
            found.setdefault(row["lr"], {})[SEEDS * int(start) + row["seed"]] = row
    return {lr: dict(sorted(runs.items())) for lr, runs in sorted(found.items())}


def validation(row: dict[str, Any]) -> float:
    """What chooses the rate: the mean over the kinds of tasks, of training and validation splits."""
    return float(np.mean(means(row["validation"])))


def rate_of(rows: Rows, mode: str) -> float:
    """The rate that was best on validation data from the first start with seed 0."""
    tried = {lr: validation(runs[0]) for lr, runs in at_rates(rows, mode).items() if 0 in runs}
    return max(tried, key=tried.__getitem__)


def runs_of(rows: Rows, mode: str) -> dict[int, dict[str, Any]]:
    """Run -> result at the aggregation's own rate; empty where none was tried."""
    found = at_rates(rows, mode)
    return found[rate_of(rows, mode)] if found else {}


def premise(rows: Rows) -> str:
    """Why a comparison of aggregations says little: the router spreads its mass nearly evenly; "" where it chooses."""
    masses = [
        float(row["mixtures"][0]["mass"]["median"]) for n in starts_of(rows) if (row := rows.get(f"{n}/geometry"))
    ]
    chosen, even = (float(np.mean(masses)), ACTIVE / EXPERTS) if masses else (1.0, 0.0)
    if chosen >= 2 * even:
        return ""
    return (
        f"the router does not route: its two active experts have {chosen:.2f} of its mass, an even one gives {even:.2f}"
    )


def means(tasks: dict[str, Any]) -> list[float]:
    """Of each kind of task, the mean of those that are there."""
    return [float(np.mean([tasks[t]["value"] for t in group if t in tasks])) for group in GROUPS.values()]


def _starts(rows: Rows) -> list[str]:
    found = {number: row for number in starts_of(rows) if (row := rows.get(f"start-mixture-{number}"))}
    columns = ("steps", "angle", "above 40 degrees", "busiest expert of each mixture", "balance loss")
    lines = ["", "## The starts", "", *head("start", *columns)]
    for number, row in found.items():
        stages = {"upcycled": None, "after sentences": row["sentences"], "after pairs": row["pairs"]}
        for (stage, part), angles, loads in zip(stages.items(), row["angles"], row["loads"], strict=True):
            about = part["steps"] if part else "", f"{angles[0]['median']:.0f}", f"{100 * angles[0]['wide']:.0f} %"
            shares = ", ".join(f"{100 * max(load):.0f} %" for load in loads)
            balance = f"{part['balance'][-1]:.3f}" if part else ""
            lines.append(line(f"{number}, {stage}", *about, shares, balance))
    lines += [
        "",
        "Angle: the median between a token's active experts, in degrees. Even shares would be 12.5 %, an even",
    ]
    return [*lines, "balance loss 1."]


def _rates(rows: Rows) -> list[str]:
    rates = sorted({lr for mode in (*MODES, "dense") for lr in at_rates(rows, mode)})
    lines = ["", "## Rates", "", "Average of the kinds of tasks on validation data, from start 0 with seed 0.", ""]
    lines += head("row", *(f"{lr:g}" for lr in rates))
    for mode in (*MODES, "dense"):
        found = at_rates(rows, mode)
        if found:
            values = [cell([validation(found[lr][0])]) if 0 in found.get(lr, ()) else "" for lr in rates]
            lines.append(line(mode, *values))
    return lines


def _scores(rows: Rows) -> list[str]:
    lines = ["", "## Scores", "", *head("row", "runs", *GROUPS, *TASKS)]
    for mode in (*MODES, "dense"):
        before = [row for n in starts_of(rows) if (row := rows.get(f"{n}/before, {mode}"))]
        for title, each in (("before", before), ("fine-tuned", list(runs_of(rows, mode).values()))):
            if each:
                kinds = zip(*(means(run["tasks"]) for run in each), strict=True)
                tasks = [[run["tasks"][task]["value"] for run in each] for task in TASKS]
                cells = [cell(list(values)) for values in (*kinds, *tasks)]
                lines.append(line(f"{mode}, {title}", len(each), *cells))
    return lines


def _differences(rows: Rows) -> list[str]:
    """Each row against linear, run by run: the order of the data is the same in both."""
    lines = ["", *head("fine-tuned, minus linear", "runs", *GROUPS)]
    linear = {run: means(row["tasks"]) for run, row in runs_of(rows, "linear").items()}
    for mode in MODES[1:]:
        runs = [(run, row) for run, row in runs_of(rows, mode).items() if run in linear]
        gaps = {run: np.subtract(means(row["tasks"]), linear[run]) for run, row in runs}
        for start in (None, *starts_of(rows)):
            chosen = [gap for run, gap in gaps.items() if start in (run // SEEDS, None)]
            if chosen:
                title = mode if start is None else f"{mode}, start {start}"
                lines.append(line(title, len(chosen), *(cell(list(each)) for each in np.array(chosen).T)))
    return lines


def _training(rows: Rows) -> list[str]:
    columns = (
        "row",
        "runs",
        "rate",
        "steps",
        "seconds",
        "loss, first",
        "loss, last",
        "gradient norm, median",
        "largest",
    )
    lines = ["", "## Cost and stability of the fine-tuning", "", *head(*columns)]
    for mode in (*MODES, "dense"):
        runs = list(runs_of(rows, mode).values())
        if runs:
            cells = [
                cell([run["training_seconds"] for run in runs], 1, 0),
                cell([run["losses"][0] for run in runs], 1, 3),
                cell([run["losses"][-1] for run in runs], 1, 3),
                cell([run["grad_norm"]["median"] for run in runs], 1),
                f"{max(run['grad_norm']['largest'] for run in runs):.2f}",
            ]
            lines.append(line(mode, len(runs), f"{rate_of(rows, mode):g}", runs[0]["steps"], *cells))
    return lines


def _geometry(rows: Rows) -> list[str]:
    found = {f"start {number}": rows.get(f"{number}/geometry") for number in starts_of(rows)}
    for mode in MODES:
        for run, row in runs_of(rows, mode).items():
            if "geometry" in row:
                found[f"{mode}, fine-tuned from {run // SEEDS}"] = row["geometry"]
    columns = ("norm ratio", "angle", "above 40 degrees", "mass", "angular factor", "anisotropy", "effective rank")
    lines = [
        "",
        "## Geometry",
        "",
        "Of all mixtures together, medians over tokens; the pictures are in `geometry/`. Angular factor: length of the",
        "linear output over the weighted sum of the experts' lengths.",
        "",
        *head("model", *columns),
    ]
    for name, each in found.items():
        if each and each["mixtures"]:
            whole, space = each["mixtures"][0], each["space"]
            lines.append(
                line(
                    name,
                    f"{whole['norm_ratio']['median']:.2f}",
                    f"{whole['angle']['median']:.0f}",
                    f"{100 * whole['wide']:.0f} %",
                    f"{whole['mass']['median']:.2f}",
                    f"{whole['angular']['linear']['median']:.3f}",
                    f"{space['mean_cosine']:.3f}",
                    f"{space['effective_rank']:.0f}",
                )
            )
    return lines


def setting(student: str, results: Path) -> Setting:
    rows = committed(EXPERIMENT, results)

    def scores(row: str) -> Scores:
        runs = runs_of(rows, row).items()
        return points({run: {task: found["tasks"][task]["value"] for task in TASKS} for run, found in runs})

    return Setting(scores, lambda row: [], unfit=premise(rows), parts=GROUPS)


def measured(results: Path, key: str, of: str, student: str) -> Finding:
    """A figure of all mixtures of a checkpoint together, the mean over checkpoints; in brackets the middle nine tenths
    of their tokens. Lengths are compared with the router's mass taken out, as weights that sum to 1 would have them.
    """
    rows = committed(EXPERIMENT, results)
    each = [row["mixtures"][0] for start in starts_of(rows) if (row := rows.get(f"{start}/geometry"))]
    if not each:
        return untested("no run of it")
    spreads = [whole[key][of] if of else whole[key] for whole in each]
    if key == "wide":
        value, interval = 100 * float(np.mean(spreads)), None
    else:
        value, low, high = (float(np.mean([spread[name] for spread in spreads])) for name in ("median", "low", "high"))
        interval = (low, high)
    count = {1: "one checkpoint", 2: "two checkpoints"}.get(len(each), f"{len(each)} checkpoints")
    why = "; ".join(each for each in (count, premise(rows)) if each)
    return Finding(UNTESTED, value, interval, f"{sum(whole['tokens'] for whole in each):,} tokens", why)
