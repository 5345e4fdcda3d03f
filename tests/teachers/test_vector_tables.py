"""Vectors in the tables that people have, each as the program that writes it does."""

from __future__ import annotations

import csv
import gzip
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distilvec.errors import DataError
from distilvec.indexes import check_index
from distilvec.recipe import Recipe
from distilvec.recipe.places import find_files
from distilvec.teachers import load_teacher
from distilvec.teachers.vectors import VectorsTeacher

TEXTS = ["first", "second, with a comma", 'third "quoted"', "fourth\nof two lines", "fifth"]
VECTORS = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
LISTS: list[Any] = VECTORS.astype(np.float64).tolist()
PGVECTOR = ["[" + ",".join(map(repr, each)) + "]" for each in LISTS]


def frame(column: Any, name: str = "embedding") -> pandas.DataFrame:
    return pandas.DataFrame({"id": range(5), "text": TEXTS, name: pandas.Series(column, dtype=object)})


def jsonl(file: Path) -> None:
    rows = zip(TEXTS, LISTS, strict=True)
    file.write_text("".join(json.dumps({"id": 1, "text": t, "embedding": v}) + "\n" for t, v in rows))


def sqlite_json(file: Path) -> None:
    """As sqlite3 -json writes a column of text."""
    rows = [json.dumps({"text": t, "vector": v}) for t, v in zip(TEXTS, PGVECTOR, strict=True)]
    file.write_text("[" + ",\n".join(rows) + "]\n")


def postgres_csv(file: Path) -> None:
    """As COPY ... WITH (FORMAT csv, HEADER) writes a vector of pgvector and an array of real."""
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([["text", "vector"], *zip(TEXTS, PGVECTOR, strict=True)])


def postgres_array(file: Path) -> None:
    arrays = ["{" + each[1:-1] + "}" for each in PGVECTOR]
    with file.open("w", newline="") as out:
        csv.writer(out, lineterminator="\r\n").writerows([["text", "x"], *zip(TEXTS, arrays, strict=True)])


def packed(file: Path) -> None:
    jsonl(file.with_suffix(""))
    file.write_bytes(gzip.compress(file.with_suffix("").read_bytes()))


def fixed(file: Path) -> None:
    column = pa.FixedSizeListArray.from_arrays(pa.array(VECTORS.ravel()), 8)
    pq.write_table(pa.table({"text": TEXTS, "x": column}), file, row_group_size=2)


WAYS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "jsonl": ("v.jsonl", jsonl),
    "ndjson": ("v.ndjson", lambda file: frame(LISTS).to_json(file, orient="records", lines=True, double_precision=15)),
    "json": ("v.json", lambda file: frame(LISTS).to_json(file, orient="records", double_precision=15)),
    "sqlite": ("v.json", sqlite_json),
    "gz": ("v.jsonl.gz", packed),
    "pandas csv": ("v.csv", lambda file: frame(LISTS).to_csv(file, index=False)),
    "pandas csv with an index": ("v.csv", lambda file: frame(LISTS, "x").to_csv(file)),
    "numpy in pandas csv": ("v.csv", lambda file: frame([np.array(each) for each in LISTS]).to_csv(file)),
    "excel csv": ("v.csv", lambda file: frame(LISTS).to_csv(file, index=False, encoding="utf-8-sig")),
    "postgres": ("v.csv", postgres_csv),
    "postgres array": ("v.csv", postgres_array),
    "parquet text": ("v.parquet", lambda file: frame(PGVECTOR).to_parquet(file)),
    "parquet": ("v.parquet", lambda file: frame(LISTS, "x").to_parquet(file)),
    "parquet fixed": ("v.parquet", fixed),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_form_is_read(way: str, tmp_path: Path) -> None:
    name, write = WAYS[way]
    write(tmp_path / name)
    teacher = load_teacher(vectors=tmp_path / name)
    close = 1e-7 if "numpy" in way else 0.0  # of which numpy's own text keeps eight digits
    np.testing.assert_allclose(teacher.encode(TEXTS[::-1]), VECTORS[::-1], atol=close, rtol=0)
    assert np.allclose(VectorsTeacher(tmp_path / name, texts=TEXTS[::-1]).encode(TEXTS), VECTORS[::-1], atol=close)
    assert teacher.has(["sixth"]).tolist() == [False]


