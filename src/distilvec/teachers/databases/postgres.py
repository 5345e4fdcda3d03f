"""Tables of PostgreSQL: columns of pgvector's types, which arrive as text, or arrays of numbers."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from distilvec.extras import need
from distilvec.teachers.databases.address import TableAddress
from distilvec.teachers.databases.opening import PAGE, Page, Pages, check_table

_TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = ANY(current_schemas(false))"


@contextmanager
def connect(address: TableAddress) -> Iterator[Pages]:
    """Connect, and look whether there is such a table; "schema.table" names one outside of the search path."""
    need("Reading PostgreSQL", "pgvector", "psycopg")
    import psycopg
    from psycopg import sql
    from psycopg.conninfo import conninfo_to_dict

    given: dict[str, Any] = {"connect_timeout": 10, **conninfo_to_dict(address.place)}
    with psycopg.connect(**given) as connection:
        connection.read_only = True
        table = sql.Identifier(*address.table.split(".", 1))
        found = connection.execute("SELECT to_regclass(%s)", [table.as_string(connection)]).fetchone()
        if found is None or found[0] is None:
            check_table(address, (name for (name,) in connection.execute(_TABLES)))
        yield partial(_pages, connection, table)


def _pages(connection: Any, table: Any, columns: Sequence[str] | None) -> Generator[Page]:
    """Pages of one query, whose rows stay with the server until they are asked for: all are of one moment."""
    from psycopg import sql
    from psycopg.rows import dict_row

    wanted = sql.SQL("*") if columns is None else sql.SQL(", ").join(map(sql.Identifier, columns))
    with connection.cursor("distilvec", row_factory=dict_row) as cursor:
        cursor.execute(sql.SQL("SELECT {} FROM {}").format(wanted, table))
        while page := cursor.fetchmany(PAGE):
            yield page
