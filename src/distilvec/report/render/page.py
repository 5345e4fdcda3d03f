"""report.html: one file that opens anywhere and loads nothing from elsewhere.

Corpus texts are untrusted. In markup jinja2 escapes them; as data they are JSON in a block that no browser runs, with
every `<` written as an escape; the page's policy allows one script only, named by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files

from distilvec.report.blocks import pictures
from distilvec.report.plots import draw, inline
from distilvec.report.record import Record
from distilvec.report.render import template
from distilvec.report.sections.rerun import Rerun
from distilvec.report.summary import summary

LIMIT = 3_000_000


def render_html(record: Record, drawn: Mapping[str, str] | None = None) -> str:
    """The whole page, at most 3 MB: if it is larger, the map's texts and then the figures are left out.

    Args:
        drawn: what `draw_figures` gave for the record, if it is there already.
    """
    if drawn is None:
        drawn = draw_figures(record)
    # The map is drawn by the page's script.
    figures = {name: inline(text, name) for name, text in drawn.items() if name != "map"}
    page = _page(record, figures)
    if len(page.encode()) >= LIMIT:
        rest = {name: data for name, data in record.sections.items() if name != "spaces"}
        record = record.model_copy(update={"sections": rest})
        page = _page(record, figures)
    return page if len(page.encode()) < LIMIT else _page(record, {})


def draw_figures(record: Record) -> dict[str, str]:
    return draw(picture for chapter in record.chapters() for picture in pictures(chapter.blocks))


def _page(record: Record, drawn: Mapping[str, str]) -> str:
    script = _file("page.js")
    text = template("page.html.j2").render(
        record=record,
        made=record.find(Rerun) or Rerun(),
        head=summary(record),
        chapters=record.chapters(),
        drawn=drawn,
        style=_file("page.css"),
        script=script,
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return text.strip() + "\n"


def _file(name: str) -> str:
    return files("distilvec.report").joinpath("render", name).read_text(encoding="utf-8")
