"""What `distilvec geometry` leaves: numbers, a page of tables, pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from distilvec.errors import EnvironmentProblem
from distilvec.judging.geometry import MODES, Geometry, MixtureGeometry, Spread
from distilvec.report.plots import GROUP_COLOURS, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 60


def geometry_markdown(found: Geometry, name: str) -> str:
    """The tables: the space, then the mixtures."""
    space = found.space
    lines = [
        f"# Geometry of {name}",
        "",
        f"Over {found.items:,} texts, vectors of {found.width} dimensions.",
        "",
        "| | | |",
        "| --- | --- | --- |",
        f"| anisotropy | {space['mean_cosine']:.3f} | mean cosine of two texts; 1 = collapsed |",
        f"| effective rank | {space['effective_rank']:.1f} ({100 * space['rank_share']:.0f} % of the possible) | "
        "how many directions carry the differences |",
        f"| hubness | {space['hubness']:.2f} | skewness of how often a text is among others' nearest; 0 = even |",
    ]
    lines += [f"\n> **Alarm:** {alarm}" for alarm in space.get("alarms", [])]
    if found.mixtures:
        lines += ["", *_mixture_tables(found.mixtures)]
    return "\n".join(lines) + "\n"


def _mixture_tables(mixtures: list[MixtureGeometry]) -> list[str]:
    lines = [
        "## Active experts",
        "",
        "Medians over tokens, with the middle nine tenths. Norm ratio: the most probable expert's length over the "
        "second's. Mass: sum of the router weights of the active experts.",
        "",
        "| layer | tokens | norm ratio | angle, degrees | above 40 | mass | router entropy | largest load |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in mixtures:
        lines.append(
            f"| {_layer(each)} | {each.tokens:,} | {_spread(each.norm_ratio)} | {_spread(each.angle, 0)} | "
            f"{100 * each.wide:.0f} % | {_spread(each.mass)} | {each.entropy:.2f} | {100 * max(each.load):.0f} % |"
        )
    lines += [
        "",
        "## Length of the output",
        "",
        "Over the active experts' mean length; in brackets the angular factor, what cancelling directions leave of the "
        "weighted sum of lengths once the router's mass is taken out.",
        "",
        "| layer | " + " | ".join(MODES) + " |",
        "| --- |" + " --- |" * len(MODES),
    ]
    for each in mixtures:
        cells = [f"{each.output[mode].median:.2f} ({each.angular[mode].median:.2f})" for mode in MODES]
        lines.append(f"| {_layer(each)} | " + " | ".join(cells) + " |")
    return lines


def _layer(each: MixtureGeometry) -> str:
    return "all" if each.layer == 0 else str(each.layer)


def _spread(spread: Spread, digits: int = 2) -> str:
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f} to {spread.high:.{digits}f})"


def write_geometry(found: Geometry, name: str, folder: str | Path) -> Path:
    """Write `geometry.json`, `geometry.md` and, of mixtures, `figures/*.svg` and `.png`; returns the page.

    Raises:
        EnvironmentProblem: the folder cannot be written.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        text = geometry_markdown(found, name)
        if found.mixtures:
            (place / "figures").mkdir(exist_ok=True)
            with style():
                for title, figure in _figures(found.mixtures).items():
                    figure.savefig(place / "figures" / f"{title}.svg", facecolor="white")
                    figure.savefig(place / "figures" / f"{title}.png", dpi=144, facecolor="white")
                    text += f"\n![{title.replace('-', ' ')}](figures/{title}.svg)\n"
        (place / "geometry.json").write_text(json.dumps(found.to_dict(), indent=1) + "\n", encoding="utf-8")
        (place / "geometry.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(
            f"the folder cannot be written ({error.strerror or error})", where=str(place), remedy="Choose another one."
        ) from error
    return place / "geometry.md"


def _figures(mixtures: list[MixtureGeometry]) -> dict[str, Figure]:
    everything, layers = mixtures[0], mixtures[1:]
    return {
        "norm-ratios": _histograms(
            {"norm ratio": everything.samples["norm_ratio"]}, "length of the first over the second"
        ),
        "angles": _histograms({"angle": everything.samples["angle"]}, "degrees between the two active experts"),
        "output-lengths": _histograms(
            {mode: everything.samples[f"output:{mode}"] for mode in MODES if mode != "unit"},
            "length of the output over the experts' mean length",
        ),
        "router-load": _loads(layers),
    }


def _histograms(samples: dict[str, np.ndarray], label: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.2), layout="constrained")
    axes: Axes = figure.add_subplot()
    together = np.concatenate(list(samples.values()))
    low, high = np.percentile(together, [0.5, 99.5])
    edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)
    for number, (name, values) in enumerate(samples.items()):
        colour = GROUP_COLOURS[number % len(GROUP_COLOURS)]
        counts, _ = np.histogram(values, edges)
        axes.stairs(counts / max(len(values), 1), edges, color=colour, linewidth=1.5, label=name)
        axes.axvline(float(np.median(values)), color=colour, linewidth=0.9, linestyle=":")
    axes.set_xlabel(label)
    axes.set_ylabel("share of tokens")
    if len(samples) > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4)
    return figure


def _loads(layers: list[MixtureGeometry]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 0.9 + 0.42 * len(layers)), layout="constrained")
    axes = figure.add_subplot()
    values = np.array([each.load for each in layers])
    axes.pcolormesh(values, cmap="cividis", vmin=0, vmax=float(values.max()))
    for line, row in enumerate(values):
        for column, value in enumerate(row):
            ink = "#ffffff" if value < 0.6 * values.max() else "#000000"
            axes.text(column + 0.5, line + 0.5, f"{100 * value:.0f}", ha="center", va="center", color=ink, fontsize=8)
    axes.set_xticks(np.arange(values.shape[1]) + 0.5, [str(number) for number in range(1, values.shape[1] + 1)])
    axes.set_yticks(np.arange(len(layers)) + 0.5, [f"layer {each.layer}" for each in layers])
    axes.tick_params(length=0)
    axes.invert_yaxis()
    axes.set_xlabel("expert; share of the assignments in percent")
    axes.spines[:].set_visible(False)
    return figure
