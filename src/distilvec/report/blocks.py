"""What a report is made of: sections of blocks, before they are dressed for the page or for markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distilvec.report.facts import Fact
from distilvec.report.grid import Grid
from distilvec.report.record_parts import SpaceMap


@dataclass(frozen=True)
class Heading:
    """Inside a section."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph. `kind`: "lead" below a heading, "small" for a remark, or ""."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class Facts:
    """Names, values, and what they mean."""

    facts: Sequence[Fact]


@dataclass(frozen=True)
class Table:
    """A grid; its notes stand below it.

    Attributes:
        kind: "wide", "texts" where cells are sentences ("texts hardest": with a share in the second), or "".
        roles: of the rows' models, for their colours.
        folded: on the page it opens under this line.
    """

    grid: Grid
    kind: str = "wide"
    roles: Sequence[str] = ()
    folded: str = ""


@dataclass(frozen=True)
class Bullets:
    """A list. `tones`: "better", "worse", "open" or "" for each item; `warning`: what it warns of is on its frame."""

    items: Sequence[str]
    tones: Sequence[str] = ()
    warning: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure by the name that `plots.draw` gives it."""

    name: str
    caption: str


@dataclass(frozen=True)
class Map:
    """Both spaces in the plane: on the page it answers to the pointer, in markdown it is a picture."""

    spaces: SpaceMap
    items: str


@dataclass(frozen=True)
class Listing:
    """Text as it is, on the page only: it opens under `folded`, and stands in a file too."""

    folded: str
    texts: Sequence[str]


@dataclass(frozen=True)
class Cards:
    """Groups of blocks, side by side where there is room."""

    cards: Sequence[Sequence[Block]]


Block = Heading | Text | Facts | Table | Bullets | Picture | Map | Listing | Cards


@dataclass(frozen=True)
class Section:
    """`key` names it in links. Without blocks it is left out."""

    key: str
    title: str
    blocks: Sequence[Block]
