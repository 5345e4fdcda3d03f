"""Pieces of HTML. Every string that comes in is text and is escaped here, but drawings and cards, which are HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from distilvec.report.facts import Fact
from distilvec.report.grid import Grid
from distilvec.report.plots import ROLE_COLOURS


def table(grid: Grid, kind: str, roles: Sequence[str] = ()) -> str:
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


def fact_table(facts: Sequence[Fact]) -> str:
    if not facts:
        return ""
    explained = any(fact.meaning for fact in facts)
    rows = ""
    for fact in facts:
        value = f'<td class="{"number" if explained else ""}">{escape(fact.value)}</td>'
        more = f'<td class="small">{escape(fact.meaning)}</td>' if explained else ""
        rows += f"<tr><td>{escape(fact.name)}</td>{value}{more}</tr>"
    return f'<div class="scroll"><table class="facts">{rows}</table></div>'


def figure(drawn: dict[str, str], name: str, caption: str) -> str:
    return (
        f'<figure class="drawn">{drawn[name]}<figcaption>{escape(caption)}</figcaption></figure>'
        if name in drawn
        else ""
    )


def bullets(items: Sequence[str], kind: str) -> str:
    return f'<ul class="{kind}">' + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def card_row(cards: Sequence[str]) -> str:
    """Side by side where there is room."""
    return f'<div class="cards">{"".join(f"<div>{card}</div>" for card in cards)}</div>' if cards else ""
