"""Blocks of a report as a page, as Markdown and on the terminal."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from distilvec.errors import printable
from distilvec.report.grid import escape_markdown

if TYPE_CHECKING:
    from jinja2 import Template


@cache
def template(name: str) -> Template:
    """A template of this folder; what it shows is escaped for HTML if it is a page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("distilvec.report", "render"),
        autoescape=name.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,  # markup is ours, texts are not
    )
    environment.filters |= {"kind": lambda block: type(block).__name__, "md": escape_markdown}
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    return environment.get_template(name)
