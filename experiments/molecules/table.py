"""The page of what `molecules` has found so far, and the rank comparisons behind the claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.records import Rows, committed, pairs_of_seeds, seeds
from experiments.harness.setting import ONE_RATE, Setting, grouped, points
from experiments.harness.verdicts import Finding, judge, untested
from experiments.molecules.ranks import bootstrap, by_set, terciles, training_losses
from experiments.molecules.rows import GROUPS, NUMBERS, ROWS, SETS, TEACHERS

from distilvec.report.plots import save_svg, style
from distilvec.report.ranks import common_tasks, make_ranking, ranks, ranks_figure

EXPERIMENT = "molecules"
MAIN = "gaussian"
BEST_TEACHER, BEST_SINGLE = "best teacher", "best single-teacher student"
#: R2 below which a probe is spoken of by itself.
BURST = -10.0
TRAINED = tuple(name for name, row in GROUPS["main"].items() if row.method)


class Found:
    """Everything that is there.

    Attributes:
        runs: model -> its results, one per seed; teachers are "teacher NAME".
        scores: model -> task -> mean score over the seeds.
        items: task -> its facts.
        refused: column -> why it is not probed.
    """

    def __init__(self, rows: Rows) -> None:
        self.runs: dict[str, list[dict[str, Any]]] = {}
        for name in TEACHERS:
            if f"teacher-{name}" in rows:
                self.runs[f"teacher {name}"] = [rows[f"teacher-{name}"]]
        for name in ROWS:
            if runs := list(seeds(rows, name).values()):
                self.runs[name] = runs
        self.scores = {model: _mean_scores(runs) for model, runs in self.runs.items()}
        columns = rows.get("columns", {"items": {}, "refused": {}})
        self.items, self.refused = columns["items"], columns["refused"]

    def only(self, models: Sequence[str]) -> dict[str, dict[str, float]]:
        """Scores of those of the models that are there."""
        return {model: self.scores[model] for model in models if model in self.scores}

    @property
    def compared(self) -> dict[str, dict[str, float]]:
        """Teachers, main students and single-teacher students: among these the claims' ranks are taken."""
        return self.only([*_TEACHERS, *GROUPS["main"], *GROUPS["single"]])

    def resolve(self, model: str) -> str:
        """The model behind "best ...": the one with the best average rank on these very tasks, to its advantage."""
        names = {BEST_TEACHER: _TEACHERS, BEST_SINGLE: tuple(GROUPS["single"])}.get(model)
        if names is None or not set(names) <= set(self.scores):
            return model
        scores = self.compared
        average = dict(zip(scores, ranks(scores, common_tasks(scores)).mean(axis=0), strict=True))
        return min(names, key=average.__getitem__)

    def seeds(self, model: str) -> int:
        return len(self.runs[model])

    def metric(self, model: str, metric: str) -> float:
        """Mean over the tasks of a metric, auroc or r2; NaN without any."""
        kind = {task: facts["minority"] is not None for task, facts in self.items.items()}
        values = [value for task, value in self.scores[model].items() if kind[task] == (metric == "auroc")]
        return float(np.mean(values)) if values else float("nan")

    def middle_r2(self, model: str) -> float:
        """Mean over the columns of numbers of the median over splits and seeds; NaN without any."""
        numbers = [task for task, facts in self.items.items() if facts["minority"] is None]
        medians = [
            float(np.median([value for run in self.runs[model] for value in run["tasks"][task]["values"]]))
            for task in numbers
            if task in self.scores[model]
        ]
        return float(np.mean(medians)) if medians else float("nan")

    def held_out(self, model: str, term: str) -> dict[str, float]:
        """Teacher -> mean of a logged term over the seeds."""
        runs = [run.get("held_out", {}) for run in self.runs[model]]
        named = [name for name in TEACHERS if all(term in run.get(name, {}) for run in runs)]
        return {name: float(np.mean([run[name][term] for run in runs])) for name in named}


_TEACHERS = tuple(f"teacher {name}" for name in TEACHERS)


