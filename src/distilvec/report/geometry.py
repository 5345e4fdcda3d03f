"""The output of `distilvec geometry`: numbers, a page of tables, pictures."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from distilvec.files import temporary, writing
from distilvec.folders import check, publish, read
from distilvec.judging.geometry import MODES, Geometry, MixtureGeometry, Spread
from distilvec.report.blocks import Chapter, Text, Warnings, facts, table
from distilvec.report.grid import escape_markdown
from distilvec.report.plots import GROUP_COLOURS, INK, LINE, MUTED, canvas, style
from distilvec.report.render.markdown import blocks_markdown, chapters_markdown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILES = ("geometry.md", "geometry.json")
BINS = 40
_COLUMNS = 4
#: Samples -> what the legend calls them. What unit gives has a length on another scale.
_LENGTHS = {"output:linear": "linear", "output:sba": "sba, norm_free, nlerp"}


def geometry_markdown(found: Geometry, name: str) -> str:
    space = found.space
    rank = f"{space['effective_rank']:.1f} ({100 * space['rank_share']:.0f} % of the possible)"
    numbers = facts(
        ("anisotropy", f"{space['mean_cosine']:.3f}", "mean cosine of two texts; 1 = collapsed"),
        ("effective rank", rank, "how many directions carry the differences"),
        ("hubness", f"{space['hubness']:.2f}", "skewness of how often a text is among others' nearest; 0 = even"),
    )
    parts = [
        f"# Geometry of {escape_markdown(name)}",
        f"Over {found.items:,} texts, vectors of {found.width} dimensions.",
        *blocks_markdown([numbers, Warnings("Alarm", space.get("alarms", []))]),
        *chapters_markdown(_mixtures(found.mixtures) if found.mixtures else [], {}),
    ]
    return "\n\n".join(parts) + "\n"


def _mixtures(mixtures: list[MixtureGeometry]) -> list[Chapter]:
    active, output = [], []
    for each in mixtures:
        load = f"{100 * max(each.load):.0f} %" if each.load else ""
        wide = f"{100 * each.wide:.0f} %"
        cells = [_layer(each), f"{each.tokens:,}", _spread(each.norm_ratio), _spread(each.angle, 0), wide]
        active.append([*cells, _spread(each.mass), f"{each.entropy:.2f}", load])
        lengths = [f"{each.output[mode].median:.2f} ({each.angular[mode].median:.2f})" for mode in MODES]
        output.append([_layer(each), *lengths])
    header = ["tokens", "norm ratio", "angle, degrees", "above 40", "mass", "router entropy", "largest load"]
    about_active = (
        "Medians over tokens, with the middle nine tenths. Norm ratio: the most probable expert's length over the "
        "second's. Mass: sum of the router weights of the active experts. Load is the largest share of a layer's "
        "assignments that one expert has."
    )
    about_output = (
        "Over the active experts' mean length; in brackets the angular factor, what cancelling directions leave of the "
        "weighted sum of lengths once the router's mass is taken out."
    )
    return [
        Chapter("active", "Active experts", [Text(about_active), table(["layer", *header], active)]),
        Chapter("length", "Length of the output", [Text(about_output), table(["layer", *MODES], output)]),
    ]


def _layer(each: MixtureGeometry) -> str:
    return "all" if each.layer == 0 else str(each.layer)


def _spread(spread: Spread, digits: int = 2) -> str:
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f} to {spread.high:.{digits}f})"


def check_place(folder: Path) -> None:
    """Refuse to write if files that are not ours have the names of what `write_geometry` writes (`folders.check`)."""
    again = "geometry" in read(folder).get("files", {})  # in its own figures, files that are not ours are no hindrance
    check(folder, "geometry", FILES if again else (*FILES, "figures"))


def write_geometry(found: Geometry, name: str, folder: str | Path) -> Path:
    """Write `geometry.json`, `geometry.md` and, of mixtures, `figures/*.svg` and `.png`; returns the page.

    Raises:
        DistilvecError: files of these names are not distilvec's.
        EnvironmentProblem: the folder cannot be written.
    """
    place = Path(folder)
    check_place(place)
    with writing("folder", place):
        place.mkdir(parents=True, exist_ok=True)
        with temporary(place) as made:
            made.mkdir()
            text = geometry_markdown(found, name)
            if found.mixtures:
                (made / "figures").mkdir()
            with style():
                for title, figure in mixture_figures(found.mixtures).items() if found.mixtures else ():
                    figure.savefig(made / "figures" / f"{title}.svg", facecolor="white")
                    figure.savefig(made / "figures" / f"{title}.png", dpi=144, facecolor="white")
                    text += f"\n![{title.replace('-', ' ')}](figures/{title}.svg)\n"
            (made / FILES[0]).write_text(text, encoding="utf-8")
            (made / FILES[1]).write_text(json.dumps(found.to_dict(), indent=1) + "\n", encoding="utf-8")
            publish(made, place, "geometry")
    return place / FILES[0]


# pictures: a panel for all layers together, and one for each


def mixture_figures(mixtures: list[MixtureGeometry]) -> dict[str, Figure]:
    """Name -> figure, of all mixtures together (the first) and each of them. Call inside `plots.style()`."""
    return {
        "norm-ratios": _histograms(
            mixtures, {"norm_ratio": ""}, "length of the most probable expert's output over the second's"
        ),
        "angles": _histograms(mixtures, {"angle": ""}, "degrees between the two most probable experts", digits=0),
        "output-lengths": _histograms(mixtures, _LENGTHS, "length of the output over the experts' mean length"),
        "mass-and-angle": _factors(mixtures),
        "router-load": _loads(mixtures[1:]),
    }


def layer_name(each: MixtureGeometry) -> str:
    return "all layers" if each.layer == 0 else f"layer {each.layer}"


def _histograms(mixtures: list[MixtureGeometry], wanted: dict[str, str], label: str, digits: int = 2) -> Figure:
    """Small multiples with one scale along, and each its own height: a panel's area is all its tokens."""
    columns = min(_COLUMNS, len(mixtures))
    lines = math.ceil(len(mixtures) / columns)
    figure = canvas(2.3 * columns, 1.6 * lines + 0.5)
    together = np.concatenate([mixtures[0].samples[name] for name in wanted])
    low, high = np.percentile(together, [0.5, 99.5])
    edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)
    for position, each in enumerate(mixtures):
        axes: Axes = figure.add_subplot(lines, columns, position + 1)
        for number, name in enumerate(wanted):
            values, colour = each.samples[name], GROUP_COLOURS[number]
            # What is beyond the edges is in the last bins, so that a layer apart from the others is not left out.
            counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
            axes.stairs(counts, edges, color=colour, fill=len(wanted) == 1, linewidth=1.4)
            axes.axvline(float(np.median(values)), color=INK if len(wanted) == 1 else colour, linestyle=":")
        medians = " and ".join(f"{np.median(each.samples[name]):.{digits}f}" for name in wanted)
        axes.set_title(f"{layer_name(each)}: {medians}", color=INK, fontsize=9)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.locator_params(axis="x", nbins=5)
    if len(wanted) > 1:
        _legend(figure, list(wanted.values()))
    figure.supxlabel(f"{label}; median in the title", fontsize=9)
    return figure


