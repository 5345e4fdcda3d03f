"""The blocks that a report is made of. `render/` turns them into a page, Markdown and terminal output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from distilvec.report.grid import Cell, Grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Heading(NamedTuple):
    """A heading inside a chapter."""

    text: str


class Text(NamedTuple):
    """A paragraph. `kind`: "verdict", "lead" below a heading, "small" for a remark, or ""."""

    text: str
    kind: str = ""


class Table(NamedTuple):
    """A grid below its title; the grid's notes stand below it.

    Attributes:
        kind: "wide", "", "texts" if cells are sentences ("texts hardest": with a share in the second), or "facts".
        roles: roles of the rows' models, for their colours.
        folded: the line that opens the table on the page.
        brief: whether the terminal shows it too.
    """

    grid: Grid
    title: str = ""
    kind: str = "wide"
    roles: Sequence[str] = ()
    folded: str = ""
    brief: bool = False


class Bullets(NamedTuple):
    """A list. `tones`: "better", "worse", "open" or "" for each item; `brief`: whether the terminal shows it too."""

    items: Sequence[str]
    tones: Sequence[str] = ()
    brief: bool = False


class Warnings(NamedTuple):
    """Framed sentences. `name` is what one of them is called, as "Alarm"."""

    name: str
    items: Sequence[str]


class Tiles(NamedTuple):
    """Large numbers: (name, value, remark) each. The text above says the first `said`, which only the page repeats."""

    tiles: Sequence[tuple[str, str, str]]
    said: int = 0


class Picture(NamedTuple):
    """A figure, saved as `figures/NAME.svg`. `draw` makes it; renderers call it with the report's style set."""

    name: str
    caption: str
    draw: Callable[[], Figure]


class Map(NamedTuple):
    """Both spaces in the plane: the page draws `data` with its script, Markdown shows the picture."""

    picture: Picture
    data: dict[str, Any]
    legend: Sequence[tuple[str, str]]


class Listing(NamedTuple):
    """Text as it is, on the page only: it opens under `folded`, and stands in a file too."""

    folded: str
    texts: Sequence[str]


class Cards(NamedTuple):
    """Groups of blocks, side by side if there is room."""

    cards: Sequence[Sequence[Block]]


Block = Heading | Text | Table | Bullets | Warnings | Tiles | Picture | Map | Listing | Cards


class Chapter(NamedTuple):
    """The blocks of some sections under one title; `key` names it in links."""

    key: str
    title: str
    blocks: Sequence[Block]


def table(header: Sequence[str], rows: Iterable[Iterable[str | Cell]], *notes: str, **options: Any) -> Table:
    """A table of texts; `options` are those of `Table`."""
    cells = [[each if isinstance(each, Cell) else Cell(each) for each in row] for row in rows]
    return Table(Grid(list(header), cells, list(notes)), **options)


def facts(*lines: tuple[str | int | None, ...]) -> Table:
    """Names, values (counts with their thousands separated) and perhaps what they mean; without a value no line."""
    named = [line for line in lines if line[1] is not None and line[1] != ""]
    rows = [[f"{each:,}" if isinstance(each, int) else each or "" for each in line] for line in named]
    return table((), rows, kind="facts explained" if rows and len(rows[0]) > 2 else "facts")


def pictures(blocks: Sequence[Block]) -> Iterator[Picture]:
    """All pictures, those of maps too."""
    for block in blocks:
        if isinstance(block, Picture | Map):
            yield block if isinstance(block, Picture) else block.picture
