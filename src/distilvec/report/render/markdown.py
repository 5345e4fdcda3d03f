"""report.md: the same report as the page, for terminals, repositories and mail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from distilvec.report.blocks import Block, Bullets, Cards, Chapter, Heading, Map, Picture, Table, Text, Tiles, Warnings
from distilvec.report.grid import escape_markdown
from distilvec.report.record import Record
from distilvec.report.summary import summary


def render_markdown(record: Record, figures: Iterable[str] = ()) -> str:
    """The report as Markdown; figures, given by name, are linked as files next to it."""
    drawn = {name: f"figures/{name}.svg" for name in figures}
    parts = [f"# {escape_markdown(record.title)}", *blocks_markdown(summary(record))]
    return "\n\n".join([*parts, *chapters_markdown(record.chapters(), drawn)]) + "\n"


def chapters_markdown(chapters: Iterable[Chapter], drawn: Mapping[str, str]) -> list[str]:
    """Paragraphs of Markdown. `drawn`: name -> file of each figure."""
    parts = []
    for chapter in chapters:
        inside = blocks_markdown(chapter.blocks, drawn)
        parts += [f"## {escape_markdown(chapter.title)}", *inside] if inside else []
    return parts


def blocks_markdown(blocks: Iterable[Block], drawn: Mapping[str, str] | None = None) -> list[str]:
    """Paragraphs of Markdown; pictures without a file in `drawn` are left out."""
    return [part for block in blocks for part in _block(block, drawn or {})]


def _block(block: Block, drawn: Mapping[str, str]) -> list[str]:
    parts: list[str] = []
    match block:
        case Heading(text):
            parts = [f"### {escape_markdown(text)}"]
        case Text(text):
            parts = [escape_markdown(text)]
        case Table(grid, title, folded=folded):
            parts = [*(f"### {escape_markdown(name)}" for name in (title, folded) if name), grid.markdown()]
        case Bullets(items):
            parts = ["\n".join(f"- {escape_markdown(item)}" for item in items)]
        case Warnings(name, items):
            parts = [f"> **{name}:** {escape_markdown(item)}" for item in items]
        case Tiles(tiles, said):
            lines = [f"{value} {name}" + (f", {remark}" if remark else "") for name, value, remark in tiles[said:]]
            parts = _block(Bullets(lines), drawn) if lines else []
        case Picture(name, caption) if name in drawn:
            parts = [f"![{escape_markdown(caption)}]({drawn[name]})"]
        case Map(picture):
            parts = _block(picture, drawn)
        case Cards(cards):
            parts = [part for card in cards for part in blocks_markdown(card, drawn)]
    return parts
