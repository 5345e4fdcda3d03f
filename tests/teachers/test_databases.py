"""Vectors in databases: found by text or by id, whatever order the rows have, and errors that say what to do."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.teachers import database_kinds
from tests.teachers.database_kinds import KINDS, Rows
from tests.training.starting import Starter

from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.recipe import Recipe
from distilvec.recipe.places import find_files
from distilvec.store import SignalStore, fill
from distilvec.teachers import load_teacher
from distilvec.teachers.databases import opening, reading
from distilvec.teachers.databases.address import database_address
from distilvec.teachers.vectors import VectorsTeacher

Fill = Callable[[Rows], str]
ROOT = Path(__file__).parents[2]


def rows_of(count: int, **without: Any) -> list[dict[str, Any]]:
    """Rows in no order of their ids or texts, of which those named by `without` lack a cell: `vector=[3]`."""
    numbers = np.random.default_rng(1).permutation(count).tolist()
    vectors = np.random.default_rng(2).normal(size=(count, 4)).astype(np.float32).tolist()
    rows = [{"id": n, "text": f"text {n}", "body": f"body {n}", "vector": vectors[n]} for n in numbers]
    return [{key: None if row["id"] in without.get(key, ()) else cell for key, cell in row.items()} for row in rows]


def vectors_of(rows: Rows) -> np.ndarray:
    """float32 [n, 4] in the order of the ids."""
    return np.array([row["vector"] for row in sorted(rows, key=lambda row: row["id"])], np.float32)


@pytest.fixture(params=KINDS)
def store_rows(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fill]:
    """Puts rows into a table of one kind of database, in place of those that are there; gives its address."""
    module, fill_table = KINDS[request.param]
    if find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    yield lambda rows: fill_table(tmp_path, rows)


@pytest.fixture(scope="module", autouse=True)
def _stop_servers() -> Iterator[None]:
    yield
    while database_kinds.SERVERS:
        database_kinds.SERVERS.pop()()


def kinds(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("store_rows", names, indirect=True)


@pytest.mark.parametrize("count", [19, 20, 40, 47])  # less than a page, whole pages, and some of a third
def test_vectors_are_found_by_text_over_several_pages(
    store_rows: Fill, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (opening, reading):
        monkeypatch.setattr(module, "PAGE", 20)
    rows = rows_of(count)
    teacher = load_teacher(vectors=store_rows(rows))
    assert len(teacher) == count
    texts = [f"text {number}" for number in range(count)]
    np.testing.assert_allclose(teacher.encode(texts), vectors_of(rows), atol=1e-6)
    assert teacher.has(["text 5", "body 5", "another"]).tolist() == [True, False, False]


def test_texts_of_another_column(store_rows: Fill) -> None:
    rows = rows_of(20)
    teacher = load_teacher(vectors=store_rows(rows), texts="body")
    np.testing.assert_allclose(teacher.encode(["body 3", "body 17"]), vectors_of(rows)[[3, 17]], atol=1e-6)
    assert not teacher.has(["text 3"])[0]


def test_texts_of_a_file_belong_to_ids(store_rows: Fill, tmp_path: Path) -> None:
    rows = rows_of(20)
    file = tmp_path / "texts.jsonl"  # an id as a number, one as a string, and one that the database does not know
    lines = [{"id": 3, "text": "three"}, {"id": "11", "text": "eleven"}, {"id": 99, "text": "ninety-nine"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    teacher = load_teacher(vectors=store_rows(rows), texts=str(file))
    np.testing.assert_allclose(teacher.encode(["eleven", "three"]), vectors_of(rows)[[11, 3]], atol=1e-6)
    assert len(teacher) == 2
    assert teacher.has(["ninety-nine", "text 3"]).tolist() == [False, False]


@kinds("sqlite", "lancedb", "qdrant", "postgres", "pgvector")  # Chroma takes no row without a vector
def test_rows_without_a_vector_or_a_text(store_rows: Fill, caplog: pytest.LogCaptureFixture) -> None:
    rows = rows_of(20, vector=[0, 5, 6], text=[7, 8])
    with caplog.at_level(logging.INFO):
        teacher = load_teacher(vectors=store_rows(rows))
    assert teacher.has([f"text {n}" for n in range(20)]).tolist() == [n not in (0, 5, 6, 7, 8) for n in range(20)]
    expected = next(row["vector"] for row in rows if row["id"] == 9)
    np.testing.assert_allclose(teacher.encode(["text 9"])[0], expected, atol=1e-6)
    assert "3 of 20 rows have no vector" in caplog.text
    assert "2 of 20 rows have no text and are left out" in caplog.text


def test_the_fingerprint_follows_the_content_not_the_order(store_rows: Fill) -> None:
    rows = [*rows_of(30), {"id": 30, "text": "text 3", "body": "twice", "vector": [9.0, 8.0, 7.0, 6.0]}]
    first = load_teacher(vectors=store_rows(rows))
    again = load_teacher(vectors=store_rows(rows[::-1]))
    assert again.card.fingerprint == first.card.fingerprint
    assert np.array_equal(again.encode(["text 3"]), first.encode(["text 3"]))
    rows[4] = rows[4] | {"vector": [1.0, 2.0, 3.0, 4.0]}
    assert load_teacher(vectors=store_rows(rows)).card.fingerprint != first.card.fingerprint


@kinds("sqlite", "lancedb", "qdrant", "postgres", "pgvector")
def test_the_column_of_vectors_is_named_behind_the_table(store_rows: Fill) -> None:
    rows = [row | {"other": row["vector"][:3]} for row in rows_of(20)]
    address = store_rows(rows)
    teacher = load_teacher(vectors=f"{address}:other")
    np.testing.assert_allclose(teacher.encode(["text 4"])[0], vectors_of(rows)[4, :3], atol=1e-6)
    with pytest.raises(DataError, match=r'no column "othr"\. Did you mean "other"\?'):
        load_teacher(vectors=f"{address}:othr")


def test_an_unknown_table_or_column_names_the_nearest(store_rows: Fill) -> None:
    address = store_rows(rows_of(3))
    with pytest.raises(DataError, match=r'no column "bodi" with the texts\. Did you mean "body"\?'):
        load_teacher(vectors=address, texts="bodi")
    table = address.rpartition("#")[2]
    with pytest.raises(DataError) as error:
        load_teacher(vectors=f"{address}z")
    assert f'there is no table or collection "{table}z". Did you mean "{table}"?' in str(error.value)
    assert "\n" not in str(error.value)


@kinds("sqlite", "postgres")  # the others refuse such rows themselves
def test_a_vector_of_another_width_is_named_by_its_row_and_id(store_rows: Fill) -> None:
    rows = rows_of(20)
    rows[6] = rows[6] | {"vector": [1.0, 2.0]}
    with pytest.raises(DataError) as error:
        load_teacher(vectors=store_rows(rows))
    told = f'id {rows[6]["id"]}: row 7 of "vector" has 2 numbers, the vectors before it have 4.'
    assert told in str(error.value)


@kinds("sqlite", "postgres")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_refused(store_rows: Fill, value: float) -> None:
    rows = rows_of(20)
    rows[6] = rows[6] | {"vector": [1.0, 2.0, value, 4.0]}
    with pytest.raises(DataError, match=f'the vector of "{rows[6]["text"]}" has values that are not finite'):
        load_teacher(vectors=store_rows(rows))


@kinds("sqlite")
def test_texts_that_fit_no_row_are_refused(store_rows: Fill, tmp_path: Path) -> None:
    address, file = store_rows(rows_of(5)), tmp_path / "texts.jsonl"
    for content, told in [
        ('{"id": 77, "text": "a"}\n', "none of the 5 rows has a text"),
        ('{"id": 1, "text": "a"}\n{"id": "1", "text": "b"}\n', 'line 2: the id "1" comes twice, with different texts'),
        ('{"text": "a"}\n', "line 1: this row has not both an id and a text"),
    ]:
        file.write_text(content)
        with pytest.raises(DataError, match=told):
            load_teacher(vectors=address, texts=str(file))
    with pytest.raises(DistilvecError, match="rows of a database have no order"):
        VectorsTeacher(address, texts=["a", "b", "c", "d", "e"])
    with pytest.raises(DistilvecError, match="a database is read with texts, not with keys"):
        VectorsTeacher(address, keys=np.zeros((5, 16), np.uint8))
    with pytest.raises(DataError, match="there are no rows"):
        load_teacher(vectors=store_rows([]))


FILL = """
import sys
from tests.teachers.test_databases import filled
filled(*sys.argv[1:], die_after=3)
"""


def filled(folder: str, address: str, die_after: int | None = None) -> Any:
    """Let the teacher of an address fill a store in small parts, and die after so many batches."""
    teacher, parts = VectorsTeacher(address), iter(range(1000))
    whole = teacher.stream

    def stream(texts: Any) -> Iterator[Any]:
        for start in range(0, len(texts), 100):
            if next(parts) == die_after:
                os.kill(os.getpid(), signal.SIGKILL)
            for rows, vectors in whole(list(texts[start : start + 100])):
                yield rows + start, vectors

    teacher.stream = stream  # type: ignore[method-assign]
    texts = [f"text {number}" for number in range(600)]
    store = SignalStore.create(folder, teacher.card, teacher.card.width, "float32")
    return store, fill(store, teacher, texts, teacher._keys_of(texts), part_bytes=1600), teacher._keys_of(texts)


@kinds("sqlite")
def test_a_killed_store_is_filled_further_unless_the_database_has_changed(
    start: Starter, store_rows: Fill, tmp_path: Path
) -> None:
    rows, folder = rows_of(600), str(tmp_path / "store")
    code, said = start.code(FILL, folder, store_rows(rows)).wait()
    assert code == -signal.SIGKILL, said
    address = store_rows(rows[::-1])  # another order than the killed process had
    store, report, keys = filled(folder, address)
    assert report.present >= 100 and report.taught == 600 - report.present
    np.testing.assert_array_equal(store.read(store.rows(keys)), vectors_of(rows))
    rows[0] = rows[0] | {"vector": [1.0, 2.0, 3.0, 4.0]}
    with pytest.raises(DistilvecError, match="fingerprint"):
        filled(folder, store_rows(rows))


def test_numbers_in_sqlite_are_read_in_the_precision_they_were_packed_in(tmp_path: Path) -> None:
    rows = rows_of(20)
    address = database_kinds.fill_sqlite(tmp_path, rows)
    with sqlite3.connect(tmp_path / "rows.db") as connection:
        for row in rows:
            packed = np.asarray(row["vector"], np.float64).tobytes()
            connection.execute("UPDATE docs SET vector = ? WHERE id = ?", (packed, row["id"]))
    connection.close()
    teacher = load_teacher(vectors=address)
    np.testing.assert_allclose(teacher.encode([f"text {n}" for n in range(20)]), vectors_of(rows), atol=1e-6)


def sqlite_of(folder: Path, cells: list[Any]) -> str:
    """The address of a table with "text 0", "text 1" ... and these cells."""
    with sqlite3.connect(folder / "cells.db") as connection:
        connection.execute("CREATE TABLE docs(text TEXT, embedding BLOB)")
        connection.executemany("INSERT INTO docs VALUES(?, ?)", [(f"text {n}", cell) for n, cell in enumerate(cells)])
    connection.close()
    return f"sqlite:{folder / 'cells.db'}#docs"


def test_numbers_of_another_precision_are_no_vectors(tmp_path: Path) -> None:
    address = sqlite_of(
        tmp_path, [vector.astype("f2").tobytes() for vector in np.random.default_rng(0).normal(size=(99, 16))]
    )
    with pytest.raises(DataError, match="no column holds vectors.*in SQLite packed float32 or float64"):
        load_teacher(vectors=address)
    with pytest.raises(DataError, match="its bytes are no packed float32 or float64"):
        load_teacher(vectors=f"{address}:embedding")


def test_the_precision_is_that_of_the_first_vectors_however_late(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32)
    address = sqlite_of(tmp_path, [None] * 2500 + [vector.astype(np.float64).tobytes() for vector in vectors])
    with pytest.raises(DataError, match=r'the first 64 rows have nothing in the column "embedding".*#docs:embedding'):
        load_teacher(vectors=address)
    teacher = load_teacher(vectors=f"{address}:embedding")
    np.testing.assert_array_equal(teacher.encode([f"text {2500 + n}" for n in range(40)]), vectors)


def test_the_file_alone_names_the_address(tmp_path: Path) -> None:
    database_kinds.fill_sqlite(tmp_path, rows_of(3))
    with pytest.raises(DataError, match=r"an SQLite database.*Write sqlite:.*rows\.db#TABLE"):
        load_teacher(vectors=str(tmp_path / "rows.db"))


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        load_teacher(vectors=f"sqlite:{tmp_path / 'none.db'}#docs")
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "notes.db").write_text("only some notes " * 99)
    with pytest.raises(EnvironmentProblem, match=r"file is not a database.*Is it a database of SQLite"):
        load_teacher(vectors=f"sqlite:{tmp_path / 'notes.db'}#docs")


DOWN = [
    ("psycopg", "postgresql://me@127.0.0.1:9/db#docs", "PGPASSWORD"),
    ("qdrant_client", "qdrant:http://127.0.0.1:9#docs", "QDRANT_API_KEY"),
    ("chromadb", "chroma:http://127.0.0.1:9#docs", "Check that it runs"),
]


@pytest.mark.parametrize(("module", "address", "remedy"), DOWN)
def test_a_database_that_does_not_answer(module: str, address: str, remedy: str) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed")
    with pytest.raises(EnvironmentProblem) as error:
        load_teacher(vectors=address)
    assert str(error.value).startswith(f"{address}: the database cannot be read: ") and remedy in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "module"), [("lancedb", "lancedb"), ("chroma", "chromadb"), ("qdrant", "qdrant_client")]
)
def test_a_folder_without_a_database_is_not_made_one(kind: str, module: str, tmp_path: Path) -> None:
    pytest.importorskip(module, reason=f"{module} is not installed")
    (tmp_path / "empty").mkdir()
    for name, told in (("empty", "in this folder"), ("none", "no such folder")):
        with pytest.raises(DataError, match=told):
            load_teacher(vectors=f"{kind}:{tmp_path / name}#docs")
    assert [each.name for each in tmp_path.rglob("*")] == ["empty"]


EXTRAS = [
    ("postgresql://me@host/db#docs", "pgvector"),
    ("qdrant:index#docs", "qdrant"),
    ("chroma:index#docs", "chroma"),
    ("lancedb:index#docs", "lancedb"),
]


@pytest.mark.parametrize(("address", "extra"), EXTRAS)
def test_a_missing_client_names_its_extra(address: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distilvec.extras.importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem) as error:
        load_teacher(vectors=address)
    assert f"pip install 'distilvec[{extra}]'" in str(error.value)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:hunter2@host/db#docs",
        "postgres://me:hunter2/@host:5432/db#docs:embedding",
        "postgresql://me:4hunter2@host/db#docs",
        "postgresql://me:hunter2#@host/db#docs",
        "postgresql://host/db?user=me&password=hunter2#docs",
        "postgresql://host/db?user=me&sslpassword=hunter2&sslmode=require",
        "qdrant:https://me:hunter2@host:6333#docs",
        "qdrant:https://host:6333?api_key=hunter2#docs",
    ],
)
def test_a_password_in_an_address_is_refused_and_never_shown(address: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    (tmp_path / "texts.txt").write_text("a\nb\n")
    recipe.write_text(f"corpus: {{path: texts.txt}}\nteachers:\n  - vectors: '{address}'\noutput: out\n")
    for read in (
        lambda: Recipe.load(recipe),
        lambda: load_teacher(vectors=address),
        lambda: VectorsTeacher(address),
    ):
        with pytest.raises(DistilvecError) as error:
            read()
        assert "hunter2" not in str(error.value) and "***" in str(error.value) and "PGPASSWORD" in str(error.value)


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("postgresql://me@host:5432/db#public.docs:embedding", "postgresql://me@host:5432/db"),
        ("postgres://h1:5432,h2:5433/db?user=me@corp&sslkey=a.pem#docs", None),
        ("postgresql:///db?host=/run/postgresql#docs", None),
    ],
)
def test_an_address_without_a_password_is_taken_apart(address: str, place: str | None) -> None:
    found = database_address(address)
    assert found is not None and found.kind == "postgresql"
    assert found.place == (place or address.rpartition("#")[0])
    assert (found.table, found.column) == (("public.docs", "embedding") if place else ("docs", ""))


def test_files_are_not_taken_for_addresses() -> None:
    assert [database_address(name) for name in ("v.npy", "v.parquet:embedding", "/data/qdrant:x/v.npy")] == [None] * 3
    with pytest.raises(DistilvecError, match="names no table"):
        database_address("qdrant:http://localhost:6333")


def test_a_folder_in_an_address_starts_where_the_recipe_lies(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    recipe = {"teachers": [{"vectors": "chroma:index#docs"}, {"vectors": "qdrant:http://localhost:6333#docs"}]}
    find_files(recipe, tmp_path)
    assert [each["vectors"] for each in recipe["teachers"]] == [
        f"chroma:{tmp_path / 'index'}#docs",
        "qdrant:http://localhost:6333#docs",
    ]


def test_another_database_is_not_taken_for_a_file() -> None:
    with pytest.raises(
        DistilvecError, match="vectors are not read from milvus.*postgresql, qdrant, chroma, lancedb and sqlite"
    ):
        database_address("milvus:docs.db#docs")
