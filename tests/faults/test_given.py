"""What Python hands over, and files that are not what they seem: rows of texts, or a sentence that says why not."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.disk import full_beyond

from distilvec.corpus import opening, read_corpus, tables
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.judging import load_task
from distilvec.recipe.from_python import recipe_of
from distilvec.teachers.vectors import VectorsTeacher

COLUMNS = {"body": ["first text", "second text", "third text"], "n": [1, 2, 3]}


def pandas_frame() -> Any:
    import pandas

    return pandas.DataFrame(COLUMNS)


def pandas_mixed() -> Any:
    """With columns that no Arrow table could hold, and names that are no strings."""
    import pandas

    return pandas.DataFrame({"body": COLUMNS["body"], 7: [{"a": 1}, "b", float("nan")]})


def polars_frame() -> Any:
    return pytest.importorskip("polars").DataFrame(COLUMNS)


def arrow_table() -> Any:
    import pyarrow

    return pyarrow.table(COLUMNS)


def arrow_batch() -> Any:
    import pyarrow

    return pyarrow.record_batch(COLUMNS)


def arrow_reader() -> Any:
    return arrow_table().to_reader()


def data_set() -> Any:
    import datasets

    return datasets.Dataset.from_dict(COLUMNS)


def one_split() -> Any:
    import datasets

    return datasets.DatasetDict(dev=data_set())


def with_train() -> Any:
    import datasets

    return datasets.DatasetDict(test=data_set().select([0]), train=data_set())


def streamed() -> Any:
    return data_set().to_iterable_dataset()


def formatted() -> Any:
    return data_set().with_format("numpy")


def generator() -> Any:
    return ({"body": text, "n": n} for n, text in enumerate(COLUMNS["body"]))


GIVEN = [
    pandas_frame,
    pandas_mixed,
    polars_frame,
    arrow_table,
    arrow_batch,
    arrow_reader,
    data_set,
    one_split,
    with_train,
    streamed,
    formatted,
    generator,
]


@pytest.mark.parametrize("make", GIVEN)
def test_tables_are_read_by_rows(tmp_path: Path, make: Callable[[], Any]) -> None:
    """Through the public functions, which write them down, and by the corpus itself."""
    section = {"path": make(), "text": "body", "holdout": 0.0}
    recipe = recipe_of("teacher", "student", section, "cosine", tmp_path / "out")
    assert recipe.corpus is not None
    rows = [json.loads(line) for line in Path(str(recipe.corpus.path)).read_text().splitlines()]
    assert [row["body"] for row in rows] == COLUMNS["body"]
    assert read_corpus(make(), tmp_path / "corpus", text="body", holdout=0.0).texts() == COLUMNS["body"]


def test_pairs_are_tuples_too(tmp_path: Path) -> None:
    pairs = [("a question", "an answer"), ("another", "the other")]
    recipe = recipe_of("teacher", "student", {"path": pairs, "text": ["query", "answer"]}, "mnrl", tmp_path / "out")
    assert recipe.corpus is not None
    rows = [json.loads(line) for line in Path(str(recipe.corpus.path)).read_text().splitlines()]
    assert rows == [dict(zip(("query", "answer"), pair, strict=True)) for pair in pairs]


def test_given_texts_of_an_earlier_run_stay(tmp_path: Path) -> None:
    """Its recipe, which lies aside, names it."""
    out = tmp_path / "out"

    def given(word: str) -> tuple[Path, Path]:
        texts = [f"{word} {number}" for number in range(3)]
        teacher = {"vectors": np.full((3, 2), float(len(word)), np.float32), "texts": texts}
        recipe = recipe_of(teacher, "student", texts, "cosine", out)
        assert recipe.corpus is not None and recipe.teachers[0].vectors is not None
        return Path(str(recipe.corpus.path)), Path(recipe.teachers[0].vectors)

    def reads(places: tuple[Path, Path]) -> tuple[str, float]:
        return json.loads(places[0].read_text().splitlines()[0])["text"], float(np.load(places[1])[0, 0])

    first = given("one")
    assert given("three") == first and reads(first) == ("three 0", 5.0), "nothing came of the first yet"
    (out / "student").mkdir()
    second = given("seventh")
    assert reads(first) == ("three 0", 5.0) and reads(second) == ("seventh 0", 7.0)
    assert given("three") == first and given("seventh") == second
    assert len(list((out / "given").glob("[!.]*"))) == 6


def test_a_disk_that_fills_with_rows_from_python_is_said(tmp_path: Path) -> None:
    rows = [{"text": f"a text of some length, number {number}"} for number in range(500)]
    given = ("cosine", tmp_path / "out")
    with full_beyond(10_000), pytest.raises(EnvironmentProblem, match=r"/given/corpus\.jsonl: .*File too large"):
        recipe_of("teacher", "student", rows, *given)
    assert not list((tmp_path / "out/given").iterdir())

    def broken() -> Iterator[str]:
        yield "a text"
        raise OSError("of somebody's own")

    with pytest.raises(OSError, match="own"):
        recipe_of("teacher", "student", broken(), *given)


def test_single_columns_are_lists_of_texts(tmp_path: Path) -> None:
    import pandas
    import pyarrow

    texts = COLUMNS["body"]
    for number, column in enumerate(
        (pandas.Series(texts), pyarrow.array(texts), pyarrow.chunked_array([texts]), np.array(texts))
    ):
        assert read_corpus(column, tmp_path / str(number), holdout=0.0).texts() == texts
        recipe = recipe_of("teacher", "student", column, "cosine", tmp_path / f"out-{number}")
        assert recipe.corpus is not None
        assert len(Path(str(recipe.corpus.path)).read_text().splitlines()) == 3


def test_missing_cells_are_missing(tmp_path: Path) -> None:
    import pandas

    frame = pandas.DataFrame({"text": ["one", None, float("nan"), pandas.NA, "two"]})
    corpus = read_corpus(frame, tmp_path, holdout=0.0)
    assert corpus.texts() == ["one", "two"] and corpus.audit.rejected == {"missing text": 3}


class Frame:
    """A frame of a library that nobody here knows: going through it gives the names of its columns."""

    columns = ("text", "label")

    def __iter__(self) -> Any:
        return iter(self.columns)


def several_splits() -> Any:
    import datasets

    return datasets.DatasetDict(dev=data_set(), test=data_set())


def streamed_splits() -> Any:
    import datasets

    return datasets.IterableDatasetDict(dev=streamed(), test=streamed())


def twice() -> Any:
    import pandas

    return pandas.DataFrame([["a", "b"]], columns=["text", "text"])


def lazy_frame() -> Any:
    return pytest.importorskip("polars").LazyFrame(COLUMNS)


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (several_splits, 'data set: .*"train": dev, test'),
    (streamed_splits, 'data set: .*"train": dev, test'),
    (lambda: {"text": ["one", "two"]}, r"corpus: .*datasets\.Dataset\.from_dict"),
    (lambda: {"one", "two"}, r"corpus: .*sorted\("),
    (lambda: frozenset(["one"]), r"corpus: .*sorted\("),
    (Frame, r"corpus: .*\bFrame\b"),
    (lazy_frame, r"corpus: .*\bLazyFrame\b"),
    (lambda: b"one two", r"corpus: .*\bbytes\b"),
    (lambda: 5, r"corpus: .*\bint\b"),
    (lambda: None, r"corpus: .*\bNoneType\b"),
    (twice, 'corpus: .*"text"'),
]


@pytest.mark.parametrize(("make", "said"), REFUSED)
def test_given_values_that_are_not_understood_are_refused(tmp_path: Path, make: Callable[[], Any], said: str) -> None:
    with pytest.raises(DistilvecError, match=said):
        recipe_of("teacher", "student", {"path": make()}, "cosine", tmp_path / "out")
    with pytest.raises(DistilvecError, match=said):
        read_corpus(make(), tmp_path / "corpus")
    assert not list(tmp_path.rglob("*.jsonl"))


def test_a_generator_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = (f"text {number}" for number in itertools.count())
    recipe = recipe_of("teacher", "student", {"path": endless, "limit": 7}, "cosine", tmp_path / "out")
    assert recipe.corpus is not None and len(Path(str(recipe.corpus.path)).read_text().splitlines()) == 7
    monkeypatch.setattr(tables, "MOST_UNCOUNTED", 1000)
    for limit in (None, 0, -1, "many"):
        with pytest.raises(DistilvecError, match=r"^corpus: .*\b1,000 rows.*corpus\.limit"):
            recipe_of("teacher", "student", {"path": endless, "limit": limit}, "cosine", tmp_path / "more")
    exactly = (f"text {number}" for number in range(1000))
    recipe_of("teacher", "student", {"path": exactly}, "cosine", tmp_path / "exactly")


# files


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r\r\n"])
def test_line_ends_within_a_quoted_field_are_the_text_s(tmp_path: Path, end: str) -> None:
    rows = ['"one' + end + 'more"', "two", '"' + end.join(["a", "b", "", "c"]) + '"', '"last' + end + 'one"']
    (tmp_path / "a.csv").write_bytes("".join(row + end for row in ["text", *rows]).encode())
    corpus = read_corpus(tmp_path / "a.csv", tmp_path / "out", holdout=0.0)
    assert corpus.texts() == [f"one{end}more", "two", end.join(["a", "b", "", "c"]), f"last{end}one"]


def packed(kind: str, content: bytes) -> bytes:
    if kind == "gz":
        return gzip.compress(content, mtime=0)
    return pa.compress(content, "zstd", asbytes=True)


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize("content", [b"\0", b"a\n", b'{"text": "a"}\n', b'[1,2,"'])
def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, content: bytes) -> None:
    monkeypatch.setattr(opening, "UNPACKED_FREELY", 1 << 16)
    file = tmp_path / f"bomb.jsonl.{kind}"
    file.write_bytes(packed(kind, content * ((1 << 20) // len(content))))
    with pytest.raises(DataError, match=rf"bomb\.jsonl\.{kind}: [\d,]+ packed .*1,048,57\d\b"):
        read_corpus(file, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
    with pytest.raises(DataError, match=rf"bomb\.jsonl\.{kind}: [\d,]+ packed .*\d{{2,3}},\d{{3}}\b"):
        load_task({"name": "x", "kind": "similarity", "test": str(file)})


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_honest_files_that_pack_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, sentences: list[str]
) -> None:
    monkeypatch.setattr(opening, "UNPACKED_FREELY", 1 << 16)
    text = "".join(f"{number} {sentence}\n" for number in range(20) for sentence in sentences if "\n" not in sentence)
    (tmp_path / f"a.txt.{kind}").write_bytes(packed(kind, text.encode()))
    assert len(read_corpus(tmp_path / f"a.txt.{kind}", tmp_path / "out")) > 2_000


def table(path: Path, values: Any) -> Path:
    import pyarrow.parquet as pq

    vectors = pa.array(np.eye(3, dtype=np.float32).tolist(), pa.list_(pa.float32()))
    pq.write_table(pa.table({"vector": vectors, "text": values}), path)
    return path


def test_parquet_columns_as_texts_of_vectors(tmp_path: Path) -> None:
    import pyarrow as pa

    file = tmp_path / "v.parquet"
    for values in (pa.nulls(3), pa.array([1, 2, 3]), pa.array([["a"], ["b"], ["c"]]), pa.array(["a", None, "c"])):
        with pytest.raises(DataError, match=r"v\.parquet: row [12] .*(no text|int|list)"):
            VectorsTeacher(table(file, values))
    for good in (
        pa.array(["a", "b", "c"]),
        pa.array([b"a", b"b", b"c"]),
        pa.array(["a", "b", "c"]).dictionary_encode(),
    ):
        assert VectorsTeacher(table(file, good)).has(["a", "z"]).tolist() == [True, False]


@pytest.mark.parametrize("place", ["vectors", "keys"])
def test_an_archive_called_npy(tmp_path: Path, place: str) -> None:
    content = io.BytesIO()
    np.savez(content, a=np.eye(3, dtype=np.float32))
    (tmp_path / "archive.npy").write_bytes(content.getvalue())
    np.save(tmp_path / "good.npy", np.eye(3, dtype=np.float32))
    files = {"vectors": tmp_path / "good.npy", "keys": tmp_path / "good.npy", place: tmp_path / "archive.npy"}
    with pytest.raises(DataError, match=r"archive\.npy: .*numpy\.save"):
        VectorsTeacher(files["vectors"], keys=files["keys"])


@pytest.mark.parametrize("line", ["[" * 5000, '{"label": ' + "7" * 5000 + "}", '{"text": ' * 5000])
def test_task_files_that_are_traps(tmp_path: Path, line: str) -> None:
    for name in ("t.jsonl", "t.json"):
        (tmp_path / name).write_text(line + "\n")
        with pytest.raises(DataError, match=rf"/{re.escape(name)}.*: .*JSON"):
            load_task({"name": "x", "kind": "similarity", "test": str(tmp_path / name)})
