"""Tables of LanceDB, in a folder or a bucket."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from distilvec.extras import need
from distilvec.teachers.databases.address import TableAddress
from distilvec.teachers.databases.opening import PAGE, Page, Pages, check_folder, check_table
from distilvec.teachers.vector_tables import is_vectors


@contextmanager
def connect(address: TableAddress) -> Iterator[Pages]:
    """Open the version of the table that there is now, which stays the same whatever is written later."""
    need("Reading LanceDB", "lancedb", "lancedb")
    import lancedb

    if not address.is_url:
        check_folder(address, "*.lance")
    database = lancedb.connect(os.path.expanduser(address.place))
    check_table(address, _names(database))
    yield partial(_pages, database.open_table(address.table))


def _names(database: Any) -> Iterator[str]:
    token = None
    while True:
        found = database.list_tables(page_token=token)
        yield from found.tables
        token = found.page_token
        if not token:
            return


def _pages(table: Any, columns: Sequence[str] | None) -> Generator[Page]:
    query = table.search()
    for batch in (query if columns is None else query.select(list(columns))).to_batches(batch_size=PAGE):
        cells = [_cells(column) for column in batch.columns]
        yield [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*cells, strict=True)]


def _cells(column: Any) -> Sequence[Any]:
    """The values of a column; lists of numbers as arrays, because millions of Python's numbers take minutes."""
    return column.to_numpy(zero_copy_only=False) if is_vectors(column.type) else column.to_pylist()
