"""Databases that tests fill: those whose clients are installed, a PostgreSQL of their own, and SQLite."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

#: id, text, body, vector and other of a row; None = it has none.
Rows = Sequence[Mapping[str, Any]]


def fill_sqlite(folder: Path, rows: Rows) -> str:
    """Vectors as packed float32, those of the column "other" as texts."""
    file = folder / "rows.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("DROP TABLE IF EXISTS docs")
        connection.execute("CREATE TABLE docs (id INTEGER, text TEXT, body TEXT, vector BLOB, other TEXT)")
        for row in rows:
            vector, other = row.get("vector"), row.get("other")
            packed = None if vector is None else np.asarray(vector, np.float32).tobytes()
            cells = [row["id"], row["text"], row["body"], packed, None if other is None else str(other)]
            connection.execute("INSERT INTO docs VALUES (?, ?, ?, ?, ?)", cells)
    return f"sqlite:{file}#docs"


def fill_lancedb(folder: Path, rows: Rows) -> str:
    import lancedb
    import pyarrow as pa

    types = {"id": pa.int64(), "text": pa.string(), "body": pa.string()}
    schema = pa.schema([(key, types.get(key, pa.list_(pa.float32()))) for key in rows[0]])
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    lancedb.connect(folder).create_table("docs", table, mode="overwrite", on_bad_vectors="null")
    return f"lancedb:{folder}#docs"


def fill_chroma(folder: Path, rows: Rows) -> str:
    import chromadb

    with chromadb.PersistentClient(folder, settings=chromadb.config.Settings(anonymized_telemetry=False)) as client:
        if "docs" in [each.name for each in client.list_collections()]:
            client.delete_collection("docs")
        collection = client.create_collection("docs", embedding_function=None)
        for start in range(0, len(rows), 1000):
            part = rows[start : start + 1000]
            collection.add(
                ids=[str(row["id"]) for row in part],
                embeddings=[row["vector"] for row in part],
                documents=[row["text"] for row in part],
                metadatas=[{"body": row["body"]} for row in part],
            )
    return f"chroma:{folder}#docs"


def fill_qdrant(folder: Path, rows: Rows) -> str:
    from qdrant_client import QdrantClient, models

    names = [name for name in rows[0] if name in ("vector", "other")]
    widths = {name: next(len(row[name]) for row in rows if row[name]) for name in names}
    sizes = {name: models.VectorParams(size=each, distance=models.Distance.DOT) for name, each in widths.items()}
    client = QdrantClient(path=str(folder))
    client.delete_collection("docs")
    client.create_collection("docs", sizes)
    points = [
        models.PointStruct(
            id=row["id"],
            vector={name: row[name] for name in names if row[name] is not None},
            payload={key: row[key] for key in ("text", "body") if row[key] is not None},
        )
        for row in rows
    ]
    client.upsert("docs", points)
    client.close()
    return f"qdrant:{folder}#docs"


def fill_postgres(folder: Path, rows: Rows, kind: str = "real[]") -> str:
    import psycopg
    from psycopg import sql

    url = f"postgresql://tester@/postgres?host={postgres()}"
    table = sql.Identifier(folder.name)
    types = {"id": "bigint", "text": "text", "body": "text"}
    columns = ", ".join(f"{key} {types.get(key, kind)}" for key in rows[0])
    # A vector of pgvector is written as a text; its column keeps the type from being looked up for every value.
    made = [{key: str(v) if kind != "real[]" and isinstance(v, list) else v for key, v in row.items()} for row in rows]
    with psycopg.connect(url) as connection:
        if kind != "real[]":
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
        connection.execute(sql.SQL(f"CREATE TABLE {{}} ({columns})").format(table))
        insert = sql.SQL("INSERT INTO {} VALUES ({})").format(table, sql.SQL(", ").join(map(sql.Placeholder, rows[0])))
        connection.cursor().executemany(insert, made)
    return f"{url}#{folder.name}"


def fill_pgvector(folder: Path, rows: Rows) -> str:
    import psycopg

    with psycopg.connect(f"postgresql://tester@/postgres?host={postgres()}") as connection:
        if connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone() is None:
            pytest.skip("this PostgreSQL has no pgvector")
    return fill_postgres(folder, rows, "vector")


def postgres_programs() -> Path:
    """The folder with initdb and pg_ctl: of the package pgserver, which has pgvector, or of the system."""
    found = find_spec("pgserver")
    folders = [Path(str(found.origin)).parent / "pginstall/bin"] if found else []
    folders += [Path(os.path.realpath(shutil.which("postgres") or "/")).parent]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    usable = [folder for folder in folders if (folder / "initdb").exists() and (folder / "pg_ctl").exists()]
    if not usable:
        pytest.skip("PostgreSQL is not installed")
    return usable[0]


@cache
def postgres() -> Path:
    """Start a server in a temporary folder, on a socket in it, if it does not run yet; the folder."""
    folder, programs = Path(tempfile.mkdtemp(prefix="distilvec-pg-", dir="/tmp")), postgres_programs()
    # PostgreSQL refuses to run as root.
    other: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
    if other:
        shutil.chown(folder, "nobody", "nogroup")

    def run(program: str, *options: str) -> None:
        command = [programs / program, "-D", folder / "data", *options]
        subprocess.run(command, check=True, timeout=120, cwd="/", stdout=subprocess.DEVNULL, **other)

    run("initdb", "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync")
    run("pg_ctl", "-w", "-l", f"{folder}/log", "-o", f"-k {folder} -c listen_addresses= -c fsync=off", "start")
    SERVERS.append(lambda: (run("pg_ctl", "-m", "immediate", "stop"), shutil.rmtree(folder)))
    return folder


#: What stops the server, once it runs.
SERVERS: list[Callable[[], Any]] = []
#: Name -> the module of its client, and what makes its table "docs" anew from rows and returns its address.
KINDS: dict[str, tuple[str, Callable[[Path, Rows], str]]] = {
    "sqlite": ("sqlite3", fill_sqlite),
    "lancedb": ("lancedb", fill_lancedb),
    "chroma": ("chromadb", fill_chroma),
    "qdrant": ("qdrant_client", fill_qdrant),
    "postgres": ("psycopg", fill_postgres),
    "pgvector": ("psycopg", fill_pgvector),
}