def paired_ranks(rows: Rows, a: str, b: str) -> tuple[str, dict[str, dict[int | None, float]]]:
    """What `b` turned out to be, and file -> seed -> how much better a's average rank over its columns is.

    The ranks are those of teachers, main students and single-teacher students; of a and b the run with the seed, of
    the others the mean over their seeds. Empty where a row is missing.
    """
    found = Found(rows)
    a, b = found.resolve(a), found.resolve(b)
    compared = found.compared
    if a not in compared or b not in compared:
        return b, {}
    models, tasks = list(compared), common_tasks(compared)
    files = np.array([task.partition(" ")[0] for task in tasks])
    own = {model: {run.get("seed"): _mean_scores([run]) for run in found.runs[model]} for model in (a, b)}
    differences: dict[str, dict[int | None, float]] = {file: {} for file in dict.fromkeys(files)}
    for one, other in pairs_of_seeds(own[a], own[b]):
        given = ranks({**compared, a: own[a][one], b: own[b][other]}, tasks)
        gaps = given[:, models.index(b)] - given[:, models.index(a)]
        for file, each in differences.items():
            each[one if one is not None else other] = float(gaps[files == file].mean())
    return b, differences


def task_scores(rows: Rows, model: str) -> dict[int | None, dict[str, float]]:
    """Seed -> task -> score of a student; of a teacher the seed is None."""
    return {run.get("seed"): _mean_scores([run]) for run in Found(rows).runs.get(model, [])}


def write_page(rows: Rows, folder: Path) -> str:
    """Write table.md and the picture beside the results; returns the page."""
    found = Found(rows)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [HEADER]
    if found.runs:
        lines += _overall(found, folder) + _sections(found, folder)
        lines += _losses(found) + _agreement(found) + _left_out(found)
    text = "\n".join(lines) + "\n"
    (folder / "table.md").write_text(text)
    return text


def _mean_scores(runs: list[dict[str, Any]]) -> dict[str, float]:
    tasks = set.intersection(*(set(run["tasks"]) for run in runs))
    return {task: float(np.mean([run["tasks"][task]["value"] for run in runs])) for task in sorted(tasks)}


def _overall(found: Found, folder: Path) -> list[str]:
    """Teachers and main students, as in the paper's Table 2."""
    scores = found.only([*_TEACHERS, *GROUPS["main"]])
    lines = ["", "## Teachers and students", "", *_ranking(found, scores, MAIN)]
    tasks = common_tasks(scores)
    if len(scores) < 2 or not tasks:
        return lines
    ranking = make_ranking(scores)
    if ranking is not None:
        with style():
            save_svg(ranks_figure(ranking), folder / "critical-difference.svg")
        lines += ["", ranking.statement(), "", "![Critical difference](critical-difference.svg)"]
    lines += [
        "",
        "### By kind, size and class imbalance of the tasks (average ranks; size and imbalance in terciles)",
        "",
    ]
    sizes = {task: float(found.items[task]["n"]) for task in tasks}
    rare = {task: found.items[task]["minority"] for task in tasks if found.items[task]["minority"] is not None}
    parts = [("classes", list(rare)), ("numbers", [task for task in tasks if task not in rare])]
    parts = [(title, part) for title, part in parts if part]
    parts += [(f"{_range(part, sizes)} molecules", part) for part in terciles(sizes) if part]
    parts += [(f"rarer class {_range(part, rare, 100)} %", part) for part in terciles(rare) if part]
    lines += [f"| model | {' | '.join(f'{title} ({len(part)})' for title, part in parts)} |", "|---" * (len(parts) + 1)]
    lines[-1] += "|"
    columns = [ranks(scores, part).mean(axis=0) for _, part in parts]
    for number, model in enumerate(scores):
        lines.append(f"| {model} | {' | '.join(f'{column[number]:.2f}' for column in columns)} |")
    return lines


def _range(part: Sequence[str], values: dict[str, float], factor: float = 1) -> str:
    low, high = (factor * edge(values[task] for task in part) for edge in (min, max))
    return f"{low:,.0f} to {high:,.0f}" if factor == 1 else f"{low:.1f} to {high:.1f}"


