"""A row of a source, the columns that it has to have, and how a piece of it is shown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from distilvec.errors import DataError, nearest


class Row(NamedTuple):
    """One row of a source.

    Attributes:
        file: where it is from.
        line: its line (its number where the format has no lines), from 1.
        value: the text, or a mapping from column to value; an excerpt where there is a fault.
        fault: why it cannot be used; None where it can.
    """

    file: str
    line: int
    value: Any
    fault: str | None = None


def require_columns(wanted: Sequence[str], available: Sequence[str], where: str, first: str = "corpus.text") -> None:
    """Refuse a source without a column that is asked for.

    Args:
        first: the recipe's key that names the first one; empty without one.
    """
    for name in wanted:
        if name not in available:
            alike = [column for column in available if column.lower() == name.lower()]
            hint = nearest(alike[0] if alike else name, available)
            listed = ", ".join(f'"{column}"' for column in list(available)[:20])
            remedy = f"{hint} Columns: {listed}." if hint.startswith("Did") else f"Columns: {listed}."
            lone = available[0] if len(available) == 1 else ""
            between = next((mark for mark in (";", "\t", "|", ",") if mark in lone), None)
            if between:  # a spreadsheet's table, with another mark than its suffix says
                remedy = f"{listed} is one column, as {between!r} separates none here: a .csv has commas, a .tsv tabs."
            elif name == wanted[0] and first:
                usual = alike[0] if alike else available[0] if len(available) == 1 else "COLUMN"
                remedy += f" Name it: in a recipe with --set {first}={usual}"
                remedy += f", else with --text {usual}." if first == "corpus.text" else "."
            raise DataError(f'there is no column "{name}"', where=where, remedy=remedy)


def refuse_repeated(names: Sequence[str], where: str) -> None:
    """Refuse columns of which two have the same name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f'two columns are called "{twice[0]}"', where=where, remedy="Rename one of them.")


def excerpt(value: Any, length: int = 80) -> str:
    """A short piece of something, safe to print on one line."""
    if isinstance(value, bytes):
        value = value[: 4 * length].decode("utf-8", "backslashreplace")
    text = value[: 4 * length] if isinstance(value, str) else shown(_cut(value, 4 * length))
    text = "".join(char if char.isprintable() else " " if char.isspace() else "\ufffd" for char in text[: 4 * length])
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def _cut(value: Any, length: int, depth: int = 2) -> Any:
    """The same with long texts and bytes shortened: showing an image's bytes would take several times their memory."""
    if isinstance(value, str | bytes):
        return value[:length]
    if type(value) is dict and depth:
        return {key: _cut(each, length, depth - 1) for key, each in value.items()}
    return value


def shown(value: Any) -> str:
    """`repr`, also of what is nested too deeply for it or cannot be shown at all."""
    try:
        return repr(value)
    except Exception:  # whatever a stranger's `__repr__` raises
        return f"<{type(value).__name__}>"


def unchanged(status: os.stat_result) -> str:
    """Equal as long as nobody writes to a file; the time of its last change in kind tells where its date was kept."""
    return f"{status.st_size}|{status.st_mtime_ns}|{status.st_ctime_ns}"
