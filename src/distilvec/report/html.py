"""The page: one file that opens anywhere, asks no other machine for anything, and says how sure its numbers are.

Corpus texts are untrusted. In markup they go through `html.escape`; as data they are JSON in a block that no
browser runs, with every `<` written as an escape; the page's policy runs one script only, named by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from distilvec import words
from distilvec.report import sentences
from distilvec.report.markup import bullets, dressed
from distilvec.report.plots import draw, inline_figures, point_colours
from distilvec.report.record import Record
from distilvec.report.record_parts import NEIGHBOURS, ModelRow, SpaceMap
from distilvec.report.sections import sections

LIMIT = 3_000_000


def render_html(record: Record, drawn: Mapping[str, str] | None = None) -> str:
    """The whole page, at most 3 MB: where that is passed, the map's texts and then the figures are left out.

    Args:
        record: of the run.
        drawn: what `plots.draw` gave for the record, where it is there already.
    """
    figures = inline_figures(draw(record) if drawn is None else drawn)
    page = _page(record, figures)
    if len(page.encode()) >= LIMIT and record.spaces is not None:
        page = _page(record.model_copy(update={"spaces": None}), figures)
    if len(page.encode()) >= LIMIT:
        page = _page(record.model_copy(update={"spaces": None}), {})
    return page


def _page(record: Record, drawn: dict[str, str]) -> str:
    style, script = (
        files("distilvec.report").joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    parts = [(part.key, escape(part.title), dressed(part.blocks, drawn)) for part in sections(record, drawn)]
    links = "".join(f'<a href="#{key}">{name}</a>' for key, name, _ in parts)
    body = "".join(f'<section id="{key}"><h2>{name}</h2>{text}</section>' for key, name, text in parts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{escape(record.title)}</title><style>{style}</style></head><body>"
        f'<header><h1>{escape(record.title)}</h1><p class="meta">{_meta(record)}</p>'
        f'<p class="verdict">{escape(sentences.verdict(record))}</p>{_alarms(record)}{_tiles(record)}'
        f"<nav>{links}</nav></header>"
        f"<main>{body}</main><footer>{_footer(record)}</footer>"
        f'<script type="application/json" id="map-data">{embedded(_map_data(record.spaces))}</script>'
        f"<script>{script}</script></body></html>\n"
    )


def embedded(value: Any) -> str:
    """JSON that cannot end the block it stands in, whatever strings it holds."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for mark in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _meta(record: Record) -> str:
    machine = record.machine
    where = ""
    if machine is not None:
        cores = f"{machine.cores} cores" if machine.cores else ""
        threads = f"{machine.threads} threads" if machine.threads else ""
        where = ", ".join(part for part in (machine.device, machine.name, cores, threads) if part)
    own = record.versions.get("distilvec")
    facts = [
        record.created.replace("T", " ").replace("+00:00", " UTC"),
        f"distilvec {own}" if own else "",
        f"seed {record.seed}" if record.seed is not None else "",
        where,
    ]
    return escape(" · ".join(fact for fact in facts if fact))


def _alarms(record: Record) -> str:
    if not record.alarms:
        return ""
    title = "Alarm" if len(record.alarms) == 1 else f"{len(record.alarms)} alarms"
    return f'<div class="alarms" role="alert"><strong>{title}</strong>{bullets(record.alarms, "")}</div>'


def _tiles(record: Record) -> str:
    student, teacher, group = record.model("student"), record.model("teacher"), sentences.headline_group(record)
    if student is None:
        return ""
    tiles: list[tuple[str, str, str]] = []
    if group is not None:
        kept, score = record.retention(student, group), student.averages[group]
        if kept is not None and teacher is not None:
            of = f"{words.points(score.value)} of {words.points(teacher.averages[group].value)}"
            of = "ten nearest, held out" if group == NEIGHBOURS else of
            tiles.append(("of the teacher's " + sentences.GROUP_NAMES[group], words.percent(kept), of))
        other = student.averages.get("retrieval")
        if other is not None and group != "retrieval" and (kept := record.retention(student, "retrieval")) is not None:
            of = (
                f"{words.points(other.value)} of {words.points(teacher.averages['retrieval'].value) if teacher else ''}"
            )
            tiles.append(("of the teacher's retrieval", words.percent(kept), of))
    if student.parameters is not None:
        tiles.append(
            ("parameters", words.millions(student.parameters), _ratio(student.parameters, teacher, "parameters"))
        )
    if student.size_bytes is not None:
        tiles.append(("on disk", words.size(student.size_bytes), _ratio(student.size_bytes, teacher, "size_bytes")))
    if student.texts_per_second:
        times = ""
        if teacher is not None and teacher.texts_per_second:
            times = f"{student.texts_per_second / teacher.texts_per_second:.1f} × the teacher"
        delay = f"one {record.items[:-1]}: {words.number(student.latency_p50_ms)} ms" if student.latency_p50_ms else ""
        tiles.append(
            (
                f"{record.items} per second",
                words.number(student.texts_per_second),
                " · ".join(p for p in (times, delay) if p),
            )
        )
    made = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span>'
        f'<span class="small">{escape(more)}</span></div>'
        for name, value, more in tiles
    )
    return f'<div class="tiles">{made}</div>' if made else ""


def _ratio(own: int, teacher: ModelRow | None, field: str) -> str:
    other = getattr(teacher, field) if teacher is not None else None
    if not other:
        return ""
    shown = words.millions(other) if field == "parameters" else words.size(other)
    return f"{100 * own / other:.0f} % of the teacher's {shown}"


def _footer(record: Record) -> str:
    return f"Made by distilvec. The same in data: report.json (schema {record.schema_version})."


def _map_data(spaces: SpaceMap | None) -> dict[str, Any]:
    if spaces is None or not spaces.texts:
        return {}
    rounded = {name: [[round(x, 4), round(y, 4)] for x, y in getattr(spaces, name)] for name in ("teacher", "student")}
    return {**rounded, "texts": spaces.texts, "groups": spaces.groups, "colours": point_colours(spaces)}