def _ranking(found: Found, scores: dict[str, dict[str, float]], against: str) -> list[str]:
    """A line per model: ranks within these models, difference to one of them, mean metrics."""
    tasks = common_tasks(scores)
    if len(scores) < 2 or not tasks:
        return ["Not enough rows yet."]
    given, models = ranks(scores, tasks), list(scores)
    average, equal = given.mean(axis=0), by_set(given, tasks)
    lines = [
        f"| model | seeds | average rank of {len(models)} | with every file counting the same | behind `{against}` "
        "(95 % interval) | mean AUROC | mean R2 | mean R2 of median splits |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for number in np.argsort(average, kind="stable"):
        model, behind = models[number], ""
        if against in models and model != against:
            differences = given[:, number] - given[:, models.index(against)]
            low, high = bootstrap(differences)
            behind = f"{differences.mean():+.2f} ({low:+.2f} to {high:+.2f})"
        lines.append(
            f"| {model} | {found.seeds(model)} | {average[number]:.2f} | {equal[number]:.2f} | {behind} "
            f"| {found.metric(model, 'auroc'):.4f} | {found.metric(model, 'r2'):.3f} | {found.middle_r2(model):.3f} |"
        )
    return [*lines, *_burst(found, models)]


def _burst(found: Found, models: Sequence[str]) -> list[str]:
    """The probes whose R2 is so far below 0 that they make a mean what it is."""
    lines = []
    probed = [(model, *item) for model in models for run in found.runs[model] for item in run["tasks"].items()]
    for model, task, result in probed:
        worst, *rest = sorted(result["values"])
        if result["metric"] == "r2" and worst < BURST and rest:
            lines += [
                "",
                f"{model}, {task}: one of {len(rest) + 1} probes has an R2 of {worst:.1f}, the others {rest[0]:.2f} to "
                f"{rest[-1]:.2f}. It alone makes that column's mean {result['value']:.1f}; ranks are of the means.",
            ]
    return lines


def _sections(found: Found, folder: Path) -> list[str]:
    lines: list[str] = []
    for title, models, shown in (
        ("One, two and all teachers", [MAIN, *GROUPS["pairs"], *GROUPS["single"]], "numbers"),
        ("Coordinates clipped, means as by squared error", [MAIN, "multi_mse", *GROUPS["robust"]], ""),
        ("Hidden layers of the kernels (`gaussian`: 3)", [MAIN, *GROUPS["depth"]], "depth"),
        (
            "Kernels as by default (ridge map, 1,024 wide), and that wide from random weights",
            [MAIN, *GROUPS["kernels"]],
            "",
        ),
        ("Kind of encoder (`gaussian`: gine)", [MAIN, *GROUPS["encoders"]], "encoder"),
        ("Size of the pool (`gaussian`: 20,000; as many steps)", [MAIN, *GROUPS["pools"]], ""),
        ("Ten layers of 512", [MAIN, *GROUPS["large"]], ""),
    ):
        scores = found.only(models)
        if len(scores) < 2:
            continue
        lines += ["", f"## {title}", "", *_ranking(found, scores, MAIN)]
        if shown == "numbers":
            lines += _numbers(found, scores)
        elif shown:
            drawn = {model: curve for model in scores if (curve := found.runs[model][0].get("curve"))}
            training_losses(drawn, folder / f"loss-by-{shown}.svg")
            lines += ["", f"![Training loss by {shown}](loss-by-{shown}.svg)"]
    return lines


def _numbers(found: Found, scores: dict[str, dict[str, float]]) -> list[str]:
    """R2 of each column of numbers, as in the paper's Figure 5."""
    columns = [task for task in common_tasks(scores) if found.items[task]["minority"] is None]
    if not columns:
        return []
    lines = ["", "R2 by column (mean of five splits):", "", f"| model | {' | '.join(columns)} |"]
    lines.append(f"|---{'|---' * len(columns)}|")
    return lines + [
        f"| {model} | {' | '.join(f'{values[column]:.3f}' for column in columns)} |" for model, values in scores.items()
    ]


def _losses(found: Found) -> list[str]:
    """What the trainings reached on molecules held out of the pool."""
    lines = [
        "",
        "## On held-out molecules of the pool",
        "",
        "Share of each teacher's variance that the kernel's mean explains; calibration (mean squared standardised "
        "residual, 1 is right) over the teachers. `multi_cosine` does not predict lengths, and so has neither.",
        "",
        f"| row | {' | '.join(TEACHERS)} | calibration | s/training | s/probes |",
        f"|---{'|---' * len(TEACHERS)}|---|---|---|",
    ]
    for model in ROWS:
        if model not in found.runs or ROWS[model].method is None:
            continue
        # Of vectors that are right up to their length nothing is explained in this sense.
        explained = {} if ROWS[model].method == "multi_cosine" else found.held_out(model, "explained")
        calibration = found.held_out(model, "calibration")
        cells = " | ".join(f"{explained[name]:.3f}" if name in explained else "" for name in TEACHERS)
        right = f"{min(calibration.values()):.2f} to {max(calibration.values()):.2f}" if calibration else ""
        training, probes = (
            np.mean([run[key] for run in found.runs[model]]) for key in ("training_seconds", "probe_seconds")
        )
        lines.append(f"| {model} | {cells} | {right} | {training:.0f} | {probes:.0f} |")
    return lines


def _agreement(found: Found) -> list[str]:
    """Equation 1: how often a probe on the student and one on a teacher decide differently."""
    lines = [
        "",
        "## Disagreement of probes with each teacher's (equation 1)",
        "",
        "Share of test items on which they decide differently, mean over tasks of two classes and seeds. A rare class "
        "makes all probes agree.",
        "",
        f"| row | {' | '.join(TEACHERS)} | mean |",
        f"|---{'|---' * len(TEACHERS)}|---|",
    ]
    for model in ("untrained", *TRAINED, *GROUPS["single"]):
        runs = found.runs.get(model, [])
        if runs:
            shares = [np.mean([run["disagreement"][name] for run in runs]) for name in TEACHERS]
            cells = " | ".join(f"{share:.4f}" for share in shares)
            lines.append(f"| {model} | {cells} | {np.mean(shares):.4f} |")
    return lines


def _left_out(found: Found) -> list[str]:
    """Columns and splits that are not probed, and probes that were cut short."""
    runs = [run for runs in found.runs.values() for run in runs]
    probes = [task for run in runs for task in run["tasks"].values()]
    late = float(np.mean([epoch == task["epochs"] for task in probes for epoch in task["best_epochs"]]))
    lines = ["", "## Left out and cut short", ""]
    lines += [f"- {column}: not probed ({reason})." for column, reason in found.refused.items()]
    for task, facts in runs[0]["tasks"].items():
        lines += [f"- {task}, split {seed}: left out ({reason})." for seed, reason in facts["skipped"].items()]
    lines.append(f"- {100 * late:.1f} % of the probes were best in the last epoch that they were given.")
    return lines


HEADER = """# Molecules: many teachers, one student

Made by `python -m experiments.molecules.run` (its README says what teachers, students and probes are). Ranks are over
the columns of the shared task files (1 = best) among the models of each table, with the scores of a student averaged
over its seeds first. Intervals are of the difference of average ranks, by drawing tasks; columns of one file (27 of
SIDER, 12 of Tox21) are not independent, so they are somewhat too narrow.

Cut against the paper: 20,000 molecules and 6 epochs (paper: 250,000 and 400, two millions and 200), GINE of 5 layers
x 128 (10 x 512), kernels with hidden layers of 256 (1,024), learning rate 1e-3 falling to 0 (1e-4 constant), one to
three seeds of training, seven teachers that are smaller and older than the paper's, MoleculeNet columns in place of
TDC's. Cut of the probe: it sees 50,000 items in training (200,000 for numbers) in at most 100 epochs, where the paper's
rule, min(100, 200 x 5,000 / items) epochs, comes to 1,000,000. Not cut: its hidden layer of 128, its learning rate, the
choice of the epoch by validation, random splits 70/10/20 and five seeds. Nothing is tuned for any row. The task files
are taken as they are: some molecules stand in them twice (64 rows of BBBP, 19 of ClinTox, 11 of ESOL), and may fall on
both sides of a split, the same for every model.

The vectors of the teacher gat have heavy tails: the variance that its last normalisation holds is about 30 times too
small for whole molecules. Probes standardise vectors and do not clip them, so one molecule far out can spoil a split's
R2.
"""


def setting(student: str, results: Path) -> Setting:
    rows = committed(EXPERIMENT, results)
    classes = tuple(name for name in SETS if name not in NUMBERS)
    return Setting(lambda row: points(task_scores(rows, row)), lambda row: ONE_RATE, parts={"AUROC": classes})


def measured(results: Path, first: str, second: str, student: str) -> Finding:
    """The difference of two average ranks over the columns of each file."""
    found, differences = paired_ranks(committed(EXPERIMENT, results), first, second)
    if not differences:
        return untested(f"no run of {first} or of {found}")
    return judge("rank", differences, "; ".join([*([found] if found != second else []), *grouped([ONE_RATE])]))
