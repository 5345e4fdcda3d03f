"""The base of everything a report holds, and how texts from outside are cut and named in it."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from distilvec.errors import printable


class RecordPart(BaseModel):
    """Base of all parts of a record: unknown keys are refused, numpy values become Python values."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings", validate_assignment=True)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, given: Any) -> Any:
        return plain(given)


def about(items: str, sentence: str) -> str:
    """A sentence about texts, changed to one about images or molecules.

    >>> about("images", "A text's colour; two texts")
    "An image's colour; two images"
    """
    if items == "texts":
        return sentence
    one = items.removesuffix("s")
    sentence = re.sub(r"\btexts\b", items, sentence)
    if one[0] in "aeiou":
        sentence = re.sub(r"\b([Aa]) text\b", rf"\1n {one}", sentence)
    return re.sub(r"\btext\b", one, sentence)


def plain(value: Any) -> Any:
    """Convert numpy scalars and arrays to Python values, inside mappings and lists too, paths to strings, and
    dataclasses to mappings.

    What names and texts of others would do to a terminal or a page is neutralised here, for every form of a report.
    """
    if isinstance(value, str | Path):
        return printable(str(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {plain(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, BaseModel) else value


def clip(text: str, length: int) -> str:
    """Cut a text to at most `length` characters, with an ellipsis if something was cut."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def short_source(source: str) -> str:
    """Return a hub id as it is, and only the last two parts of a path elsewhere: no report shows where files lie.

    >>> short_source("/home/ann/models/bge/v2"), short_source("BAAI/bge-m3"), short_source("texts.txt")
    ('bge/v2', 'BAAI/bge-m3', 'texts.txt')
    """
    if not re.match(r"(/|~|\.{1,2}[/\\]|[A-Za-z]:[/\\]|\\\\)", source):
        return source
    return "/".join([part for part in re.split(r"[/\\]+", source) if part and part not in ("~", ".", "..")][-2:])


#: Where something comes from, as a report may show it.
Source = Annotated[str, AfterValidator(short_source)]
