"""Rows of files, one format after the other. A broken row is a row with a fault; only a broken file is an error."""

from __future__ import annotations

import csv
import json
import logging
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from distilvec.corpus.forms import ONE_A_LINE, check_form, check_not_a_table, looks_like, remedy_of
from distilvec.corpus.opening import COMPRESSED, Line, lines, opened
from distilvec.corpus.rows import Row, excerpt, refuse_repeated
from distilvec.errors import DataError, DistilvecError

logger = logging.getLogger(__name__)
SUFFIXES = (".txt", ".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".smi")
_LONGEST_LINE = 16 << 20
#: The file's own name, with a column or without: a folder may have the ending too.
_TABLE = re.compile(r"(.*\.(?:parquet|(?:jsonl|ndjson|json|csv|tsv)(?:\.gz|\.zst)?))(?::([^/\\]*))?", re.DOTALL)
#: Excel's own first line, which is about the file.
_SEPARATOR = re.compile("sep=.")
_ESCAPED = re.compile("[\udc80-\udcff]")  # bytes that are not UTF-8, decoded with "surrogateescape"


def table_and_column(source: str) -> tuple[str, str] | None:
    """The file of a table, and the column named behind it or ""; None where it is no file of a table.

    >>> table_and_column("v.parquet:title"), table_and_column("v.jsonl"), table_and_column("v.npy")
    (('v.parquet', 'title'), ('v.jsonl', ''), None)
    """
    found = _TABLE.fullmatch(source)
    return (found[1], found[2] or "") if found else None


def file_kind(path: Path) -> str:
    """The format's suffix without the compression's.

    Raises:
        DistilvecError: a suffix that is not read.
    """
    packed = path.suffix.lower() in COMPRESSED
    kind = (Path(path.stem).suffix if packed else path.suffix).lower()
    if kind not in SUFFIXES or (packed and kind == ".parquet"):
        raise DistilvecError(
            f'files of kind "{"".join(path.suffixes[-2:] if packed else path.suffixes[-1:])}" are not read',
            where=str(path),
            remedy=f"{remedy_of(kind)}Known: {', '.join(SUFFIXES)}; all but .parquet also with "
            f"{' or '.join(COMPRESSED)}; of images their folder, or .npz.",
        )
    return kind


def read_file(path: Path, columns: Sequence[str] | None, max_characters: int, images: bool = False) -> Iterator[Row]:
    """The rows of one file.

    Args:
        path: .txt, .csv, .tsv, .json, .jsonl, .ndjson, .smi (also .gz, .zst) or .parquet.
        columns: those that are asked for; others may be left out of the rows. None = all.
        max_characters: longer texts will not be kept, which bounds what has to be held.
        images: columns of bytes are images, not texts.

    Raises:
        DataError: the file is missing, damaged, or lacks a column.
        EnvironmentProblem: it cannot be read here.
    """
    readers: dict[str, Callable[..., Iterator[Row]]] = {
        ".txt": _text,
        ".csv": _comma_separated,
        ".tsv": _tab_separated,
        ".json": _json,
        ".jsonl": _json_lines,
        ".ndjson": _json_lines,
        ".smi": _smiles,
    }
    kind = file_kind(path)
    if kind == ".parquet":
        from distilvec.corpus.parquet import parquet_rows

        return parquet_rows(path, columns, images)
    # A character has at most 4 bytes, 12 when JSON escapes it.
    return readers[kind](path, max(_LONGEST_LINE, 12 * max_characters))


def about_rows(paths: Sequence[Path]) -> int | None:
    """About how many rows files have: their lines by the first megabyte, or what a parquet file says.

    None if one is packed, missing, or not a file.
    """
    total = 0
    for path in paths:
        if path.suffix.lower() in COMPRESSED or path.suffix.lower() not in SUFFIXES or not path.is_file():
            return None
        try:
            if path.suffix.lower() == ".parquet":
                from distilvec.corpus.parquet import parquet_size

                total += parquet_size(path)
            else:
                total += _lines_in(path)
        except (OSError, DataError):  # reading it says what is wrong
            return None
    return total


def _lines_in(path: Path) -> int:
    with open(path, "rb") as file:
        block = file.read(1 << 20)
    return block.count(b"\n") * path.stat().st_size // max(1, len(block))


def _decoded(path: Path, longest: int, errors: str = "strict") -> Iterator[tuple[Line, str | Row]]:
    """Each line as text, or as a row that says why it is none."""
    for line in lines(path, longest):
        if not line.whole:
            yield line, Row(str(path), line.number, excerpt(line.content), "too long")
            continue
        try:
            yield line, line.content.decode("utf-8", errors)
        except UnicodeDecodeError:
            yield line, Row(str(path), line.number, excerpt(line.content), "not UTF-8")


def _text(path: Path, longest: int) -> Iterator[Row]:
    for line, content in _decoded(path, longest):
        if line.number == 1 and isinstance(content, str) and "\r" in content.strip():
            logger.warning("%s: carriage returns within a line end none; if they should, make line feeds of them", path)
        if line.number == 1 and isinstance(content, str) and (kind := looks_like(content)):
            logger.warning(
                "%s: its first line looks like that of a %s file, and each line is read as a text", path, kind
            )
        yield content if isinstance(content, Row) else Row(str(path), line.number, content)


def _smiles(path: Path, longest: int) -> Iterator[Row]:
    """One SMILES a line, then white space and a name or nothing."""
    for line, content in _decoded(path, longest):
        if isinstance(content, Row):
            yield content
        elif not content.strip():
            yield Row(str(path), line.number, "", "empty")
        else:
            smiles, *name = content.split(maxsplit=1)
            yield Row(str(path), line.number, {"smiles": smiles, "name": name[0].strip() if name else ""})


def _json_lines(path: Path, longest: int) -> Iterator[Row]:
    rows = (
        content if isinstance(content, Row) else _parsed(str(path), line.number, content)
        for line, content in _decoded(path, longest)
    )
    first = list(islice(rows, 2))
    if len(first) == 1 and first[0].fault is None:
        check_not_a_table(first[0].value, path)
    yield from chain(first, rows)


def _parsed(file: str, number: int, content: str) -> Row:
    if not content.strip():
        return Row(file, number, "", "empty")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return Row(file, number, excerpt(content), "broken JSON")
    return Row(file, number, value)


def _json(path: Path, longest: int) -> Iterator[Row]:
    """A list of objects or texts; a file with one object a line is read as such."""
    with opened(path) as source:
        start = source.read(64)
        while start and not start.removeprefix(b"\xef\xbb\xbf").strip():
            start = source.read(64)
    check_form(start, path)
    if not start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        rows = _json_lines(path, longest)
        first = list(islice(rows, 2))
        if len(first) == 2 and all(row.fault == "broken JSON" for row in first):
            raise DataError(
                "this is neither a list nor one object a line",
                where=str(path),
                remedy=ONE_A_LINE,
            )
        yield from chain(first, rows)
        return
    with opened(path) as source:
        from distilvec.corpus.jsonlist import json_list

        for number, value in enumerate(json_list(source, str(path), longest), start=1):
            yield Row(str(path), number, value)


def _table_rows(
    path: Path, records: Iterator[tuple[int, str, list[str] | str]], doubt: Callable[[str, list[str], int], str | None]
) -> Iterator[Row]:
    """The rows of a table whose first record names the columns.

    Args:
        records: line, content, and fields or a fault.
        doubt: what looks wrong with a record that should have so many fields; warned of once.
    """
    header: list[str] = []
    told = False
    for number, content, fields in records:
        if isinstance(fields, str):
            row = Row(str(path), number, excerpt(content.encode("utf-8", "surrogateescape")), fields)
            if not header and fields != "empty":
                raise _no_header(row, path)
            yield row
        elif not header:
            header = [field.strip() for field in fields]
            refuse_repeated([name for name in header if name], f"{path}, line 1")
        else:
            if not told and (why := doubt(content, fields, len(header))):
                logger.warning("%s, line %d: %s", path, number, why)
                told = True
            if len(fields) == len(header):
                yield Row(str(path), number, dict(zip(header, fields, strict=True)))
            else:
                yield Row(str(path), number, excerpt(content), "wrong number of fields")


def _tab_separated(path: Path, longest: int) -> Iterator[Row]:
    """Quotes are plain characters here, as in what is published as .tsv."""
    records: Iterator[tuple[int, str, list[str] | str]] = (
        (line.number, content.value, content.fault or "")
        if isinstance(content, Row)
        else (line.number, content, content.split("\t") if content.strip() else "empty")
        for line, content in _decoded(path, longest)
    )
    return _table_rows(path, records, _exported_quotes)


def _exported_quotes(content: str, fields: list[str], width: int) -> str | None:
    del content, width
    if not any(map(_is_quoted, fields)):
        return None
    return (
        "a field is in quotes, as tables are exported, and quotes of a .tsv are read as they stand; where that is not "
        "meant, save it as .csv"
    )


def _is_quoted(field: str) -> bool:
    """As a field that holds quotes is exported: within quotes, and those in it doubled."""
    inner = field[1:-1]
    return len(field) > 1 and field[0] == field[-1] == '"' and '""' in inner and '"' not in inner.replace('""', "")


def _no_header(row: Row, path: Path) -> DataError:
    """The error of a table whose first line is faulty: the one after it is no header."""
    if kind := looks_like(row.value):
        return DataError(f"it is not a {path.suffix} file", where=str(path), remedy=f"Give it the suffix {kind}.")
    encoding = f"Convert it: iconv -f windows-1252 -t utf-8 {path.name} > converted-{path.name}"
    return DataError(
        f"the line with the names of the columns is {row.fault}",
        where=str(path),
        remedy=encoding if row.fault == "not UTF-8" else "Mend the first line.",
    )


def _comma_separated(path: Path, longest: int) -> Iterator[Row]:
    return _table_rows(path, _csv_records(path, longest), _rows_in_quotes)


def _rows_in_quotes(content: str, fields: list[str], width: int) -> str | None:
    """Say so if most lines within a record of several have as many fields as a row should."""
    del fields
    inner = content.split("\n")[1:-1]
    alike = sum(len(_csv_fields(line) or ()) == width for line in inner) if width > 1 else 0
    if not (alike > 2 and alike > 0.8 * len(inner)):
        return None
    return (
        f"what stands between two quotes is one field, of {len(inner) + 2} lines that look like rows; is a quote too "
        "many?"
    )


def _csv_records(path: Path, longest: int) -> Iterator[tuple[int, str, list[str] | str]]:
    """(line, content, fields or a fault) per record.

    A quote that is never closed costs the line it is on: the lines after it are read again on their own. Bytes that are
    not UTF-8 cost their whole record, however many lines it has.
    """
    if csv.field_size_limit() < longest:
        csv.field_size_limit(longest)
    ahead: deque[tuple[Line, str | Row]] = deque()
    source = _decoded(path, longest, "surrogateescape")
    while True:
        line, content = ahead.popleft() if ahead else next(source, (None, ""))
        if line is None:
            return
        if isinstance(content, Row):
            yield line.number, content.value, content.fault or ""
            continue
        if not content.strip():
            yield line.number, "", "empty"
            continue
        if line.number == 1 and _SEPARATOR.fullmatch(content):
            continue
        fields = _csv_fields(content)
        if fields is None:
            record, taken = _closing(content + line.end, ahead, source, longest)
            fields = _csv_fields(record) if record is not None else None
            if record is not None and fields is not None:
                content = record
                for _ in range(taken):
                    ahead.popleft()
        escaped = not content.isascii() and _ESCAPED.search(content)
        yield line.number, content, "not UTF-8" if escaped else "broken CSV" if fields is None else fields


def _closing(
    content: str, ahead: deque[tuple[Line, str | Row]], source: Iterator[tuple[Line, str | Row]], longest: int
) -> tuple[str | None, int]:
    """Join following lines until the quotes are even: (record, lines taken); (None, 0) where they never are."""
    parts, quotes, size = [content], content.count('"'), len(content)
    taken = 0
    while quotes % 2 and size < min(longest, _LONGEST_LINE // 4):
        if taken == len(ahead):
            read = next(source, None)
            if read is None:
                break
            ahead.append(read)
        following, part = ahead[taken]
        if isinstance(part, Row):
            break
        taken += 1
        parts.append(part + following.end)
        quotes += part.count('"')
        size += len(part)
    return ("".join(parts).rstrip("\r\n"), taken) if taken and quotes % 2 == 0 else (None, 0)


def _csv_fields(record: str) -> list[str] | None:
    try:
        records = list(csv.reader([record], strict=True))
    except csv.Error:
        return None
    return records[0] if len(records) == 1 else None