MISSING: dict[str, tuple[str, Callable[[Path, list[Any]], Any]]] = {
    "parquet": ("v.parquet", lambda file, column: frame(column, "x").to_parquet(file)),
    "parquet text": (
        "v.parquet",
        lambda file, column: frame([None if each is None else str(each) for each in column]).to_parquet(file),
    ),
    "parquet fixed": (
        "v.parquet",
        lambda file, column: pq.write_table(
            pa.table({"text": TEXTS, "x": pa.array(column, pa.list_(pa.float32(), 8))}), file, row_group_size=2
        ),
    ),
    "csv": ("v.csv", lambda file, column: frame(column).to_csv(file)),
    "jsonl": ("v.jsonl", lambda file, column: frame(column).to_json(file, orient="records", lines=True)),
}


@pytest.mark.parametrize("way", MISSING)
@pytest.mark.parametrize("gaps", [[0], [4], [1, 2], [0, 1, 2, 4]])
def test_rows_without_a_vector_are_counted(
    way: str, gaps: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, write = MISSING[way]
    write(tmp_path / name, [None if row in gaps else each for row, each in enumerate(LISTS)])
    with caplog.at_level(logging.INFO):
        teacher = load_teacher(vectors=tmp_path / name)
    assert teacher.has(TEXTS).tolist() == [row not in gaps for row in range(5)]
    there = [row for row in range(5) if row not in gaps]
    np.testing.assert_allclose(teacher.encode([TEXTS[row] for row in there]), VECTORS[there], atol=1e-6)
    assert f"{len(gaps)} of 5 rows have no vector" in caplog.text


def test_results_of_a_batch_come_in_any_order(tmp_path: Path) -> None:
    requests = [{"custom_id": "a", "body": {"input": TEXTS[0]}}, {"custom_id": "b", "body": {"input": TEXTS[1:4]}}]
    requests.append({"custom_id": "c", "body": {"input": TEXTS[4]}})

    def result(name: str, rows: list[int]) -> dict[str, Any]:
        data = [{"object": "embedding", "index": n, "embedding": LISTS[row]} for n, row in enumerate(rows)]
        return {"custom_id": name, "response": {"status_code": 200, "body": {"data": data[::-1]}}, "error": None}

    failed = {"custom_id": "c", "response": {"status_code": 500, "body": {"error": {}}}, "error": None}
    for name, rows in (("requests", requests), ("results", [result("b", [1, 2, 3]), failed, result("a", [0])])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    results, asked = tmp_path / "results.jsonl", tmp_path / "requests.jsonl"
    teacher = load_teacher(vectors=results, texts=asked)
    assert teacher.has(TEXTS).tolist() == [True] * 4 + [False]
    assert np.array_equal(teacher.encode(TEXTS[:4]), VECTORS[:4])
    with pytest.raises(DataError, match=r"results\.jsonl: .*hold no texts.*the file of the requests"):
        load_teacher(vectors=results)
    asked.write_text(json.dumps(requests[0]) + "\n")
    with pytest.raises(DataError, match=r"results\.jsonl, line 1: no request has the custom_id b"):
        load_teacher(vectors=results, texts=asked)


WRONG: list[tuple[str, str, str]] = [
    ("v.csv", "text,vector\na,[1 2]\nb,[1 2 3]\n", r'v\.csv, line 3: row 2 of "vector" has 3 numbers, .* 2\.'),
    ("v.csv", "text,vector\na,[1 2]\nb,word\n", r'v\.csv, line 3: word in the column "vector"'),
    ("v.csv", 'text,vector\na,"[1, ..., 2]"\n', r"v\.csv: no column holds vectors \(text, vector\)"),
    ("v.csv", 'text,vector\na,"[1, 2]"\nb,"[1, ..., 2]"\n', r"line 3: .*tolist"),
    ("v.csv", "text;vector\na;[1 2]\n", r'v\.csv: there is no column "text"'),
    ("v.csv", "text,vector\na,[1 2],3\n", r"v\.csv, line 2: this row .*wrong number of fields"),
    ("v.jsonl", '{"text": "a", "embedding": [1, 2]}\n{"text": "b", "embedding": [1, true]}\n', r"line 2: .*embedding"),
    ("v.jsonl", '{"text": "a", "embedding": [1, ' + "9" * 400 + "]}\n", r"v\.jsonl: no column holds vectors"),
    ("v.jsonl", '{"text": "a", "embedding": [[1, 2]]}\n', r"v\.jsonl: no column holds vectors"),
    ("v.jsonl", '{"text": "a", "embedding": [1, 2]}\n{"embedding": [1, 2]}\n', r"v\.jsonl: row 2 has no text"),
    ("v.jsonl", '{"text": "a", "x": [1.5], "y": [2.5]}\n', r'v\.jsonl: 2 columns of vectors: x, y\..*v\.jsonl:COLUMN"'),
    ("v.jsonl", '{"text": "a", "embedding": [1, 2]}\n[1, 2]\n', r"v\.jsonl, line 2: this row .*no columns"),
    ("v.jsonl", '{"text": "a", "embedding": null}\n', r"v\.jsonl: no column holds vectors \(text, embedding\)"),
    ("v.jsonl", "", r"v\.jsonl: there are no rows"),
    ("v.txt", "0.1 0.2\n", r"v\.txt: this is not an array in \.npy form\. Save it with numpy\.save.*\.jsonl"),
]


@pytest.mark.parametrize(("name", "content", "told"), WRONG)
def test_an_invalid_vector_is_refused_with_its_row(name: str, content: str, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=told):
        load_teacher(vectors=tmp_path / name)


def test_columns_are_named_behind_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": t, "ids": [1, 2], "x": v, "y": v[::-1]} for t, v in zip(TEXTS, LISTS, strict=True)]
    (tmp_path / "v.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert np.array_equal(load_teacher(vectors=f"{tmp_path}/v.jsonl:y").encode(TEXTS), VECTORS[:, ::-1])
    with pytest.raises(DataError, match=r'v\.jsonl: there is no column "z"'):
        load_teacher(vectors=f"{tmp_path}/v.jsonl:z")
    recipe: dict[str, Any] = {"teachers": [{"vectors": "v.jsonl:y", "texts": "text"}]}
    find_files(recipe, tmp_path)
    assert recipe["teachers"][0]["vectors"] == f"{tmp_path}/v.jsonl:y"


def test_lists_of_whole_numbers_go_behind_those_with_fractions(tmp_path: Path) -> None:
    rows = [{"text": t, "input_ids": [1, 2], "x": v} for t, v in zip(TEXTS, LISTS, strict=True)]
    (tmp_path / "v.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert np.array_equal(load_teacher(vectors=tmp_path / "v.jsonl").encode(TEXTS), VECTORS)


def test_archives_of_one_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", VECTORS)
    assert np.array_equal(VectorsTeacher(tmp_path / "v.npz", texts=TEXTS).encode(TEXTS), VECTORS)
    np.savez(tmp_path / "v.npz", ids=np.arange(5), x=VECTORS)
    with pytest.raises(DataError, match=r"v\.npz: .*not one: ids, x\..*numpy\.save"):
        VectorsTeacher(tmp_path / "v.npz", texts=TEXTS)
    np.savez_compressed(tmp_path / "v.npz", np.zeros((5, 2_000_000), np.float32))
    with pytest.raises(DataError, match=r"v\.npz: .*packed bytes unpack to 40,000,128"):
        VectorsTeacher(tmp_path / "v.npz", texts=TEXTS)


def test_an_index_is_checked_from_a_table(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    from sentence_transformers import SentenceTransformer

    vectors = SentenceTransformer(str(tiny_bert), device="cpu").encode(sentences[:60])
    rows = pandas.DataFrame({"text": sentences[:60], "embedding": vectors.tolist()})
    rows.to_json(tmp_path / "index.jsonl", orient="records", lines=True)
    assert check_index(tiny_bert, tmp_path / "index.jsonl").findings == []


def test_vectors_are_not_held_in_memory(tmp_path: Path) -> None:
    """They are a view of a file without a name."""
    jsonl(tmp_path / "v.jsonl")
    vectors = VectorsTeacher(tmp_path / "v.jsonl")._vectors
    while not isinstance(vectors, np.memmap):
        assert isinstance(vectors.base, np.ndarray)
        vectors = vectors.base


def test_unknown_text_column_lists_the_columns(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "v.parquet"
    pq.write_table(pa.table({"sentences": ["a", "b"], "vector": [[1.0, 0.0], [0.0, 1.0]]}), file)
    with pytest.raises(DataError, match='no column "sentence" .*sentences'):
        load_teacher(vectors=str(file), texts="sentence")


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_texts_with_the_ids_of_other_rows_are_refused(suffix: str, tmp_path: Path) -> None:
    table, texts = tmp_path / f"vectors.{suffix}", tmp_path / "texts.jsonl"
    rows = pandas.DataFrame({"id": range(5), "embedding": LISTS})
    if suffix == "jsonl":
        rows.to_json(table, orient="records", lines=True)
    else:
        rows.to_parquet(table)
    named = [json.dumps({"id": str(row), "text": text}) + "\n" for row, text in enumerate(TEXTS)]
    texts.write_text("".join(named))
    assert VectorsTeacher(table, texts=texts).encode(TEXTS[3:4])[0] == pytest.approx(VECTORS[3])
    texts.write_text("".join([*named[:3], named[4], named[3]]))
    with pytest.raises(DataError, match=r'(line|row) 4: the vector of the id "3" has the text of "4" in its place'):
        VectorsTeacher(table, texts=texts)


def test_no_other_column_stands_in_for_an_empty_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        {"text": f"text {n}", "embedding": [0.5, 0.25, n] if n >= 64 else None, "price": [0.5, 1.5]} for n in range(99)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(
        DataError, match=r'the first 64 rows have nothing in the column "embedding".*rows\.jsonl:embedding'
    ):
        load_teacher(vectors=str(file))
    assert load_teacher(vectors=f"{file}:embedding").has(["text 70"]).all()
    file.write_text("".join(json.dumps({"text": row["text"], "price": row["price"]}) + "\n" for row in rows))
    with caplog.at_level("INFO"):
        load_teacher(vectors=str(file))
    assert 'the column "price" is taken for the vectors' in caplog.text


def test_a_column_of_texts_is_no_folder_beside_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "body").mkdir()
    (tmp_path / "own.txt").write_text("one\n")
    (tmp_path / "v.jsonl").write_text('{"body": "one", "embedding": [0.5, 0.25]}\n')
    monkeypatch.chdir(tmp_path)
    for given, read in (("body", "body"), ("own.txt", str(tmp_path / "own.txt"))):
        data = {"teachers": [{"vectors": "v.jsonl", "texts": given}], "corpus": {"path": "own.txt"}, "output": "out"}
        (tmp_path / "r.json").write_text(json.dumps(data))
        (section,) = Recipe.load(tmp_path / "r.json").teachers
        assert section.texts == read and section.vectors == str(tmp_path / "v.jsonl")
