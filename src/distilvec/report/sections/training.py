"""The loss, its terms, held-out measures and the gate over the steps of training."""

from __future__ import annotations

import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from distilvec.report.plots import GROUP_COLOURS, INK, ROLE_COLOURS, canvas, label
from distilvec.report.sections.base import Block, Data, Heading, Outcome, Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = dict[str, tuple[list[float], list[float]]]
#: Terms about the gate that are not an expert's weight.
_NO_EXPERTS = ("entropy", "floor", "kl")
CURVE_POINTS = 400
PANELS = 36


class Training(Data):
    """Every logged entry: {step, name: value, ...}."""

    log: list[dict[str, Any]]

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        log = [{k: v for k, v in entry.items() if isinstance(v, int | float)} for entry in outcome.fitted.log]
        return cls(log=log) if log else None

    def blocks(self) -> list[Block]:
        panels, gates = log_curves(self.log)
        found: list[Block] = []
        if panels:
            caption = "Every term of the loss before its weight; the strong line is a running mean."
            if any(name.startswith("held-out") for name in panels):
                caption += " Orange: measured on held-out items, which are not trained on."
            if len(panels) > PANELS:
                caption += f" {len(panels) - PANELS:,} more are in run.jsonl."
            found.append(Picture("training", caption, partial(training_figure, panels)))
        if gates:
            caption = "The gate's weights, as means over the texts of a batch."
            found += [Heading("Which experts the gate uses"), Picture("gate", caption, partial(gate_figure, gates))]
        return found


def log_curves(log: list[dict[str, Any]]) -> tuple[Curves, Curves]:
    """Name -> (steps, values): the loss, its terms, then held-out measures; and expert -> its weight in the gate."""
    panels: Curves = {}
    gates: Curves = {}
    for row in log:
        step = row.get("step")
        for key, value in row.items():
            name, number = _curve_name(key), isinstance(value, int | float) and not isinstance(value, bool)
            if name and number and math.isfinite(value) and isinstance(step, int | float):
                # With Matryoshka each prefix logs the one gate.
                expert = re.sub(r"@\d+$", "", name.removeprefix("term gate "))
                is_gate = name.startswith("term gate ") and expert not in _NO_EXPERTS
                steps, values = (gates if is_gate else panels).setdefault(expert if is_gate else name, ([], []))
                steps.append(float(step))
                values.append(float(value))
    order = {"loss": 0, "term": 1, "held-out": 2}
    return dict(sorted(panels.items(), key=lambda item: order[item[0].split(" ")[0]])), gates


def _curve_name(key: str) -> str | None:
    for start, word in (("term/", "term"), ("eval_", "held-out")):
        if key.startswith(start):
            return f"{word} {key.removeprefix(start).replace('_', ' ')}"
    return "loss" if key == "loss" else None


def training_figure(panels: Curves) -> Figure:
    names = list(panels)[:PANELS]
    columns = min(3, len(names))
    lines = math.ceil(len(names) / columns)
    figure = canvas(3.1 * columns, 2.05 * lines + 0.1)
    for position, name in enumerate(names):
        axes = figure.add_subplot(lines, columns, position + 1)
        steps, values = thinned(*panels[name])
        held = name.startswith("held-out")
        colour = ROLE_COLOURS["free"] if held else ROLE_COLOURS["student"]
        if len(values) > 40:
            axes.plot(steps, values, color=colour, alpha=0.3, linewidth=0.8)
            axes.plot(steps, smoothed(values), color=colour, linewidth=1.7)
        else:
            axes.plot(steps, values, color=colour, linewidth=1.7, marker="o", markersize=3)
        axes.set_title(label(name.removeprefix("term "), 34), color=INK)
        axes.grid(axis="y")
        axes.locator_params(axis="both", nbins=5)
        if position >= len(names) - columns:
            axes.set_xlabel("step")
    return figure


def gate_figure(gates: Curves) -> Figure:
    figure = canvas(6.4, 2.6 + 0.2 * math.ceil(len(gates) / 3))
    axes = figure.add_subplot()
    for number, (name, (steps, values)) in enumerate(gates.items()):
        at, shown = thinned(steps, values)
        axes.plot(at, smoothed(shown), color=GROUP_COLOURS[number % len(GROUP_COLOURS)], linewidth=1.7, label=name)
    axes.set_ylim(0, 1)
    axes.set_xlabel("step")
    axes.set_ylabel("weight of the gate")
    axes.grid(axis="y")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=min(len(gates), 3))
    return figure


def thinned(steps: list[float], values: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """At most `CURVE_POINTS` points: means of runs of neighbours."""
    count = min(len(steps), CURVE_POINTS)
    at, shown = ([run.mean() for run in np.array_split(np.asarray(column), count)] for column in (steps, values))
    return np.asarray(at), np.asarray(shown)


def smoothed(values: np.ndarray) -> np.ndarray:
    """Centred running mean over a twentieth of the curve."""
    reach = len(values) // 40
    return np.asarray([values[max(0, i - reach) : i + reach + 1].mean() for i in range(len(values))])
