"""A new model on an old index: it finds what the old one found, ships as stock modules, and refuses what it has to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer
from tests.indexes.conftest import encoded

import distilvec
from distilvec.errors import DataError, DistilvecError
from distilvec.indexes import Adaptation, adapt
from distilvec.indexes.queries import read_queries


def turned(vectors: np.ndarray, width: int, unit: bool = True) -> np.ndarray:
    """An old index of another width, a linear image of these vectors."""
    image = vectors @ np.random.default_rng(0).normal(size=(vectors.shape[1], width))
    return np.asarray(image / np.linalg.norm(image, axis=1, keepdims=True) if unit else image, np.float32)


@pytest.fixture(scope="module")
def old(plain: np.ndarray) -> np.ndarray:
    return turned(plain, 48)


@pytest.fixture(scope="module")
def made(
    tiny_bert: Path, old: np.ndarray, sentences: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Adaptation:
    queries = [{"query": f"{text} again", "document": text} for text in sentences[:30]]
    vectors = turned(encoded(tiny_bert, [row["query"] for row in queries]), 48)
    place = tmp_path_factory.mktemp("adapted") / "model"
    return distilvec.adapt(tiny_bert, old, sentences, place, queries=queries, query_vectors=vectors, device="cpu")


def test_a_linear_image_is_reached(made: Adaptation) -> None:
    assert made.recall > 0.9 and made.agreement["cosine"] > 0.99
    assert {point.kind for point in made.points} == {"procrustes", "ridge", "low rank", "residual"}
    assert made.chosen.choice == max(point.choice for point in made.points if point.rows == made.chosen.rows)
    assert made.chosen.rows == 200 - 2 * made.held and made.held == 40


def test_stock_sentence_transformers_opens_it(
    made: Adaptation, tiny_bert: Path, old: np.ndarray, sentences: list[str]
) -> None:
    opened = SentenceTransformer(str(made.model), device="cpu")
    vectors = opened.encode(sentences, show_progress_bar=False)
    assert vectors.shape == (200, 48) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert (vectors * old).sum(axis=1).mean() > 0.99
    listed = [entry["type"] for entry in json.loads((made.model / "modules.json").read_text())]
    assert all(name.startswith("sentence_transformers.") for name in listed)
    assert not (made.model / "adapt.tmp").exists() and "Recall@10" in (made.model / "adapt.md").read_text()
    told = json.loads((made.model / "adapt.json").read_text())
    assert told["recall"] == made.recall and told["model"] == "model"


def test_queries_are_judged_on_the_whole_index(made: Adaptation) -> None:
    assert made.queries is not None and made.queries["queries"] == 30
    assert made.queries["overlap"] > 0.8
    assert abs(made.queries["recall"] - made.queries["old_recall"]) < 0.1
    assert "30 queries on the whole old index" in made.grid().text()


def test_an_index_of_other_lengths_is_kept_and_read_from_parquet(
    tiny_bert: Path, plain: np.ndarray, sentences: list[str], tmp_path: Path
) -> None:
    long = turned(plain, 20, unit=False)
    table = pa.table({"text": [*sentences, *sentences[:5]], "vector": [*long.tolist(), *long[:5].tolist()]})
    pq.write_table(table, tmp_path / "index.parquet")
    found = adapt(tiny_bert, tmp_path / "index.parquet", output=tmp_path / "out", limit=100, device="cpu")
    assert found.repeated == 5 and found.chosen.rows == 100 and found.queries is None
    assert any(note.startswith("5 rows repeat") for note in found.notes)
    lengths = np.linalg.norm(encoded(tmp_path / "out", sentences), axis=1)
    assert lengths.std() > 0.01 or abs(lengths.mean() - 1) > 0.01


def test_a_shuffled_index_is_doubted(tiny_bert: Path, old: np.ndarray, sentences: list[str], tmp_path: Path) -> None:
    more = [f"{text} {number}" for number in range(5) for text in sentences]
    noise = np.random.default_rng(0).normal(size=(1000, 48)).astype(np.float32)
    found = adapt(tiny_bert, noise, more, tmp_path / "out", device="cpu")
    assert found.recall < 0.1 and "check-index" in found.notes[-1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda given: given | {"texts": None}, "vectors: .*--texts"),
        (lambda given: given | {"limit": 99}, "limit: .*99"),
        (lambda given: given | {"texts": given["texts"][:-1]}, "200 vectors, but 199 texts"),
        (lambda given: given | {"texts": ["a"] * 200}, "vectors: 1 different .*100"),
        (lambda given: given | {"vectors": given["vectors"][:0], "texts": []}, "vectors: 0 different"),
        (lambda given: given | {"vectors": planted(given["vectors"], np.nan)}, "1 rows hold NaN.*row 7"),
        (lambda given: given | {"vectors": planted(given["vectors"], 0)}, "1 rows hold nothing but zeros.*row 7"),
        (lambda given: given | {"vectors": "nowhere.npy"}, r"nowhere\.npy: "),
        (lambda given: given | {"model": "./nowhere"}, r"\./nowhere: "),
        (lambda given: given | {"query_vectors": given["vectors"]}, "query_vectors: .*--queries"),
        (lambda given: given | {"queries": [{"query": "a"}]}, "queries: .*--query-vectors"),
        (lambda given: given | {"queries": []}, "queries: there are no"),
        (lambda given: given | {"queries": [{"query": "a", "document": "b"}]}, "row 1, column document: .*'b'"),
        (lambda given: given | {"queries": [{"text": "a"}]}, "queries, row 1, column query: "),
    ],
)
def test_unusable_models_for_adapting_are_refused_and_leave_nothing(
    change: Callable[[dict[str, Any]], dict[str, Any]],
    told: str,
    tiny_bert: Path,
    old: np.ndarray,
    sentences: list[str],
    tmp_path: Path,
) -> None:
    given = change({"model": tiny_bert, "vectors": old, "texts": list(sentences), "output": tmp_path / "out"})
    with pytest.raises(DistilvecError, match=told):
        adapt(**given)
    assert not (tmp_path / "out").exists()


def planted(vectors: np.ndarray, value: float) -> np.ndarray:
    made = vectors.copy()
    made[7] = value
    return made


def test_a_document_that_lies_in_many_rows_is_one() -> None:
    index = np.repeat(np.eye(4, dtype=np.float32), 31, axis=0)
    texts = [f"text {row // 31}" for row in range(len(index))]
    rows = [{"query": "q", "document": "text 2"}, {"query": "q", "document": "text 0"}]
    queries = read_queries(rows, index[62:64], texts, 4)
    assert queries.scores(queries.vectors, index)["old_recall"] == 0.5  # ten copies of one, none of the other


def test_queries_from_files(sentences: list[str], tmp_path: Path) -> None:
    file = tmp_path / "queries.jsonl"
    rows = [{"query": "a", "document": sentences[3]}, {"query": "b", "document": sentences[0]}]
    rows += [{"query": "a", "document": sentences[9]}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_queries(file, np.eye(3, 4, dtype=np.float32), sentences, 4)
    assert found.texts == ["a", "b"] and found.relevant == [[{3}, {9}], [{0}]]
    assert found.vectors is not None and found.vectors.tolist() == np.eye(2, 4).tolist()
    file.write_text(file.read_text() + "\n\n")
    assert read_queries(file, None, sentences, 4).texts == ["a", "b"]
    (tmp_path / "q.csv").write_text("query,document\na,\n")
    assert read_queries(tmp_path / "q.csv", np.eye(1, 4), sentences, 4).relevant == [[]]
    with pytest.raises(DataError, match="query_vectors: .* 4 numbers.* 5"):
        read_queries(file, np.eye(3, 4), sentences, 5)
    file.write_text("not json\n")
    with pytest.raises(DataError, match=r"queries\.jsonl, line 1"):
        read_queries(file, None, sentences, 4)
    with pytest.raises(DistilvecError, match="folder"):
        read_queries(tmp_path, None, sentences, 4)


def test_copies_of_a_text_are_one_document_for_both_models() -> None:
    index = np.repeat(np.eye(4, dtype=np.float32), 31, axis=0)
    texts = [f"text {row // 31}" for row in range(len(index))]
    queries = read_queries([{"query": "q"}], np.eye(1, 4, dtype=np.float32), texts, 4)
    noisy = index + np.random.default_rng(0).normal(size=index.shape).astype(np.float32) * 1e-3
    assert queries.scores(queries.vectors, noisy)["overlap"] == 1.0
    assert queries.scores(np.eye(1, 4, 1, dtype=np.float32), index)["overlap"] == 0.0


def test_the_folder_that_one_stands_in_takes_the_model_and_its_record(
    tiny_bert: Path, old: np.ndarray, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    adapt(tiny_bert, old, list(sentences), ".", device="cpu")
    assert {"modules.json", "adapt.json", "adapt.md"} <= {file.name for file in (tmp_path / "here").iterdir()}
    assert [file.name for file in tmp_path.iterdir()] == ["here"]
