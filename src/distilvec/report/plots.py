"""The look of all figures, and how they are saved and put on the page.

Drawn with matplotlib, without its global state. On the page figures are inline SVG whose inks are CSS variables, so
that they follow the page's light or dark colours; as files they have a white ground.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.report.blocks import Picture
from distilvec.report.data import clip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, LINE = "#1f2328", "#59636e", "#d1d9e0"
#: Okabe and Ito's colours, which people with any kind of colour vision tell apart; the markers differ too.
ROLE_COLOURS = {"teacher": INK, "untrained": "#9a9fa5", "free": "#d98200", "student": "#0072b2", "other": "#009e73"}
ROLE_MARKERS = {"teacher": "D", "untrained": "o", "free": "s", "student": "o", "other": "^"}
GROUP_COLOURS = ("#0072b2", "#d98200", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a800", "#59636e")
#: What the page replaces the inks by.
CSS_COLOURS = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    **{colour: f"var(--{role})" for role, colour in ROLE_COLOURS.items() if colour != INK},
}
_OPENING = re.compile(r"<svg[^>]*>")
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


def draw(pictures: Iterable[Picture]) -> dict[str, str]:
    """Name -> SVG document with a transparent ground."""
    drawn = {}
    with style():
        for picture in pictures:
            buffer = io.StringIO()
            picture.draw().savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
            drawn[picture.name] = buffer.getvalue()
    return drawn


def save_figures(drawn: Mapping[str, str], folder: Path) -> None:
    """Write what `draw` gave, each with a white ground."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in drawn.items():
        ground = _OPENING.sub(r'\g<0><rect width="100%" height="100%" fill="white"/>', text, count=1)
        (folder / f"{name}.svg").write_text(ground, encoding="utf-8")


def save_svg(figure: Figure, file: Path) -> None:
    """Write one figure, made inside `style()`, as SVG with a white ground."""
    figure.savefig(file, format="svg", facecolor="white", bbox_inches="tight", metadata=_NO_METADATA)


def inline(text: str, name: str) -> str:
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


def canvas(width: float, height: float) -> Figure:
    """An empty figure; sizes are in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def label(text: str, length: int) -> str:
    """A name in a figure: one line of at most `length` characters."""
    return clip(" ".join(text.split()), length)
