"""Figures of the inside of models: maps over tokens, and the experts' vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from distilvec.report.record_parts import ExpertMap, TokenMaps, clip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Tokens that are named at the axes; more would not be read.
NAMED = 26


def token_maps_figure(found: TokenMaps, muted: str) -> Figure:
    """One panel per model; rows look at columns. Each panel has its own scale, as maps of other lengths differ."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.3 * len(found.maps), 3.9), layout="constrained")
    for number, (name, tokens, values) in enumerate(zip(found.names, found.tokens, found.maps, strict=True), start=1):
        axes = figure.add_subplot(1, len(found.maps), number)
        shown = np.asarray(values, dtype=float)
        low = min(0.0, float(shown.min(initial=0)))
        axes.pcolormesh(shown, cmap="cividis", vmin=low, vmax=max(float(shown.max(initial=0)), 1e-6))
        axes.set_aspect("equal")
        axes.invert_yaxis()
        axes.set_title(name)
        axes.tick_params(length=0, labelsize=6)
        places = np.arange(len(tokens)) + 0.5
        words = [clip(token.replace("Ġ", "").replace("▁", ""), 10) for token in tokens]
        if len(tokens) > NAMED:
            axes.set_xticks([])
            axes.set_yticks([])
        else:
            axes.set_xticks(places, words, rotation=90)
            axes.set_yticks(places, words)
        axes.spines[:].set_visible(False)
    figure.supxlabel(found.measure, color=muted, fontsize=9)
    return figure


def experts_figure(found: ExpertMap, colours: tuple[str, ...], line: str) -> Figure:
    """A point per text and expert; where the clouds lie apart, the experts say different things."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, points) in enumerate(zip(found.names, found.points, strict=True)):
        x, y = np.asarray(points, dtype=float).T
        marker = "osD^vP*X"[number % 8]
        axes.scatter(
            x, y, s=14, color=colours[number % len(colours)], marker=marker, alpha=0.75, linewidths=0, label=name
        )
    axes.axhline(0, color=line, linewidth=0.7, zorder=0)
    axes.axvline(0, color=line, linewidth=0.7, zorder=0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3)
    return figure