def _factors(mixtures: list[MixtureGeometry]) -> Figure:
    """The router's mass, which every aggregation loses, the angular factor, and what both leave, on one scale."""
    figure = canvas(7.4, 1.0 + 0.34 * len(mixtures))
    modes = dict(zip(("linear", "sba"), GROUP_COLOURS, strict=False))
    columns: list[tuple[str, dict[str, list[Spread]]]] = [
        ("router's mass", {MUTED: [each.mass for each in mixtures]}),
        ("angular factor", {modes[mode]: [each.angular[mode] for each in mixtures] for mode in modes}),
        ("both: length of the output", {modes[mode]: [each.output[mode] for each in mixtures] for mode in modes}),
    ]
    first: Axes | None = None
    for position, (title, series) in enumerate(columns):
        axes: Axes = figure.add_subplot(1, len(columns), position + 1, sharex=first, sharey=first)
        for number, (colour, spreads) in enumerate(series.items()):
            heights = np.arange(len(mixtures)) + (number - (len(series) - 1) / 2) * 0.3
            axes.hlines(heights, [s.low for s in spreads], [s.high for s in spreads], color=colour, linewidth=1.6)
            medians = [s.median for s in spreads]
            axes.plot(medians, heights, linestyle="none", color=colour, marker="os"[number], markersize=4.5)
        axes.axvline(1, color=LINE, linewidth=0.9, zorder=0)
        axes.set_title(title, color=INK)
        axes.grid(axis="x")
        axes.tick_params(axis="y", length=0, labelcolor=INK, labelleft=first is None)
        first = first or axes
    assert first is not None
    first.set_yticks(range(len(mixtures)), [layer_name(each) for each in mixtures])
    first.set_ylim(len(mixtures) - 0.5, -0.5)
    first.set_xlim(left=0)
    _legend(figure, list(modes))
    figure.supxlabel("1 = nothing is lost; medians over tokens, with the middle nine tenths", fontsize=9)
    return figure


def _legend(figure: Figure, names: list[str]) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=colour, linewidth=1.6) for colour in GROUP_COLOURS[: len(names)]]
    figure.legend(lines, names, loc="outside upper left", ncols=len(names))


def _loads(layers: list[MixtureGeometry]) -> Figure:
    figure = canvas(5.6, 0.9 + 0.42 * len(layers))
    axes = figure.add_subplot()
    values = np.array([each.load for each in layers])
    axes.pcolormesh(values, cmap="cividis", vmin=0, vmax=float(values.max()))
    for line, row in enumerate(values):
        for column, value in enumerate(row):
            ink = "#ffffff" if value < 0.6 * values.max() else "#000000"
            axes.text(column + 0.5, line + 0.5, f"{100 * value:.0f}", ha="center", va="center", color=ink, fontsize=8)
    axes.set_xticks(np.arange(values.shape[1]) + 0.5, [str(number) for number in range(1, values.shape[1] + 1)])
    axes.set_yticks(np.arange(len(layers)) + 0.5, [layer_name(each) for each in layers])
    axes.tick_params(length=0)
    axes.invert_yaxis()
    axes.set_xlabel("expert; share of the layer's assignments in percent")
    axes.spines[:].set_visible(False)
    return figure
