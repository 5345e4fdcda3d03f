"""Checks of a corpus' rows before anything expensive happens, and the counts of what they found."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import TextIOBase
from typing import Any

import numpy as np

from distilvec.corpus.column_names import ColumnNames
from distilvec.corpus.keys import PAIR, canonical, is_blank, join_pair
from distilvec.corpus.problem import Problem
from distilvec.corpus.rows import Row, excerpt
from distilvec.errors import DataError

__all__ = ["DUPLICATE", "ROLE_NAMES", "Audit", "ColumnNames", "Item", "Problem", "Rejections", "check", "percentiles"]

# Tabs, line ends and form feeds are white space. The range U+0080 to U+009F is left alone: it is what Windows-1252
# becomes when it is read as Latin-1, common in otherwise good reviews and news.
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f]")
#: Whole numbers up to here stay what they are as floats, which labels that are numbers are kept as.
_LARGEST = 2**53
_SURROGATE = re.compile("[\ud800-\udfff]")
_ROLES = {
    "anchor": 0, "query": 0, "question": 0, "0": 0,
    "positive": 1, "document": 1, "passage": 1, "1": 1,
    "negative": 2, "2": 2,
}  # fmt: skip
ROLE_NAMES = ("query", "document", "negative")
DUPLICATE = "duplicate"
#: Reason -> what to do where it is that of most rows, and none is left.
_REMEDIES = {
    "missing text": "Name the column of the texts: corpus.text.",
    "not text": "Name the column of the texts (corpus.text): one text in each row, no list. In a .jsonl each line is "
    "one row; a file that is one list is a .json.",
    "too long": "Raise corpus.max_characters, or give shorter texts.",
    "control characters": "Is it a file of text?",
    "not UTF-8": "Convert it: iconv -f windows-1252 -t utf-8 OLD > NEW.",
    "broken JSON": "In a .jsonl each line is one row; a file that is one list is a .json. "
    "Of objects over several lines make such lines: jq -c . OLD > NEW",
    "broken CSV": "A quote that opens a field must close it, and those within are doubled.",
    "wrong number of fields": "In a .csv commas separate fields, and one that holds some is in quotes; in a .tsv tabs.",
}


@dataclass
class Item:
    """A row that can be used: its texts, one per text column (None for an absent negative), and what goes with it.

    `identities` are what equal items share; keys are made from them. Of images and molecules the row's value is only
    an excerpt, as images are large.
    """

    row: Row
    texts: list[str | None]
    identities: list[str | None] = field(default_factory=list)
    components: bool = False
    teacher_text: str | None = None
    label: str | float | None = None
    domain: str | None = None
    role: int | None = None


@dataclass
class Audit:
    """The counts of what was read from a source, kept and rejected.

    Attributes:
        read: rows read.
        kept: texts kept (a pair has two).
        duplicates: texts that were there before. Single texts are kept once, unless asked for; pairs are kept.
        shared: texts of held-out pairs that another pair trains on: on neither side of the split.
        rejected: reason -> rows.
        lengths: characters of the kept texts: min, p5, p50, p95, p99, max, mean. Empty for images.
        components: usable molecules that were given with several components (salts, mixtures).
        made: of the texts kept, those that were made of others.
        modality: name of the items' kind.
    """

    read: int = 0
    kept: int = 0
    duplicates: int = 0
    shared: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    lengths: dict[str, float] = field(default_factory=dict)
    components: int = 0
    made: int = 0
    modality: str = "text"

    @property
    def noun(self) -> str:
        """The word for the items: texts, images or molecules."""
        return f"{self.modality}s"

    def __str__(self) -> str:
        parts = [f"{self.read:,} rows read", f"{self.kept:,} {self.noun} kept", f"{self.duplicates:,} duplicates"]
        if self.shared:
            parts.append(f"{self.shared:,} held-out {self.noun} set aside (other pairs train on them)")
        if self.made:
            parts.append(f"{self.made:,} of them made of others")
        if self.components:
            parts.append(f"{self.components:,} of several components")
        parts += [f"{count:,} rejected: {reason}" for reason, count in self.rejected.items()]
        return ", ".join(parts)


def check(row: Row, wanted: ColumnNames) -> Item:
    """Turn a row into an item.

    Raises:
        Problem: the reason, in two or three words; the same words are counted in `Audit.rejected`.
    """
    if row.fault is not None:
        raise Problem(row.fault)
    value = row.value
    kind = wanted.kind
    if not isinstance(value, Mapping):
        if len(wanted.columns) > 1:
            raise Problem("no columns")
        value = {wanted.text[0]: value}
    cells = [value.get(name) for name in wanted.text]
    # Images are large, and of a row that is left out an excerpt is all that is kept.
    item = Item(row if kind.tokenized else row._replace(value=excerpt(cells[0])), [])
    for place, cell in enumerate(cells):
        read = None if _left_out(cell, place) else kind.read(cell, wanted, row.file)
        item.texts.append(None if read is None else read.item)
        item.identities.append(None if read is None else read.identity)
        item.components = item.components or (read is not None and read.several)
    if wanted.joint:
        item.texts = item.identities = [join_pair(*(text for text in item.texts if text is not None))]
    item.teacher_text = _teacher_text(value.get(wanted.teacher_text), wanted) if wanted.teacher_text else None
    item.label = _label(value.get(wanted.label)) if wanted.label else None
    item.domain = _domain(value.get(wanted.domain)) if wanted.domain else None
    item.role = _role(value.get(wanted.role)) if wanted.role else None
    return item


def _left_out(value: Any, place: int) -> bool:
    """Negatives are optional: data sets of triplets often lack some."""
    return place >= 2 and (_absent(value) or (isinstance(value, str) and is_blank(value)))


def clean_text(value: Any, longest: int, *, joint: bool = False) -> str:
    if not isinstance(value, str):
        raise Problem("missing text" if _absent(value) else "not text")
    if joint:
        value = value.replace(PAIR, " ")  # between two texts, and nowhere else, it has a meaning
    text = canonical(value)
    if len(text) > longest:
        raise Problem("too long")
    if _CONTROL.search(text):
        raise Problem("control characters")
    if is_blank(text):
        raise Problem("empty")
    if not text.isascii() and _SURROGATE.search(text):
        raise Problem("not UTF-8")
    return text


def _teacher_text(value: Any, wanted: ColumnNames) -> str:
    try:
        return clean_text(value, wanted.max_characters)
    except Problem as problem:
        raise Problem(f"teacher text: {problem}") from None


def _absent(value: Any) -> bool:
    """Tell whether a value is missing: None, NaN, an empty string or pandas' NA."""
    if isinstance(value, str):
        return not value
    return value is None or (isinstance(value, float) and math.isnan(value)) or type(value).__name__ == "NAType"


