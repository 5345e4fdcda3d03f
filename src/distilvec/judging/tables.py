"""Small evaluation files as tables whose errors name file, line and column."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.corpus.keys import is_blank
from distilvec.corpus.readers import file_kind, read_file
from distilvec.corpus.rows import excerpt
from distilvec.errors import DataError, nearest

_LONGEST = 1 << 20  # characters of a text


@dataclass(frozen=True)
class TaskTable:
    """Rows of one file (or of a list of mappings), each with its line for error messages.

    Attributes:
        source: file name; of values from Python what they are, as in "rows".
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

    def texts(self, column: str, before: str | None = None) -> list[str]:
        """Non-empty strings; where there is a column `before`, what it holds, a space, and the text: either will do."""
        if before is None or not any(row.get(before) for row in self.rows):
            return self._column(column, _text)
        joined = [
            {**row, column: f"{row[before]} {row.get(column) or ''}".strip()} if row.get(before) else row
            for row in self.rows
        ]
        return replace(self, rows=joined).texts(column)

    def labels(self, column: str) -> list[str]:
        """Class names; 1, 1.0 and "1" are one class."""
        return self._column(column, _label)

    def numbers(self, column: str) -> list[float]:
        """Finite numbers."""
        return self._column(column, _number)

    def has(self, column: str) -> bool:
        """Tell whether the first row has the column."""
        return column in self.rows[0]

    def take(self, rows: Iterable[int]) -> TaskTable:
        """The same with some of the rows, by position."""
        chosen = list(rows)
        return replace(self, rows=[self.rows[row] for row in chosen], lines=[self.lines[row] for row in chosen])

    def where(self, row: int, column: str) -> str:
        return f"{self.source}, {self.unit} {self.lines[row]}, column {column}"

    def _column(self, column: str, convert: Callable[[Any], Any]) -> list[Any]:
        values = []
        for position, row in enumerate(self.rows):
            where = self.where(position, column)
            if column not in row:
                raise DataError("this column is missing", where=where, remedy=nearest(column, row))
            try:
                values.append(convert(row[column]))
            except ValueError as error:
                raise DataError(str(error), where=where) from error
        return values


def read_table(source: str | Path | Sequence[Mapping[str, Any]], name: str = "rows") -> TaskTable:
    """Read a file of a kind that corpora have (`distilvec.corpus.readers`), or take rows from Python, under a name.

    Lines of a .txt are the column `text`. Nothing may be broken here: what a corpus leaves out is an error.

    Raises:
        DataError: the file is missing, empty or broken; with the line.
        DistilvecError: a kind of file that is not read.
    """
    if not isinstance(source, str | Path):
        table = TaskTable(name, list(source), list(range(1, len(source) + 1)), "row")
    else:
        table = _read_file(Path(source))
    if not table.rows:
        raise DataError("there are no rows", where=table.source)
    for position, row in enumerate(table.rows):
        if not isinstance(row, Mapping):
            place = f"{table.source}, {table.unit} {table.lines[position]}"
            raise DataError(f"a row is a mapping from column to value, not {type(row).__name__}", where=place)
    return table


def _read_file(path: Path) -> TaskTable:
    kind = file_kind(path)
    table = TaskTable(str(path), [], [], "row" if kind in (".json", ".parquet") else "line")
    for row in read_file(path, None, _LONGEST):
        value = {"text": row.value.strip()} if kind == ".txt" and row.fault is None else row.value
        if row.fault == "empty" or (kind == ".txt" and row.fault is None and is_blank(row.value)):
            continue
        if row.fault is not None:
            raise DataError(f"{row.fault} ({row.value})", where=f"{path}, {table.unit} {row.line}")
        table.rows.append(value)
        table.lines.append(row.line)
    return table


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a text was expected, not {_shown(value)}")
    if is_blank(value):
        raise ValueError("the text is empty")
    if re.search("[\ud800-\udfff]", value):
        raise ValueError("the text holds half a character")
    return value


def _shown(value: Any) -> str:
    return repr(excerpt(value)) if isinstance(value, str) else excerpt(value)


def _label(value: Any) -> str:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if value is None or value == "" or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"a label was expected, not {_shown(value)}")
    if not isinstance(value, str | int | float):
        raise ValueError(f"a label is a word or a number, not {type(value).__name__}")
    return str(int(value)) if isinstance(value, bool) else str(value)


def _number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"a number was expected, not {_shown(value)}") from None
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"a finite number was expected, not {_shown(value)}")
    return number
