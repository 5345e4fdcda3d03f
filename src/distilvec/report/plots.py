"""The figures of the report: loss terms, scores with intervals, both spaces, similarity of layers.

Drawn with matplotlib, without its global state. On the page they are inline SVG whose inks are CSS variables,
so that they follow the page's light or dark colours; as files they have a white ground.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from distilvec.alignment.drawing import DrawnText, alignment_figure
from distilvec.judging.scores import SEARCHES
from distilvec.report.inside_plots import experts_figure, token_maps_figure
from distilvec.report.record import Record
from distilvec.report.record_parts import AlignedText, LayerSimilarity, ModelRow, ScoreEntry, SpaceMap, clip
from distilvec.report.sentences import GROUP_NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, LINE = "#1f2328", "#59636e", "#d1d9e0"
#: Okabe and Ito's colours, which people with any kind of colour vision tell apart; the markers differ too.
FIGURES = ("scores", "training", "map", "layers", "alignment", "tokens", "gate", "experts")
ROLE_COLOURS = {"teacher": INK, "untrained": "#9a9fa5", "free": "#d98200", "student": "#0072b2", "other": "#009e73"}
ROLE_MARKERS = {"teacher": "D", "untrained": "o", "free": "s", "student": "o", "other": "^"}
GROUP_COLOURS = ("#0072b2", "#d98200", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a800", "#59636e")
#: What the page replaces the inks by.
CSS_COLOURS = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    ROLE_COLOURS["untrained"]: "var(--untrained)",
    ROLE_COLOURS["free"]: "var(--free)",
    ROLE_COLOURS["student"]: "var(--student)",
    ROLE_COLOURS["other"]: "var(--other)",
}
#: Terms about the gate that are not an expert's weight.
_NO_EXPERTS = ("entropy", "floor", "kl")
_OPENING = re.compile(r"<svg[^>]*>")
CURVE_POINTS = 400
PANELS = 36
TASKS = 60
LAYERS = 48
#: Characters of a model's name in a legend, and of all that stand beside each other in it.
NAME, LEGEND_WIDTH = 30, 84


def make_figures(record: Record) -> dict[str, Figure]:
    """Name of `FIGURES` -> figure, for the parts of the record that are there. Call inside `style()`."""
    figures: tuple[Figure | None, ...] = (
        scores_figure(record),
        training_figure(record),
        map_figure(record.spaces) if record.spaces and record.spaces.texts else None,
        layers_figure(record.layers) if record.layers and record.layers.values else None,
        alignment_figure(_drawn(record.alignment)) if record.alignment else None,
        token_maps_figure(record.token_maps, MUTED) if record.token_maps else None,
        gate_figure(record),
        experts_figure(record.experts, GROUP_COLOURS, LINE) if record.experts else None,
    )
    return {name: figure for name, figure in zip(FIGURES, figures, strict=True) if figure is not None}


def draw(record: Record) -> dict[str, str]:
    """Name -> SVG document with a transparent ground, for the parts of the record that are there."""
    with style():
        return {name: _svg(figure) for name, figure in make_figures(record).items()}


def save_figures(drawn: Mapping[str, str], folder: Path) -> list[Path]:
    """Write what `draw` gave, each with a white ground; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, text in drawn.items():
        ground = _OPENING.sub(r'\g<0><rect width="100%" height="100%" fill="white"/>', text, count=1)
        files.append(folder / f"{name}.svg")
        files[-1].write_text(ground, encoding="utf-8")
    return files


def save_svg(figure: Figure, file: Path) -> None:
    """Write one figure, made inside `style()`, as SVG with a white ground."""
    figure.savefig(file, format="svg", facecolor="white", bbox_inches="tight", metadata=_NO_METADATA)


def inline_figures(drawn: Mapping[str, str]) -> dict[str, str]:
    """Name -> SVG element for the page. The map is left out: there it is drawn by the page's script."""
    return {name: _inline(text, name) for name, text in drawn.items() if name != "map"}


