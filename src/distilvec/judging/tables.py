"""Small evaluation files as tables whose errors name file, line and column."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilvec.corpus.opening import opened
from distilvec.errors import DataError, nearest

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".txt", ".parquet")
COMPRESSED = (".gz", ".zst")


@dataclass(frozen=True)
class Table:
    """Rows of one file (or of a list of mappings), each with its line for error messages.

    Attributes:
        source: file name, or "rows" for values from Python.
        rows: column -> value.
        lines: 1-based line of each row; for parquet and Python values the row number.
        unit: what `lines` counts, "line" or "row".
    """

    source: str
    rows: list[Mapping[str, Any]]
    lines: list[int]
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.rows)

    def texts(self, column: str) -> list[str]:
        """Non-empty strings."""
        return self._column(column, _text)

    def labels(self, column: str) -> list[str]:
        """Class names; 1, 1.0 and "1" are one class."""
        return self._column(column, _label)

    def numbers(self, column: str) -> list[float]:
        """Finite numbers."""
        return self._column(column, _number)

    def has(self, column: str) -> bool:
        """Whether the first row has the column."""
        return column in self.rows[0]

    def where(self, row: int, column: str) -> str:
        """Place of one value, for messages."""
        return f"{self.source}, {self.unit} {self.lines[row]}, column {column}"

    def _column(self, column: str, convert: Callable[[Any], Any]) -> list[Any]:
        values = []
        for position, row in enumerate(self.rows):
            if column not in row:
                raise DataError(
                    "this column is missing", where=self.where(position, column), remedy=nearest(column, row)
                )
            try:
                values.append(convert(row[column]))
            except ValueError as error:
                raise DataError(str(error), where=self.where(position, column)) from error
        return values


def read_table(source: str | Path | Sequence[Mapping[str, Any]]) -> Table:
    """Read .jsonl, .json (a list of objects), .csv, .tsv (also .gz, .zst) or .parquet, or take rows from
    Python. The lines of a .txt are the column `text`.

    Raises:
        DataError: the file is missing, empty, of an unknown kind, or broken; with the line.
        EnvironmentProblem: .zst without zstandard.
    """
    if not isinstance(source, str | Path):
        table = Table("rows", list(source), list(range(1, len(source) + 1)), "row")
    else:
        path = Path(source)
        if not path.is_file():
            raise DataError("there is no such file", where=str(path), remedy=_neighbour(path))
        table = _read_file(path)
    if not table.rows:
        raise DataError("there are no rows", where=table.source)
    for position, row in enumerate(table.rows):
        if not isinstance(row, Mapping):
            place = f"{table.source}, {table.unit} {table.lines[position]}"
            raise DataError(f"a row is a mapping from column to value, not {type(row).__name__}", where=place)
    return table


def _read_file(path: Path) -> Table:
    kind = Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix
    if kind not in SUFFIXES or (kind == ".parquet" and path.suffix != kind):
        known = ", ".join(SUFFIXES)
        raise DataError(f'files of kind "{path.suffix}" are not read', where=str(path), remedy=f"Known: {known}.")
    if kind == ".parquet":
        return _parquet(path)
    try:
        content = _bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"this is not UTF-8 ({error})", where=str(path)) from error
    if kind == ".txt":
        lines = [(number, line.strip()) for number, line in enumerate(content.splitlines(), 1) if line.strip()]
        return Table(str(path), [{"text": line} for _, line in lines], [number for number, _ in lines])
    if kind == ".jsonl":
        return _filled(path, _jsonl(path, content))
    if kind == ".json":
        return _json(path, content)
    return _filled(path, _separated(path, content, "\t" if kind == ".tsv" else ","))


def _bytes(path: Path) -> bytes:
    with opened(path) as source:
        return source.read()


def _filled(path: Path, numbered: Iterator[tuple[int, Mapping[str, Any]]]) -> Table:
    pairs = list(numbered)
    return Table(str(path), [row for _, row in pairs], [line for line, _ in pairs])


def _jsonl(path: Path, content: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    # Not splitlines(): JSON strings may hold U+2028 and its like unescaped.
    for line, text in enumerate(content.split("\n"), start=1):
        if text.strip():
            try:
                yield line, json.loads(text)
            except (ValueError, RecursionError) as error:
                raise DataError(f"this is not JSON ({_problem(error)})", where=f"{path}, line {line}") from error


def _problem(error: Exception) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error)


def _json(path: Path, content: str) -> Table:
    try:
        rows = json.loads(content)
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError(f"this is not JSON ({_problem(error)})", where=f"{path}{line}") from error
    if not isinstance(rows, list):
        raise DataError("a JSON file holds a list of objects", where=str(path), remedy="For one object a line: .jsonl.")
    return Table(str(path), rows, list(range(1, len(rows) + 1)), "row")


def _separated(path: Path, content: str, delimiter: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    csv.field_size_limit(2**31 - 1)
    source = io.StringIO(content, newline="")
    if delimiter == ",":
        reader = csv.reader(source, strict=True)
    else:  # quotes are plain characters in TSV
        reader = csv.reader(source, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    header: list[str] = []
    line = 1
    try:
        for fields in reader:
            start, line = line, reader.line_num + 1
            if not fields:
                continue
            if not header:
                header = fields
                continue
            if len(fields) != len(header):
                raise DataError(
                    f"{len(fields)} fields, but the header has {len(header)}", where=f"{path}, line {start}"
                )
            yield start, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise DataError(f"this is not valid ({error})", where=f"{path}, line {line}") from error


def _parquet(path: Path) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"the parquet file cannot be read ({error})", where=str(path)) from error
    return Table(str(path), rows, list(range(1, len(rows) + 1)), "row")


def _neighbour(path: Path) -> str | None:
    if not path.parent.is_dir():
        return f"There is no folder {path.parent} either."
    names = [entry.name for entry in path.parent.iterdir() if entry.is_file()][:1000]
    hint = nearest(path.name, names)
    return hint if hint.startswith("Did") else None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a text was expected, not {value!r}")
    if not value.strip():
        raise ValueError("the text is empty")
    return value


def _label(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if value is None or value == "" or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"a label was expected, not {value!r}")
    if not isinstance(value, str | int | float):
        raise ValueError(f"a label is a word or a number, not {type(value).__name__}")
    return str(int(value)) if isinstance(value, bool) else str(value)


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"a number was expected, not {value!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"a finite number was expected, not {value!r}")
    return number
