"""Collections of Chroma, on a server or in a folder: "text" is the document, other columns are the metadata's."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from distilvec.extras import need
from distilvec.teachers.databases.address import TableAddress
from distilvec.teachers.databases.opening import PAGE, Page, Pages, check_folder, check_table


@contextmanager
def connect(address: TableAddress) -> Iterator[Pages]:
    """Connect, and look whether there is such a collection."""
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
        check_folder(address, "chroma.sqlite3")
        client = chromadb.PersistentClient(os.path.expanduser(address.place), settings=settings)
    with client:
        check_table(address, (each.name for each in client.list_collections()))
        # Without the function that embeds: nothing is embedded here, and it may need a key or a model.
        yield partial(_pages, client.get_collection(address.table, embedding_function=None))


def _pages(collection: Any, _: Sequence[str] | None) -> Generator[Page]:
    for offset in count(0, PAGE):
        found = collection.get(limit=PAGE, offset=offset, include=["embeddings", "documents", "metadatas"])
        if not found["ids"]:
            return
        columns = (found[name] for name in ("ids", "embeddings", "documents", "metadatas"))
        yield [
            {**(fields or {}), "id": identity, "embedding": vector} | ({} if document is None else {"text": document})
            for identity, vector, document, fields in zip(*columns, strict=True)
        ]