@contextmanager
def style() -> Iterator[None]:
    """The look of all figures; names of tasks are never read as formulas."""
    import matplotlib

    look: Any = {
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "distilvec",
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "text.color": INK,
        "axes.labelcolor": MUTED,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.edgecolor": LINE,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "grid.color": LINE,
        "grid.linewidth": 0.7,
        "legend.frameon": False,
    }
    with matplotlib.rc_context(look), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def scores_figure(record: Record) -> Figure | None:
    """Every task's scores of all models as dots with intervals; retrieval stands apart."""
    tasks = record.tasks()[:TASKS]
    if not tasks:
        return None
    models = record.models
    step = 0.16 * len(models) + 0.34
    lines = math.ceil(len(models) / _beside(models))
    figure = _figure(9.2, 0.8 + 0.2 * lines + step * 0.62 * len(tasks))
    axes = figure.add_subplot()
    for position, row in enumerate(models):
        offset = (position - (len(models) - 1) / 2) * 0.62 / max(len(models), 1)
        _dots(axes, row, tasks, offset)
    axes.set_yticks(range(len(tasks)), [_label(task, 34) for task in tasks])
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_ylim(len(tasks) - 0.5, -0.5)
    axes.grid(axis="x")
    axes.set_xlabel("score × 100, with 95 % interval over the test items")
    known = [next(row.scores[task] for row in models if task in row.scores) for task in tasks]
    names = [_section(score) for score in known]
    for line, name in enumerate(names):
        if line == 0 or name != names[line - 1]:
            _divide(axes, line - 0.5, name)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=_beside(models), handletextpad=0.3, columnspacing=1.4)
    return figure


