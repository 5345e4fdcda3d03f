"""Tables and views of a SQLite file: vectors are numbers packed as float32 or float64, or texts."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.errors import DataError
from distilvec.teachers.databases.address import TableAddress
from distilvec.teachers.databases.opening import PAGE, Page, Pages, check_table
from distilvec.teachers.embeddings import scattered


@contextmanager
def connect(address: TableAddress) -> Iterator[Pages]:
    """Open the file for reading, as it is now whatever is written later, and look whether it has such a table."""
    file = Path(address.place).expanduser()
    if not file.is_file():
        raise DataError("there is no such file", where=address.where, remedy="Is it the database's file?")
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        connection.execute("BEGIN")
        found = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        check_table(address, (name for (name,) in found))
        yield partial(_pages, connection, address.table)


def _pages(connection: sqlite3.Connection, table: str, columns: Sequence[str] | None) -> Generator[Page]:
    wanted = "*" if columns is None else ", ".join(map(_quoted, columns))
    cursor = connection.execute(f"SELECT {wanted} FROM {_quoted(table)}")
    names = [name for name, *_ in cursor.description]
    kinds: list[str | None] = [None] * len(names)
    while page := cursor.fetchmany(PAGE):
        kinds = [kind or _kind(column) for kind, column in zip(kinds, zip(*page, strict=True), strict=True)]
        yield [{name: _value(*each) for name, *each in zip(names, row, kinds, strict=True)} for row in page]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _kind(cells: Sequence[Any]) -> str | None:
    """The type of the packed numbers of a column, in which most have numbers of like sizes; None where neither fits."""
    packed = [cell for cell in cells if isinstance(cell, bytes) and cell]

    def alike(kind: str) -> int:
        read = [np.frombuffer(cell, kind) for cell in packed if len(cell) % np.dtype(kind).itemsize == 0]
        return sum(bool(np.isnan(each).all() or np.isfinite(each).all()) and not scattered(each) for each in read)

    found = max("<f4", "<f8", key=alike)
    return found if 2 * alike(found) > len(packed) else None


def _value(cell: Any, kind: str | None) -> Any:
    packed = isinstance(cell, bytes) and cell and kind is not None and len(cell) % int(kind[-1]) == 0
    return np.frombuffer(cell, kind) if packed else cell
