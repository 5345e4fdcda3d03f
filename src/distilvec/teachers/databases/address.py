"""The address of a table of vectors in a database: KIND:PLACE#TABLE, or KIND:PLACE#TABLE:COLUMN."""

from __future__ import annotations

import re
from typing import NamedTuple

from distilvec.errors import DistilvecError

_ADDRESS = re.compile(r"(postgresql|postgres|qdrant|chroma|lancedb|sqlite):(.*)", re.DOTALL)
#: Of another kind; a letter alone is a drive.
_OTHER = re.compile(r"([A-Za-z]\w+(?:\+\w+)?):.*#", re.DOTALL)
#: What follows the user's name up to the "@"; digits alone after a host are its port.
_PASSWORD = re.compile(r"(?<=://)([^:/?@]*):(?!\d[^@?]*(?:\?|$)).*@", re.DOTALL)
_SECRET = re.compile(r"([?&](?:\w*password|\w*token|api[-_]?key)=)[^&]*", re.IGNORECASE)


class TableAddress(NamedTuple):
    """A table in a database.

    Attributes:
        kind: postgresql, qdrant, chroma, lancedb or sqlite.
        place: a URL, a folder or a file.
        table: its name; a collection in Qdrant and Chroma.
        column: of the vectors; "" = the only one that holds any.
    """

    kind: str
    place: str
    table: str
    column: str

    @property
    def where(self) -> str:
        """The address without the column, for messages."""
        return f"{self.place if self.kind == 'postgresql' else f'{self.kind}:{self.place}'}#{self.table}"

    @property
    def is_url(self) -> bool:
        """Tell whether the place is a server or a bucket, not on the disk."""
        return "://" in self.place


def database_address(source: str) -> TableAddress | None:
    """The parts of an address; None if this is the name of a file.

    >>> database_address("qdrant:http://localhost:6333#docs:title")
    TableAddress(kind='qdrant', place='http://localhost:6333', table='docs', column='title')

    Raises:
        DistilvecError: it is of another kind of database, names no table, or holds a password, which would be written
            into recipes and stores.
    """
    found = _ADDRESS.fullmatch(source)
    if found is None and (other := _OTHER.match(source)):
        raise DistilvecError(
            f"vectors are not read from {other[1]}",
            where=source.partition(":")[0],  # the rest may hold a password
            remedy="Databases are postgresql, qdrant, chroma, lancedb and sqlite; write .jsonl or .parquet of others.",
        )
    if found is None:
        return None
    shown = _SECRET.sub(r"\1***", _PASSWORD.sub(r"\1:***@", source))
    if shown != source:
        raise DistilvecError(
            "the address holds a password, which recipes and stores would keep",
            where=shown,
            remedy="Leave it out: PostgreSQL reads PGPASSWORD or ~/.pgpass, Qdrant QDRANT_API_KEY.",
        )
    place, _, table = found[2].rpartition("#")
    table, _, column = table.partition(":")
    if not place or not table:
        raise DistilvecError(
            "the address names no table", where=source, remedy="Write ADDRESS#TABLE, or ADDRESS#TABLE:COLUMN."
        )
    if found[1].startswith("postgres"):
        return TableAddress("postgresql", f"{found[1]}:{place}", table, column)
    return TableAddress(found[1], place, table, column)


def folder_in(source: str) -> tuple[str, str, str] | None:
    """An address cut before and after the folder or file in it; None if it names none.

    >>> folder_in("chroma:index#docs"), folder_in("qdrant:http://localhost:6333#docs"), folder_in("v.parquet")
    (('chroma:', 'index', '#docs'), None, None)
    """
    found = _ADDRESS.fullmatch(source)
    if found is None or "://" in source or "#" not in source:
        return None
    folder, _, table = found[2].rpartition("#")
    return f"{found[1]}:", folder, f"#{table}"