def _label(value: Any) -> str | float:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise Problem("label too large a number")  # give such identifiers as texts
    if isinstance(value, str) and (text := canonical(value)):
        if _SURROGATE.search(text):
            raise Problem("not UTF-8")
        if text in ("nan", "NaN"):  # how tables of numbers are written where one is missing
            raise Problem("missing label")
        return text
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    raise Problem("missing label" if _absent(value) else "bad label")


def _whole(value: Any) -> Any:
    """The value; a whole number that is spelt with a fraction, as a gap among whole numbers makes frames do, as one."""
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _domain(value: Any) -> str:
    value = _whole(value)
    if isinstance(value, str | int) and (text := canonical(str(value))):
        if _SURROGATE.search(text):
            raise Problem("not UTF-8")
        return text
    raise Problem("missing domain" if _absent(value) else "bad domain")


def _role(value: Any) -> int:
    role = _ROLES.get(str(_whole(value)).strip().casefold())
    if role is None:
        raise Problem("missing role" if _absent(value) else "bad role")
    return role


class Rejections:
    """Counts rejected rows and writes them down, one JSON object a line: file, line, reason, excerpt."""

    def __init__(self, out: TextIOBase, strict: bool) -> None:
        self._out, self.strict = out, strict
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, row: Row, reason: str) -> None:
        """Note one row.

        Raises:
            DataError: with `strict`, naming file and line.
        """
        place = f"{row.file}, line {row.line}"
        piece = row.value if isinstance(row.value, str) and row.fault else excerpt(row.value)
        if self.strict:
            raise DataError(
                f"{reason}: {piece!r}", where=place, remedy="Mend the row, or leave out strict to have it counted."
            )
        self.counts[reason] += 1
        self.first.setdefault(reason, place)
        entry = {"file": row.file, "line": row.line, "reason": reason, "excerpt": piece}
        self._out.write(json.dumps(entry, ensure_ascii=True) + "\n")

    def remedy(self) -> str | None:
        """Return what to do about the most frequent reason; None where there is nothing to be said."""
        return next((_REMEDIES.get(reason) for reason, _ in self.counts.most_common(1)), None)

    def summary(self) -> str:
        """The reasons with counts and where each was first."""
        return "; ".join(
            f"{count:,} {reason} (first: {self.first[reason]})" for reason, count in self.counts.most_common()
        )


def percentiles(counts: Counter[int]) -> dict[str, float]:
    """Statistics of values given as value -> how often."""
    if not counts:
        return {}
    ordered = sorted(counts)
    ends = np.cumsum([counts[value] for value in ordered])
    statistics: dict[str, float] = {"min": ordered[0], "max": ordered[-1]}
    statistics["mean"] = round(sum(value * count for value, count in counts.items()) / int(ends[-1]), 1)
    for share in (5, 50, 95, 99):
        statistics[f"p{share}"] = ordered[int(np.searchsorted(ends, share / 100 * ends[-1]))]
    return statistics
