"""Differences of average ranks (`distilvec.report.ranks`) over tasks, as the many-teachers paper compares embedders.

The interval of a table's difference is a bootstrap over tasks. It takes them as independent, which columns of one file
are not, so it is somewhat too sure; `claims` takes the files as its unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

DRAWS = 10_000


def bootstrap(differences: npt.NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean of differences [tasks], over draws of tasks."""
    rows = np.random.default_rng(seed).integers(len(differences), size=(DRAWS, len(differences)))
    low, high = np.quantile(differences[rows].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)


def by_set(found: npt.NDArray[np.float64], tasks: Sequence[str]) -> npt.NDArray[np.float64]:
    """[models] average ranks in which every file counts the same, however many columns it has."""
    files = np.array([task.partition(" ")[0] for task in tasks])
    return np.asarray(np.mean([found[files == file].mean(axis=0) for file in sorted(set(files))], axis=0))


def terciles(values: Mapping[str, float]) -> list[list[str]]:
    """The tasks in three parts by their value, ascending; ties in the order of their names."""
    order = sorted(values, key=lambda task: (values[task], task))
    return [list(part) for part in np.array_split(np.array(order, dtype=object), 3)]


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
