"""Blocks of a report as HTML. Every string that comes in is text and is escaped here, but drawings, which are SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from distilvec.report.blocks import Block, Bullets, Cards, Facts, Heading, Listing, Map, Picture, Table, Text
from distilvec.report.facts import Fact
from distilvec.report.grid import Grid
from distilvec.report.plots import ROLE_COLOURS, point_colours
from distilvec.report.record_parts import clip
from distilvec.report.sentences import about


def dressed(blocks: Sequence[Block], drawn: Mapping[str, str]) -> str:
    """HTML of some blocks.

    Args:
        drawn: name -> SVG element of each figure.
    """
    return "".join(_block(block, drawn) for block in blocks)


def _block(block: Block, drawn: Mapping[str, str]) -> str:
    made = ""
    match block:
        case Heading(text):
            made = f"<h3>{escape(text)}</h3>"
        case Text(text, kind):
            made = f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"
        case Facts(facts):
            made = _fact_table(facts)
        case Table():
            made = _table(block)
        case Bullets(items, warning=warning) if warning:
            made = f'<div class="alarms"><strong>{escape(warning)}</strong>{bullets(items, "")}</div>'
        case Bullets(items, tones):
            made = bullets(items, "plain", tones)
        case Picture(name, caption) if name in drawn:
            made = f'<figure class="drawn">{drawn[name]}<figcaption>{escape(caption)}</figcaption></figure>'
        case Map():
            made = _map(block)
        case Listing(folded, texts):
            made = _folded(folded, "".join(f'<pre class="example">{escape(text)}</pre>' for text in texts))
        case Cards(cards):
            made = f'<div class="cards">{"".join(f"<div>{dressed(card, drawn)}</div>" for card in cards)}</div>'
    return made


def _table(block: Table) -> str:
    made = _grid(block.grid, block.kind, block.roles)
    made += bullets(block.grid.notes, "plain") if block.grid.notes else ""
    return _folded(block.folded, made) if block.folded else made


def _grid(grid: Grid, kind: str, roles: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in grid.header)
    body = ""
    for position, row in enumerate(grid.rows):
        role = roles[position] if roles else ""
        dot = f'<i class="dot" style="background:var(--{role})"></i>' if role in ROLE_COLOURS else ""
        cells = [
            f"<td>{dot if place == 0 else ''}{escape(cell.text)}"
            + (f'<span class="interval">{escape(cell.interval)}</span>' if cell.interval else "")
            + "</td>"
            for place, cell in enumerate(row)
        ]
        body += f'<tr class="{role}">{"".join(cells)}</tr>'
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _fact_table(facts: Sequence[Fact]) -> str:
    if not facts:
        return ""
    explained = any(fact.meaning for fact in facts)
    rows = ""
    for fact in facts:
        value = f'<td class="{"number" if explained else ""}">{escape(fact.value)}</td>'
        more = f'<td class="small">{escape(fact.meaning)}</td>' if explained else ""
        rows += f"<tr><td>{escape(fact.name)}</td>{value}{more}</tr>"
    return f'<div class="scroll"><table class="facts">{rows}</table></div>'


def bullets(items: Sequence[str], kind: str, tones: Sequence[str] = ()) -> str:
    """A list; `tones` are classes of what its items say."""
    shown = [escape(item) for item in items]
    if tones:
        shown = [f'<span class="{tone}">{text}</span>' for tone, text in zip(tones, shown, strict=True)]
    return f'<ul class="{kind}">' + "".join(f"<li>{text}</li>" for text in shown) + "</ul>"


def _folded(summary: str, inside: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def _map(block: Map) -> str:
    spaces, items = block.spaces, block.items
    how = f" ({escape(spaces.projection)})" if spaces.projection else ""
    names = list(dict.fromkeys(spaces.groups or []))
    colours = dict(zip(spaces.groups or [], point_colours(spaces), strict=False)) if spaces.groups else {}
    legend = ""
    if 0 < len(names) <= 8:
        entries = (
            f'<span><i class="dot" style="background:{colours[n]}"></i>{escape(clip(n, 40))}</span>' for n in names
        )
        legend = f'<div class="legend">{"".join(entries)}</div>'
    told = "its group" if legend else "its place in the teacher's space, left to right"
    return (
        f'<figure><div id="map"></div>{legend}<p id="map-text"></p>'
        "<noscript><p>The map needs JavaScript; it is also in figures/map.svg.</p></noscript>"
        f"<figcaption>{len(spaces.texts)} {items} in the plane{how}. Point at one to see where the other space has it. "
        + about(items, f"A text's colour is {told}, in both maps. ")
        + "A plane shows only part of a space with hundreds of dimensions.</figcaption></figure>"
    )
