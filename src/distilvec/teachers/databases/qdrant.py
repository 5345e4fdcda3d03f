"""Collections of Qdrant, on a server or in a folder: the columns are the payload's fields and the named vectors."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from distilvec.extras import need
from distilvec.teachers.databases.address import TableAddress
from distilvec.teachers.databases.opening import PAGE, Page, Pages, check_folder, check_table


@contextmanager
def connect(address: TableAddress) -> Iterator[Pages]:
    """Connect, and look whether there is such a collection."""
    need("Reading Qdrant", "qdrant", "qdrant_client")
    from qdrant_client import QdrantClient

    if address.is_url:
        # Without a word on compatibility: asking for it prints a warning of its own if the server is down.
        given: dict[str, Any] = {"url": address.place, "api_key": os.environ.get("QDRANT_API_KEY")}
        client = QdrantClient(**given, check_compatibility=False, timeout=60)
    else:
        check_folder(address, "meta.json")
        client = QdrantClient(path=os.path.expanduser(address.place))
    with closing(client):
        check_table(address, (each.name for each in client.get_collections().collections))
        yield partial(_pages, client, address.table)


def _pages(client: Any, collection: str, columns: Sequence[str] | None) -> Generator[Page]:
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
