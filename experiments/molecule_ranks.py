"""Average ranks over tasks, as the many-teachers paper compares embedders, and how sure they are.

Ranks are those of Demsar 2006 (1 = best, ties share), with Friedman's test and Nemenyi's critical difference; the
interval of a difference of two average ranks is a bootstrap over tasks. Both take tasks as independent, which columns
of one file are not, so both are somewhat too sure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import stats

Scores = Mapping[str, Mapping[str, float]]
"""Model -> task -> score, more is better."""

DRAWS = 10_000


def common_tasks(scores: Scores) -> list[str]:
    """Tasks that all models have."""
    return sorted(set.intersection(*(set(found) for found in scores.values()))) if scores else []


def ranks(scores: Scores, tasks: Sequence[str]) -> npt.NDArray[np.float64]:
    """[tasks, models], 1 = best."""
    table = np.array([[scores[model][task] for model in scores] for task in tasks], float)
    return np.asarray(stats.rankdata(-table.reshape(len(tasks), len(scores)), axis=1))


def friedman(found: npt.NDArray[np.float64]) -> float | None:
    """Probability of such ranks [tasks, models] if all models were alike; None below three models or two tasks."""
    if found.shape[1] < 3 or found.shape[0] < 2:
        return None
    return float(stats.friedmanchisquare(*found.T).pvalue)


def critical_difference(models: int, tasks: int) -> float:
    """Nemenyi's at 5 %: average ranks nearer to each other are not told apart (Demsar 2006)."""
    quantile = float(stats.studentized_range.ppf(0.95, models, math.inf)) / math.sqrt(2)
    return quantile * math.sqrt(models * (models + 1) / (6 * tasks))


def bootstrap(differences: npt.NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean of differences [tasks], over draws of tasks."""
    rows = np.random.default_rng(seed).integers(len(differences), size=(DRAWS, len(differences)))
    low, high = np.quantile(differences[rows].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)


def rank_difference(scores: Scores, a: str, b: str) -> tuple[float, tuple[float, float], int]:
    """How much better the average rank of a is than that of b among all these models, interval, number of tasks."""
    tasks, models = common_tasks(scores), list(scores)
    found = ranks(scores, tasks)
    differences = found[:, models.index(b)] - found[:, models.index(a)]
    return float(differences.mean()), bootstrap(differences), len(tasks)


def by_set(found: npt.NDArray[np.float64], tasks: Sequence[str]) -> npt.NDArray[np.float64]:
    """[models] average ranks in which every file counts the same, however many columns it has."""
    files = np.array([task.partition(" ")[0] for task in tasks])
    return np.asarray(np.mean([found[files == file].mean(axis=0) for file in sorted(set(files))], axis=0))


def terciles(values: Mapping[str, float]) -> list[list[str]]:
    """The tasks in three parts by their value, ascending; ties in the order of their names."""
    order = sorted(values, key=lambda task: (values[task], task))
    return [list(part) for part in np.array_split(np.array(order, dtype=object), 3)]


def picture(names: Sequence[str], average: npt.NDArray[np.float64], reach: float, file: Path) -> None:
    """The critical-difference picture: models on an axis of ranks, those that are not told apart joined by bars."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    order = np.argsort(average, kind="stable")
    given, labels, count = average[order], [names[i] for i in order], len(names)
    bars = _bars(given, reach)
    half = (count + 1) // 2
    low, high = math.floor(given[0]), max(math.ceil(given[-1]), math.floor(given[0]) + 1)
    depth = 0.4 * len(bars) + 0.6
    with pyplot.rc_context({"svg.hashsalt": "distilvec", "svg.fonttype": "none", "font.size": 8}):
        figure, axes = pyplot.subplots(figsize=(7, 0.24 * (half + depth) + 0.9))
        axes.set(xlim=(low, high), ylim=(-depth - half, 1.6), yticks=[])
        axes.spines[["left", "right", "bottom"]].set_visible(False)
        axes.xaxis.tick_top()
        for place, (rank, label) in enumerate(zip(given, labels, strict=True)):
            left = place < half
            height = -depth - (place if left else count - 1 - place)
            edge = low if left else high
            axes.plot([rank, rank, edge], [1.6, height, height], color="0.4", linewidth=0.8, clip_on=False)
            text = f"{label} ({rank:.2f}) " if left else f" ({rank:.2f}) {label}"
            axes.text(edge, height, text, ha="right" if left else "left", va="center")
        for number, (first, last) in enumerate(bars):
            height = 1.0 - 0.4 * (number + 1)
            axes.plot(given[[first, last]], [height, height], color="C0", linewidth=2.5, solid_capstyle="butt")
        axes.set_title(f"average rank, 1 = best; critical difference {reach:.2f}", fontsize=8)
        figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)


def training_losses(curves: Mapping[str, Sequence[Sequence[float]]], file: Path) -> None:
    """Loss over the steps, a line per model: (step, loss) each."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "distilvec", "svg.fonttype": "none", "font.size": 8}):
        figure, axes = pyplot.subplots(figsize=(6, 3))
        for model, curve in curves.items():
            steps, losses = np.asarray(curve).T
            axes.plot(steps, losses, linewidth=1.2, label=model)
        axes.set(xlabel="step", ylabel="training loss, nats per coordinate")
        axes.legend(frameon=False)
        figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)


def _bars(ascending: npt.NDArray[np.float64], reach: float) -> list[tuple[int, int]]:
    """First and last position of every longest run of at least two models within the critical difference."""
    found: list[tuple[int, int]] = []
    for first in range(len(ascending)):
        last = int(np.flatnonzero(ascending <= ascending[first] + reach)[-1])
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found
