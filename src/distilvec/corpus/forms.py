"""Files that are not what their names say: what they are, and the command that makes texts of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from distilvec.errors import DataError


class _UnreadForm(NamedTuple):
    """A form that is not read, by how its content begins and by its suffixes; OLD in the remedy is the file's name."""

    what: str
    starts: tuple[bytes, ...]
    suffixes: tuple[str, ...]
    remedy: str


_SHEET, _RENAME = "Save the sheet as CSV UTF-8", "Give it the name that it should have: "
_FORMS = (
    _UnreadForm("a Parquet file", (b"PAR1",), (), f"{_RENAME}OLD.parquet."),
    _UnreadForm("packed with gzip", (b"\x1f\x8b",), (), f"{_RENAME}OLD.gz."),
    _UnreadForm("packed with zstandard", (b"\x28\xb5\x2f\xfd",), (), f"{_RENAME}OLD.zst."),
    _UnreadForm("packed with bzip2", (b"BZh91AY&SY",), (".bz2",), "Unpack it: bunzip2 -k OLD"),
    _UnreadForm("packed with xz", (b"\xfd7zXZ\0",), (".xz",), "Unpack it: unxz -k OLD"),
    _UnreadForm(
        "a workbook, or a ZIP archive", (b"PK\3\4",), (".xlsx", ".xlsm", ".ods", ".zip"), f"{_SHEET}, or unzip it."
    ),
    _UnreadForm("a workbook", (b"\xd0\xcf\x11\xe0",), (".xls",), f"{_SHEET}."),
    _UnreadForm(
        "an SQLite database",
        (b"SQLite format 3\0",),
        (".db", ".sqlite", ".sqlite3"),
        "Write the rows out: sqlite3 -csv -header OLD 'SELECT text FROM NAME' > new.csv",
    ),
    _UnreadForm(
        "the dump of a database", (), (".sql", ".dump"), "Load it, and write a query's rows out as CSV with a header."
    ),
    _UnreadForm(
        "an Arrow file",
        (b"ARROW1",),
        (".arrow", ".feather", ".ipc"),
        "Make Parquet of it: pyarrow.parquet.write_table(pyarrow.feather.read_table(OLD), NEW).",
    ),
    _UnreadForm("a pickle", (), (".pkl", ".pickle"), "Make Parquet of it: pandas.read_pickle(OLD).to_parquet(NEW)."),
)
#: UTF-32's first, whose mark begins as UTF-16's does.
_MARKS = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
ONE_A_LINE = (
    'Write one object a line: frame.to_json(NEW, orient="records", lines=True) with pandas, jq -c . OLD > NEW for '
    "objects over several lines, or save the list within the object alone."
)


def remedy_of(suffix: str) -> str:
    """Return what to do about files with this suffix; "" where nothing is known."""
    return next((f"{form.remedy.rstrip('.')}. " for form in _FORMS if suffix in form.suffixes), "")


def check_form(start: bytes, path: Path) -> None:
    """Refuse a file whose first line, or first bytes, `start` as no text in UTF-8 does; says how to convert it."""
    form = next((form for form in _FORMS if start.startswith(form.starts)), None) if start else None
    if form is not None:
        raise DataError(
            f"the file is {form.what}, not {path.suffix}", where=str(path), remedy=form.remedy.replace("OLD", path.name)
        )
    encoding = next((name for mark, name in _MARKS.items() if start.startswith(mark)), None)
    if encoding is None and len(start) > 8:  # without a mark, Latin letters are half zeros
        encoding = {(False, True): "utf-16le", (True, False): "utf-16be"}.get((any(start[1:9:2]), any(start[:8:2])))
    if encoding is not None:
        raise DataError(
            f"the file is {encoding.upper()}",
            where=str(path),
            remedy=f"Convert it: iconv -f {encoding} -t utf-8 {path.name} > converted-{path.name}",
        )


def check_line_ends(line: bytes, path: Path) -> None:
    """Refuse a file whose first line has carriage returns within: if no line feed follows, or if the line has names."""
    if b"\r" in line.strip() and (not line.endswith(b"\n") or {".csv", ".tsv"} & set(path.suffixes)):
        raise DataError(
            "the lines end in carriage returns alone (old Mac form)",
            where=str(path),
            remedy=f"Convert it: tr '\\r' '\\n' < {path.name} > converted-{path.name}",
        )


def check_not_a_table(value: Any, path: Path) -> None:
    """Refuse a file of one object that holds a whole table, as pandas' `to_json` writes it."""
    if not isinstance(value, Mapping) or not value:
        return
    cells = list(value.values())
    tables = any(isinstance(cell, list) and cell and isinstance(cell[0], Mapping | list) for cell in cells)
    numbered = all(re.fullmatch("[0-9]+", str(key)) for key in value)
    if any(isinstance(cell, str) for cell in cells) and not numbered:
        return  # a row: it has a text
    if tables or numbered or all(isinstance(cell, Mapping) for cell in cells):
        keys = ", ".join(f'"{key}"' for key in list(value)[:4])
        raise DataError(f"the whole file is one object ({keys}), not a row", where=str(path), remedy=ONE_A_LINE)


def looks_like(line: str) -> str | None:
    """The suffix that a first line speaks of: an object, SQL, or names with a mark between them."""
    if re.match(r'\{\s*"', line):
        return ".jsonl"
    if re.match(r"--$|-- \w+ dump|BEGIN TRANSACTION;|PRAGMA \w+ ?=|(CREATE TABLE|INSERT INTO) ", line):
        return ".sql"
    marks = [mark for mark in (",", "\t") if re.fullmatch(rf"\w+({mark}\w+)+", line.strip())]
    return {",": ".csv", "\t": ".tsv"}[marks[0]] if marks else None