def _beside(models: Sequence[ModelRow]) -> int:
    """How many names of a legend stand beside each other without being wider than a figure."""
    widths = [len(clip(row.name, NAME)) + 4 for row in models]  # with the mark and the gap
    return len(models) if sum(widths) <= LEGEND_WIDTH else max(1, LEGEND_WIDTH // max(widths))


def training_figure(record: Record) -> Figure | None:
    """One panel per loss term, and one per held-out measure."""
    curves = panel_curves(record)
    if not curves:
        return None
    names = list(curves)[:PANELS]
    columns = min(3, len(names))
    lines = math.ceil(len(names) / columns)
    figure = _figure(3.1 * columns, 2.05 * lines + 0.1)
    for position, name in enumerate(names):
        axes = figure.add_subplot(lines, columns, position + 1)
        steps, values = thinned(*curves[name])
        held = name.startswith("held-out")
        colour = ROLE_COLOURS["free"] if held else ROLE_COLOURS["student"]
        if len(values) > 40:
            axes.plot(steps, values, color=colour, alpha=0.3, linewidth=0.8)
            axes.plot(steps, smoothed(values), color=colour, linewidth=1.7)
        else:
            axes.plot(steps, values, color=colour, linewidth=1.7, marker="o", markersize=3)
        axes.set_title(_label(name.removeprefix("term "), 34), color=INK)
        axes.grid(axis="y")
        axes.locator_params(axis="both", nbins=5)
        if position >= len(names) - columns:
            axes.set_xlabel("step")
    return figure


def map_figure(spaces: SpaceMap) -> Figure:
    """Both spaces side by side; a text has the same colour in both."""
    figure = _figure(9.2, 4.4)
    colours = point_colours(spaces)
    for position, (name, points) in enumerate((("teacher", spaces.teacher), ("student", spaces.student))):
        axes = figure.add_subplot(1, 2, position + 1)
        where = np.asarray(points)
        axes.scatter(where[:, 0], where[:, 1], c=colours, s=14, edgecolors="white", linewidths=0.3)
        axes.set_title(f"{name}'s space")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_aspect("equal", adjustable="datalim")
    return figure


def layers_figure(layers: LayerSimilarity) -> Figure:
    """Heat map; a darker cell is more alike, numbers where there is room."""
    values = np.asarray(layers.values, dtype=float)[:LAYERS, :LAYERS]
    lines, columns = values.shape
    figure = _figure(min(9.2, 2.2 + 0.55 * columns), min(9.0, 1.1 + 0.42 * lines))
    axes = figure.add_subplot()
    mesh = axes.pcolormesh(values, cmap="cividis", vmin=0, vmax=max(1.0, float(np.nanmax(values, initial=0))))
    if columns <= 16:
        for i in range(lines):
            for j in range(columns):
                ink = "#ffffff" if values[i, j] < 0.6 else "#000000"
                axes.text(j + 0.5, i + 0.5, f"{values[i, j]:.2f}", ha="center", va="center", color=ink, fontsize=8)
    axes.set_xticks(np.arange(columns) + 0.5, [_label(name, 14) for name in layers.teacher_layers[:columns]])
    axes.set_yticks(np.arange(lines) + 0.5, [_label(name, 20) for name in layers.student_layers[:lines]])
    axes.tick_params(length=0)
    axes.invert_yaxis()
    axes.set_xlabel(_label(layers.columns, 60))
    axes.set_ylabel("student's layer")
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(mesh, ax=axes, pad=0.02)
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.set_label(layers.measure, color=MUTED)
    return figure


def log_curves(log: list[dict[str, Any]]) -> dict[str, tuple[list[float], list[float]]]:
    """Name -> (steps, values): the loss, its terms, then held-out measures; bookkeeping is left out."""
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for row in log:
        step = row.get("step")
        for key, value in row.items():
            name = _curve_name(key)
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if name and number and isinstance(step, int | float):
                steps, values = curves.setdefault(name, ([], []))
                steps.append(float(step))
                values.append(float(value))
    order = {"loss": 0, "term": 1, "held-out": 2}
    return dict(sorted(curves.items(), key=lambda item: order.get(item[0].split(" ")[0], 1)))


def point_colours(spaces: SpaceMap) -> list[str]:
    """A colour per text: of its group where there are up to eight, else of its place in the teacher's space."""
    import matplotlib
    from matplotlib.colors import to_hex

    names = list(dict.fromkeys(spaces.groups or []))
    if spaces.groups and len(names) <= len(GROUP_COLOURS):
        colour = dict(zip(names, GROUP_COLOURS, strict=False))
        return [colour[name] for name in spaces.groups]
    order = np.argsort(np.argsort([x for x, _ in spaces.teacher], kind="stable"))
    ramp = matplotlib.colormaps["plasma"]
    return [to_hex(ramp(0.05 + 0.85 * place / max(len(order) - 1, 1))) for place in order]


def panel_curves(record: Record) -> dict[str, tuple[list[float], list[float]]]:
    """What has a panel of its own: all of `log_curves` but the gate's weights, which share a figure."""
    return {name: curve for name, curve in log_curves(record.log).items() if _expert(name) is None}


def _expert(curve: str) -> str | None:
    """The expert whose weight in the gate this is; None for other curves."""
    # With Matryoshka each prefix logs the one gate.
    expert = re.sub(r"@\d+$", "", curve.removeprefix("term gate "))
    return expert if curve.startswith("term gate ") and expert not in _NO_EXPERTS else None


def gate_figure(record: Record) -> Figure | None:
    """Mean weight that the gate gives each expert, over training; None where the method has no gate."""
    curves = {expert: curve for name, curve in log_curves(record.log).items() if (expert := _expert(name)) is not None}
    if not curves:
        return None
    figure = _figure(6.4, 2.6 + 0.2 * math.ceil(len(curves) / 3))
    axes = figure.add_subplot()
    for number, (name, (steps, values)) in enumerate(curves.items()):
        at, shown = thinned(steps, values)
        axes.plot(at, smoothed(shown), color=GROUP_COLOURS[number % len(GROUP_COLOURS)], linewidth=1.7, label=name)
    axes.set_ylim(0, 1)
    axes.set_xlabel("step")
    axes.set_ylabel("weight of the gate")
    axes.grid(axis="y")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=min(len(curves), 3))
    return figure


