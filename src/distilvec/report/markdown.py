"""report.md: the same report as the page, for terminals, repositories and mail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from distilvec.report.blocks import Block, Bullets, Cards, Facts, Heading, Map, Picture, Section, Table, Text
from distilvec.report.facts import Fact
from distilvec.report.grid import escape_markdown
from distilvec.report.record import Record
from distilvec.report.sections import sections
from distilvec.report.sentences import verdict


def render_markdown(record: Record, figures: Sequence[Path] = ()) -> str:
    """The report as markdown; figures are linked as files beside it."""
    drawn = {file.stem: f"figures/{file.name}" for file in figures}
    parts = [f"# {escape_markdown(record.title)}", escape_markdown(verdict(record)), *alarms(record.alarms)]
    return "\n\n".join([*parts, *dressed(sections(record, drawn), drawn)]) + "\n"


def alarms(told: Iterable[str]) -> list[str]:
    """A quotation each."""
    return [f"> **Alarm:** {escape_markdown(alarm)}" for alarm in told]


def dressed(found: Sequence[Section], drawn: dict[str, str]) -> list[str]:
    """Paragraphs of markdown.

    Args:
        drawn: name -> file of each figure.
    """
    parts = []
    for section in found:
        inside = [part for block in section.blocks for part in _block(block, drawn)]
        parts += [f"## {escape_markdown(section.title)}", *inside] if inside else []
    return parts


def _block(block: Block, drawn: dict[str, str]) -> list[str]:
    parts: list[str] = []
    match block:
        case Heading(text):
            parts = [f"### {escape_markdown(text)}"]
        case Text(text):
            parts = [escape_markdown(text)]
        case Facts(facts):
            parts = [fact_table(facts)] if facts else []
        case Table(grid, folded=folded):
            parts = [*([f"### {escape_markdown(folded)}"] if folded else []), grid.markdown()]
        case Bullets(items, warning=warning):
            listed = "\n".join(f"- {escape_markdown(item)}" for item in items)
            parts = [*([f"**{escape_markdown(warning)}**"] if warning else []), listed]
        case Picture(name, caption) if name in drawn:
            parts = [f"![{escape_markdown(caption)}]({drawn[name]})"]
        case Map() if "map" in drawn:
            parts = [f"![Both spaces in the plane]({drawn['map']})"]
        case Cards(cards):
            parts = [part for card in cards for each in card for part in _block(each, drawn)]
    return parts


def fact_table(facts: Sequence[Fact]) -> str:
    """Facts as a pipe table; empty for none."""
    if not facts:
        return ""
    explained = any(fact.meaning for fact in facts)
    lines = ["| | | |\n| --- | --- | --- |" if explained else "| | |\n| --- | --- |"]
    for fact in facts:
        cells = [fact.name, fact.value, *([fact.meaning] if explained else [])]
        lines.append("| " + " | ".join(escape_markdown(cell) for cell in cells) + " |")
    return "\n".join(lines)
