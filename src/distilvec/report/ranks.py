"""Average ranks of models over tasks, and how far apart these have to be (Demsar 2006).

Scores of different tasks have different spreads, so that one task can decide an average; ranks count each task the
same. They take tasks as independent: columns of one file are not, and are told apart a little too surely.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from distilvec.report.plots import GROUP_COLOURS, INK, MUTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scores = Mapping[str, Mapping[str, float]]
"""Model -> task -> score, more is better."""

#: Below these an average rank says little, and the critical difference, made for many tasks, nothing.
LEAST_MODELS, LEAST_TASKS = 3, 5


@dataclass(frozen=True)
class AverageRanks:
    """Models by their average rank over tasks.

    Attributes:
        average: model -> average rank, 1 = best.
        chance: probability of ranks like these if all models were alike (Friedman's test).
        critical: average ranks nearer to each other are not told apart at 5 % (Nemenyi's critical difference).
    """

    average: dict[str, float]
    tasks: int
    chance: float
    critical: float

    def statement(self) -> str:
        """A sentence for the table's notes."""
        return (
            f"Average ranks are over {self.tasks} tasks, 1 = best. If all rows were alike, such ranks had a "
            f"probability of {self.chance:.2g} (Friedman). Rows less than {self.critical:.2f} apart do not differ "
            "significantly (Nemenyi, 5 %)."
        )


def common_tasks(scores: Scores) -> list[str]:
    """Tasks on which all models have a score that is a number."""
    if not scores:
        return []
    shared = set.intersection(*(set(tasks) for tasks in scores.values()))
    return sorted(task for task in shared if all(math.isfinite(scores[model][task]) for model in scores))


def ranks(scores: Scores, tasks: Sequence[str]) -> npt.NDArray[np.float64]:
    """[tasks, models], 1 = best; equals share the mean of their places."""
    from scipy import stats

    table = np.array([[scores[model][task] for model in scores] for task in tasks], float)
    return np.asarray(stats.rankdata(-table.reshape(len(tasks), len(scores)), axis=1))


def friedman(found: npt.NDArray[np.float64]) -> float:
    """Probability of such ranks [tasks, models], of at least three models, if all were alike."""
    from scipy import stats

    if not np.ptp(found):
        return 1.0  # all ranks are shared, where the statistic is 0 / 0
    return float(stats.friedmanchisquare(*found.T).pvalue)


def critical_difference(models: int, tasks: int) -> float:
    """Nemenyi's at 5 %: average ranks nearer to each other are not told apart (Demsar 2006, section 3.2.2)."""
    from scipy import stats

    quantile = float(stats.studentized_range.ppf(0.95, models, math.inf)) / math.sqrt(2)
    return quantile * math.sqrt(models * (models + 1) / (6 * tasks))


def make_ranking(scores: Scores) -> AverageRanks | None:
    """Over the tasks that all models have; None with fewer than three models or five tasks."""
    tasks = common_tasks(scores)
    if len(scores) < LEAST_MODELS or len(tasks) < LEAST_TASKS:
        return None
    ranked = ranks(scores, tasks)
    average = dict(zip(scores, map(float, ranked.mean(axis=0)), strict=True))
    return AverageRanks(average, len(tasks), friedman(ranked), critical_difference(len(scores), len(tasks)))


def ranks_figure(ranking: AverageRanks) -> Figure:
    """The critical-difference picture: models on an axis of ranks, those that are not told apart joined by bars.

    Call inside `plots.style()`.
    """
    from matplotlib.figure import Figure

    names = sorted(ranking.average, key=ranking.average.__getitem__)
    given = np.array([ranking.average[name] for name in names])
    bars, half = _bars(given, ranking.critical), (len(names) + 1) // 2
    low, high = math.floor(given[0]), max(math.ceil(given[-1]), math.floor(given[0]) + 1)
    depth = 0.4 * len(bars) + 0.6
    figure = Figure(figsize=(7, 0.24 * (half + depth) + 0.9))
    axes = figure.add_subplot()
    axes.set(xlim=(low, high), ylim=(-depth - half, 1.6), yticks=[])
    axes.spines[["left", "right", "bottom"]].set_visible(False)
    axes.spines["top"].set_visible(True)
    axes.xaxis.tick_top()
    for place, (rank, name) in enumerate(zip(given, names, strict=True)):
        left = place < half
        height = -depth - (place if left else len(names) - 1 - place)
        edge = low if left else high
        axes.plot([rank, rank, edge], [1.6, height, height], color=MUTED, linewidth=0.8, clip_on=False)
        text = f"{name} ({rank:.2f}) " if left else f" ({rank:.2f}) {name}"
        axes.text(edge, height, text, ha="right" if left else "left", va="center", color=INK)
    for number, (first, last) in enumerate(bars):
        height = 0.6 - 0.4 * number
        axes.plot(given[[first, last]], [height, height], color=GROUP_COLOURS[0], linewidth=2.5, solid_capstyle="butt")
    axes.set_title(f"average rank, 1 = best; critical difference {ranking.critical:.2f}", loc="center", color=MUTED)
    return figure


def _bars(ascending: npt.NDArray[np.float64], reach: float) -> list[tuple[int, int]]:
    """First and last position of every longest run of at least two models within the critical difference."""
    bars: list[tuple[int, int]] = []
    for first in range(len(ascending)):
        last = int(np.flatnonzero(ascending <= ascending[first] + reach)[-1])
        if last > first and (not bars or last > bars[-1][1]):
            bars.append((first, last))
    return bars
