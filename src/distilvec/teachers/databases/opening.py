"""The databases that vectors are read from: for each, how it is opened, and how a table of it is read in pages."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from distilvec.errors import DataError, DistilvecError, EnvironmentProblem, nearest
from distilvec.extras import need
from distilvec.teachers.databases.address import TableAddress
from distilvec.teachers.embeddings import scattered
from distilvec.teachers.vector_tables import is_vectors

#: Rows that are held at once.
PAGE = 1000
Page = list[dict[str, Any]]
#: From the columns that are wanted (others may come along, None = all) to pages of rows, column -> value. The key of a
#: row is the column "id".
Pages = Callable[[Sequence[str] | None], Generator[Page]]


@contextmanager
def opened(address: TableAddress) -> Iterator[Callable[[Sequence[str] | None], Generator[dict[str, Any]]]]:
    """Connect to a database; yields a function from columns (None = all) to the rows of the table."""
    with ExitStack() as stack:
        with _client_errors(address):
            pages = stack.enter_context(_KINDS[address.kind].connect(address))

        def rows(columns: Sequence[str] | None) -> Generator[dict[str, Any]]:
            with _client_errors(address), closing(pages(columns)) as found:
                for page in found:
                    yield from page

        yield rows


@contextmanager
def _client_errors(address: TableAddress) -> Iterator[None]:
    """Turn what a client raises into one line: each has classes of its own, and lets those of its libraries through."""
    try:
        yield
    except DistilvecError:
        raise
    except Exception as error:
        told = " ".join(str(error).split())[:300] or type(error).__name__
        raise EnvironmentProblem(
            f"the database cannot be read: {told}", where=address.where, remedy=_KINDS[address.kind].remedy
        ) from error


def _check_folder(address: TableAddress, holds: str) -> None:
    """Refuse a folder without a database (a file like `holds`) in it, because clients make one where there is none."""
    folder = Path(address.place).expanduser()
    if not any(folder.glob(holds)):
        told = f"there is no {holds} in this folder" if folder.is_dir() else "there is no such folder"
        raise DataError(told, where=address.where, remedy="Is it the folder that the database is kept in?")


def _check_table(address: TableAddress, known: Iterable[str]) -> None:
    names = sorted(known)
    if address.table not in names:
        remedy = nearest(address.table, names) if names else "The database has no tables."
        raise DataError(f'there is no table or collection "{address.table}"', where=address.where, remedy=remedy)


# PostgreSQL: columns of pgvector's types, which arrive as text, or arrays of numbers

_TABLES = "SELECT table_name FROM information_schema.tables WHERE table_schema = ANY(current_schemas(false))"


@contextmanager
def _postgres(address: TableAddress) -> Iterator[Pages]:
    """Find the table; "schema.table" names one outside of the search path."""
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
            _check_table(address, (name for (name,) in connection.execute(_TABLES)))
        yield partial(_postgres_pages, connection, table)


def _postgres_pages(connection: Any, table: Any, columns: Sequence[str] | None) -> Generator[Page]:
    """Pages of one query, whose rows stay with the server until they are asked for: all are of one moment."""
    from psycopg import sql
    from psycopg.rows import dict_row

    wanted = sql.SQL("*") if columns is None else sql.SQL(", ").join(map(sql.Identifier, columns))
    with connection.cursor("distilvec", row_factory=dict_row) as cursor:
        cursor.execute(sql.SQL("SELECT {} FROM {}").format(wanted, table))
        while page := cursor.fetchmany(PAGE):
            yield page


# Qdrant, on a server or in a folder: the columns are the payload's fields and the named vectors


@contextmanager
def _qdrant(address: TableAddress) -> Iterator[Pages]:
    need("Reading Qdrant", "qdrant", "qdrant_client")
    from qdrant_client import QdrantClient

    if address.is_url:
        # Without a word on compatibility: asking for it prints a warning of its own if the server is down.
        given: dict[str, Any] = {"url": address.place, "api_key": os.environ.get("QDRANT_API_KEY")}
        client = QdrantClient(**given, check_compatibility=False, timeout=60)
    else:
        _check_folder(address, "meta.json")
        client = QdrantClient(path=os.path.expanduser(address.place))
    with closing(client):
        _check_table(address, (each.name for each in client.get_collections().collections))
        yield partial(_qdrant_pages, client, address.table)


def _qdrant_pages(client: Any, collection: str, columns: Sequence[str] | None) -> Generator[Page]:
    """Pages in the order of the ids; the vector of a collection without named ones is the column "vector"."""
    named = client.get_collection(collection).config.params.vectors
    vectors = [each for each in columns or () if isinstance(named, dict) and each in named] or True
    payload, offset = True if columns is None else list(columns), None
    while True:
        records, offset = client.scroll(
            collection, limit=PAGE, offset=offset, with_payload=payload, with_vectors=vectors
        )
        yield [
            {
                **(each.payload or {}),
                **(each.vector if isinstance(each.vector, dict) else {"vector": each.vector}),
                "id": each.id,
            }
            for each in records
        ]
        if offset is None:
            return


# Chroma, on a server or in a folder: "text" is the document, other columns are the metadata's


@contextmanager
def _chroma(address: TableAddress) -> Iterator[Pages]:
    need("Reading Chroma", "chroma", "chromadb")
    import chromadb
    from chromadb.config import Settings

    settings = Settings(anonymized_telemetry=False)
    if address.is_url:
        url = urlsplit(address.place)
        secure = url.scheme == "https"
        port = url.port or (443 if secure else 8000)
        client = chromadb.HttpClient(url.hostname or "localhost", port, ssl=secure, settings=settings)
    else:
        _check_folder(address, "chroma.sqlite3")
        client = chromadb.PersistentClient(os.path.expanduser(address.place), settings=settings)
    with client:
        _check_table(address, (each.name for each in client.list_collections()))
        # Without the function that embeds: nothing is embedded here, and it may need a key or a model.
        yield partial(_chroma_pages, client.get_collection(address.table, embedding_function=None))


def _chroma_pages(collection: Any, _: Sequence[str] | None) -> Generator[Page]:
    for offset in count(0, PAGE):
        found = collection.get(limit=PAGE, offset=offset, include=["embeddings", "documents", "metadatas"])
        if not found["ids"]:
            return
        columns = (found[name] for name in ("ids", "embeddings", "documents", "metadatas"))
        yield [
            {**(fields or {}), "id": identity, "embedding": vector} | ({} if document is None else {"text": document})
            for identity, vector, document, fields in zip(*columns, strict=True)
        ]


# LanceDB, in a folder or a bucket


@contextmanager
def _lance(address: TableAddress) -> Iterator[Pages]:
    """Open the version of the table that there is now, which stays the same whatever is written later."""
    need("Reading LanceDB", "lancedb", "lancedb")
    import lancedb

    if not address.is_url:
        _check_folder(address, "*.lance")
    database = lancedb.connect(os.path.expanduser(address.place))
    _check_table(address, _lance_names(database))
    yield partial(_lance_pages, database.open_table(address.table))


def _lance_names(database: Any) -> Iterator[str]:
    token = None
    while True:
        found = database.list_tables(page_token=token)
        yield from found.tables
        token = found.page_token
        if not token:
            return


def _lance_pages(table: Any, columns: Sequence[str] | None) -> Generator[Page]:
    query = table.search()
    for batch in (query if columns is None else query.select(list(columns))).to_batches(batch_size=PAGE):
        # Lists of numbers as arrays, because millions of Python's numbers take minutes.
        cells = [
            column.to_numpy(zero_copy_only=False) if is_vectors(column.type) else column.to_pylist()
            for column in batch.columns
        ]
        yield [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*cells, strict=True)]


# SQLite, tables and views of a file: vectors are numbers packed as float32 or float64, or texts


@contextmanager
def _sqlite(address: TableAddress) -> Iterator[Pages]:
    """Open the file for reading, as it is now whatever is written later."""
    file = Path(address.place).expanduser()
    if not file.is_file():
        raise DataError("there is no such file", where=address.where, remedy="Is it the database's file?")
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        connection.execute("BEGIN")
        found = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        _check_table(address, (name for (name,) in found))
        yield partial(_sqlite_pages, connection, address.table)


def _sqlite_pages(connection: sqlite3.Connection, table: str, columns: Sequence[str] | None) -> Generator[Page]:
    wanted = "*" if columns is None else ", ".join(map(_quoted, columns))
    cursor = connection.execute(f"SELECT {wanted} FROM {_quoted(table)}")
    names = [name for name, *_ in cursor.description]
    kinds: list[str | None] = [None] * len(names)
    while page := cursor.fetchmany(PAGE):
        kinds = [kind or _packed_as(column) for kind, column in zip(kinds, zip(*page, strict=True), strict=True)]
        yield [{name: _unpacked(*each) for name, *each in zip(names, row, kinds, strict=True)} for row in page]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _packed_as(cells: Sequence[Any]) -> str | None:
    """The type of the packed numbers of a column, in which most have numbers of like sizes; None where neither fits."""
    packed = [cell for cell in cells if isinstance(cell, bytes) and cell]

    def alike(kind: str) -> int:
        read = [np.frombuffer(cell, kind) for cell in packed if len(cell) % np.dtype(kind).itemsize == 0]
        return sum(bool(np.isnan(each).all() or np.isfinite(each).all()) and not scattered(each) for each in read)

    found = max("<f4", "<f8", key=alike)
    return found if 2 * alike(found) > len(packed) else None


def _unpacked(cell: Any, kind: str | None) -> Any:
    packed = isinstance(cell, bytes) and cell and kind is not None and len(cell) % int(kind[-1]) == 0
    return np.frombuffer(cell, kind) if packed else cell


class _Database(NamedTuple):
    """The opening of a kind, and what to do if that fails."""

    connect: Callable[[TableAddress], AbstractContextManager[Pages]]
    remedy: str


_KINDS = {
    "postgresql": _Database(
        _postgres,
        "Check that it runs, the host, the port and the user; a password is read from PGPASSWORD or ~/.pgpass.",
    ),
    "qdrant": _Database(_qdrant, "Check that it runs, and its address; a key is read from QDRANT_API_KEY."),
    "chroma": _Database(_chroma, "Check that it runs, and its address."),
    "lancedb": _Database(_lance, "Check the folder, or the address of the bucket."),
    "sqlite": _Database(
        _sqlite, "Is it a database of SQLite? A virtual table of an extension has to be copied into a plain one."
    ),
}