def _drawn(aligned: AlignedText) -> DrawnText:
    return DrawnText(
        aligned.mode, aligned.student, aligned.teacher, aligned.path, aligned.pairs, frozenset(aligned.equal)
    )


def thinned(steps: list[float], values: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """At most `CURVE_POINTS` points: means of runs of neighbours."""
    count = math.ceil(len(steps) / CURVE_POINTS)
    if count == 1:
        return np.asarray(steps), np.asarray(values)
    cuts = range(0, len(steps), count)
    return (
        np.asarray([np.mean(steps[cut : cut + count]) for cut in cuts]),
        np.asarray([np.mean(values[cut : cut + count]) for cut in cuts]),
    )


def smoothed(values: np.ndarray) -> np.ndarray:
    """Centred running mean over a twentieth of the curve."""
    reach = len(values) // 40
    return np.asarray([values[max(0, i - reach) : i + reach + 1].mean() for i in range(len(values))])


_BOOKKEEPING = re.compile(
    r"step|epoch|learning_rate.*|grad_norm|total_flos|train_.*|skipped_steps|memory.*|num_.*|.*(runtime|_per_second)"
)
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def _curve_name(key: str) -> str | None:
    if _BOOKKEEPING.fullmatch(key):
        return None
    if key in ("loss", "total"):
        return "loss"
    if key.startswith(("agreement_", "eval_", "held_out")):
        return "held-out " + re.sub(r"^(eval_|held_out_)+", "", key).replace("_", " ")
    return "term " + key.removeprefix("term/").removeprefix("loss/").replace("_", " ")


def _dots(axes: Axes, row: ModelRow, tasks: list[str], offset: float) -> None:
    scores = [(place, row.scores[task]) for place, task in enumerate(tasks) if task in row.scores]
    scores = [(place, score) for place, score in scores if math.isfinite(score.value)]
    heights = [place + offset for place, _ in scores]
    colour = ROLE_COLOURS[row.role]
    for height, (_, score) in zip(heights, scores, strict=True):
        if score.low is not None and score.high is not None:
            axes.plot([100 * score.low, 100 * score.high], [height, height], color=colour, linewidth=1.6)
    axes.plot(
        [100 * score.value for _, score in scores],
        heights,
        linestyle="none",
        color=colour,
        marker=ROLE_MARKERS[row.role],
        markersize=5.5,
        label=_label(row.name, NAME),
    )


def _section(score: ScoreEntry) -> str:
    return GROUP_NAMES["retrieval"] if score.kind in SEARCHES else GROUP_NAMES.get(score.domain or "", "")


def _divide(axes: Axes, height: float, name: str) -> None:
    """A line above a section of tasks, with the section's name beside it."""
    if height > 0:
        axes.axhline(height, color=MUTED, linewidth=0.8)
    place: Any = {"xycoords": ("axes fraction", "data"), "xytext": (6, -1), "textcoords": "offset points"}
    axes.annotate(name, (1, height), ha="left", va="top", fontsize=8, color=MUTED, **place)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
    return buffer.getvalue()


def _inline(text: str, name: str) -> str:
    """The SVG element alone, without size (the page decides), with CSS variables for inks."""
    opening = _OPENING.search(text)
    assert opening is not None
    box = re.search(r'viewBox="0 0 ([\d.]+) [^"]*"', opening.group())
    assert box is not None
    width = float(box.group(1)) * 96 / 72  # matplotlib's unit is the point
    head = f'<svg {box.group()} style="max-width: {width:.0f}px" role="img" aria-label="{name}">'
    text = head + re.sub(r"<metadata>.*?</metadata>", "", text[opening.end() :], flags=re.DOTALL)
    for colour, variable in CSS_COLOURS.items():
        text = text.replace(colour, variable)
    # Several drawings share a page: their ids must not meet.
    text = re.sub(r'\bid="', f'id="{name}-', text)
    return re.sub(r'(url\(#|xlink:href="#)', rf"\g<1>{name}-", text).replace("xlink:href", "href")


def _label(text: str, length: int) -> str:
    return clip(" ".join(text.split()), length)
