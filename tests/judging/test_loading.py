from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distilvec.corpus.keys import join_pair
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.judging import (
    ClassificationTask,
    ClusteringTask,
    PairTask,
    RegressionTask,
    RetrievalTask,
    SimilarityTask,
    load_task,
    load_tasks,
)
from distilvec.judging.loading import read_tasks
from distilvec.judging.spec import TaskSpec

from .embedders import graded_pairs, topic_texts, words


def _rows(count: int, seed: int) -> list[dict[str, Any]]:
    return [{"text": t, "label": n, "score": len(t)} for t, n in zip(*topic_texts(count, seed), strict=True)]


def _pair_rows() -> list[dict[str, Any]]:
    return [
        {"text1": a, "text2": b, "score": s, "label": "same" if s > 2 else "other"}
        for a, b, s in zip(*graded_pairs(40), strict=True)
    ]


def _write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path.name


PROBE = {"train": _rows(30, 1), "test": _rows(20, 2)}


def test_a_yaml_file_with_its_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "train.jsonl", _rows(60, 1))
    _write(tmp_path / "test.jsonl", _rows(40, 2))
    file = tmp_path / "topics.yaml"
    file.write_text("name: topics\nkind: classification\ndomain: out\ntrain: train.jsonl\ntest: test.jsonl\n")
    monkeypatch.chdir("/")  # paths are relative to the file, not to the working folder
    task = load_task(file)
    assert isinstance(task, ClassificationTask)
    assert (task.name, task.domain) == ("topics", "out")
    data = topic_texts(60, 1), topic_texts(40, 2)
    assert task.score(words).value == ClassificationTask("topics", *data).score(words).value


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ({"kind": "classification", **PROBE, "protocol": "tuned"}, ClassificationTask),
        ({"kind": "regression", **PROBE, "max_train": 10}, RegressionTask),
        ({"kind": "similarity", "test": _pair_rows()}, SimilarityTask),
        ({"kind": "pairs", "test": _pair_rows(), "positive": "same"}, PairTask),
        ({"kind": "clustering", "test": _rows(30, 1), "max_items": 25}, ClusteringTask),
        ({"kind": "retrieval", "test": _pair_rows(), "query": "text1", "document": "text2"}, RetrievalTask),
    ],
)  # fmt: skip
def test_every_kind(spec: dict[str, Any], kind: type) -> None:
    task = load_task({"name": "mine", **spec})
    assert type(task) is kind
    assert -1 <= task.score(words).value <= 1
    assert len(set(task.texts())) == len(task.texts()) > 0


def test_retrieval_files_in_beir_style(tmp_path: Path) -> None:
    documents = topic_texts(30)[0]
    corpus = [{"_id": f"d{i}", "title": f"title{i}", "text": t} for i, t in enumerate(documents)]
    queries = [{"_id": i, "text": documents[i]} for i in range(5)]
    _write(tmp_path / "corpus.jsonl", corpus)
    _write(tmp_path / "queries.jsonl", queries)
    qrels = ["query-id\tcorpus-id\tscore"] + [f"{i}\td{i}\t1" for i in range(5)] + ["0\td9\t0"]
    (tmp_path / "qrels.tsv").write_text("\n".join(qrels))
    spec = {
        "name": "r",
        "kind": "retrieval",
        "queries": "queries.jsonl",
        "corpus": "corpus.jsonl",
        "qrels": "qrels.tsv",
    }
    task = load_task(spec, tmp_path)
    assert isinstance(task, RetrievalTask)
    assert task.documents[0] == f"title0 {documents[0]}"
    assert task.score(words).value > 0.9
    (tmp_path / "qrels.tsv").write_text("\n".join([*qrels, "7\td1\t1"]))
    with pytest.raises(DataError, match=r'qrels\.tsv.*line 8.*column query-id.*"7"'):
        load_task(spec, tmp_path)
    _write(tmp_path / "corpus.jsonl", [*corpus, corpus[3]])
    with pytest.raises(DataError, match=r'corpus\.jsonl.*line 31.*column _id.*"d3"'):
        load_task(spec, tmp_path)
    _write(tmp_path / "corpus.jsonl", corpus)
    (tmp_path / "qrels.tsv").write_text("q\tcorpus-id\tscore\n0\td1\t1")
    with pytest.raises(DataError, match=r"qrels\.tsv: .*query_id, query-id"):
        load_task(spec, tmp_path)


def test_documents_without_text_are_left_out(tmp_path: Path) -> None:
    """Some published sets have such, and judge some of them as wrong."""
    corpus = [
        {"_id": name, "title": "", "text": text} for name, text in zip("abcd", ["one", "", "two", " "], strict=True)
    ]
    queries = [{"_id": "1", "text": "two"}]
    qrels = [{"query-id": "1", "corpus-id": name, "score": grade} for name, grade in (("c", 1), ("b", 0))]
    spec = {"name": "r", "kind": "retrieval", "queries": queries, "corpus": corpus, "qrels": qrels}
    task = load_task(spec)
    assert isinstance(task, RetrievalTask)
    assert task.documents == ["one", "two"] and task.relevance == [{1: 1.0}]
    qrels[1]["score"] = 1
    with pytest.raises(DataError, match="row 2, column text: the text is empty"):
        load_task(spec)


def test_columns_of_retrieval_files_can_be_named(tmp_path: Path) -> None:
    """A log has no column called text."""
    _write(tmp_path / "corpus.jsonl", [{"id": i, "body": f"body {i}", "text": f"text {i}"} for i in range(3)])
    _write(tmp_path / "queries.jsonl", [{"id": i, "query": f"asked {i}", "said": f"said {i}"} for i in range(3)])
    _write(tmp_path / "qrels.jsonl", [{"query_id": i, "doc_id": i, "relevance": 2} for i in range(3)])
    files = {name: f"{name}.jsonl" for name in ("queries", "corpus", "qrels")}
    spec: dict[str, Any] = {"name": "r", "kind": "retrieval", **files}
    task = load_task(spec, tmp_path)
    assert isinstance(task, RetrievalTask)
    assert (task.queries[1], task.documents[1]) == ("asked 1", "text 1")
    task = load_task({**spec, "query": "said", "document": "body"}, tmp_path)
    assert isinstance(task, RetrievalTask)
    assert (task.queries[1], task.documents[1]) == ("said 1", "body 1")


def test_a_query_of_the_corpus_is_not_its_own_answer(tmp_path: Path) -> None:
    """As in ArguAna: without it every model finds the query itself first. A number on both sides says nothing."""
    documents = topic_texts(30)[0]
    _write(tmp_path / "corpus.jsonl", [{"_id": str(i), "title": "", "text": t} for i, t in enumerate(documents)])
    asked = [*documents[:4], "another text of the number four", documents[5]]
    _write(tmp_path / "queries.jsonl", [{"_id": str(i), "text": t} for i, t in enumerate(asked)])
    right = [(i, i + 10) for i in range(5)] + [(5, 5)]
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{q}\t{d}\t1\n" for q, d in right))
    files = {"queries": "queries.jsonl", "corpus": "corpus.jsonl", "qrels": "qrels.tsv"}
    task = load_task({"name": "r", "kind": "retrieval", **files}, tmp_path)
    assert isinstance(task, RetrievalTask) and task.own is not None
    assert task.own.tolist() == [0, 1, 2, 3, -1, -1]

    def counterpart(texts: Any) -> np.ndarray:  # of each text itself, and then the one ten further on
        rows = [documents.index(text) if text in documents else 4 for text in texts]
        return np.array([np.eye(30)[row] + 0.5 * np.eye(30)[row % 10] for row in rows])

    assert task.score(counterpart).outputs.predicted[:4] == pytest.approx(1.0)


def test_labels_of_pairs() -> None:
    rows = [{"text1": "a", "text2": "b", "label": x} for x in (1, 0, "true", False)]
    task = load_task({"name": "p", "kind": "pairs", "test": rows})
    assert isinstance(task, PairTask)
    assert task.labels.tolist() == [True, False, True, False]
    with pytest.raises(DataError, match=r'row 1, column label: 0 or 1 .*"same".*\bpositive\b'):
        load_task({"name": "p", "kind": "pairs", "test": [{**rows[0], "label": "same"}]})
    with pytest.raises(DataError, match=r'column label: .*"sam".*"same"'):
        load_task({"name": "p", "kind": "pairs", "test": _pair_rows(), "positive": "sam"})


def test_excluded_texts_are_left_out() -> None:
    rows = _pair_rows()
    task = load_task({"name": "s", "kind": "similarity", "test": rows, "exclude": [rows[2]["text1"].upper()]})
    assert len(task.test_items()) == 39
    whole = load_task({"name": "s", "kind": "similarity", "test": rows})
    assert whole.without(whole.score(words), [rows[2]["text1"]]).value == task.score(words).value
    joint = [join_pair(rows[2]["text1"], "not there")]  # as a corpus of joint pairs has its texts
    again = load_task({"name": "s", "kind": "similarity", "test": rows, "exclude": joint})
    assert again.test_items() == task.test_items()
    with pytest.raises(DataError, match="^rows: all 40 test items .*exclude"):
        load_task({"name": "s", "kind": "similarity", "test": rows, "exclude": [row["text2"] for row in rows]})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"name": "x", "kind": "similarity", "tests": []},
            'task x, tests: .*"tests".*"test"',
        ),
        ({"name": "x"}, "task x, kind: "),
        ({"kind": "similarity"}, r"task \?, name: "),
        ({"name": "x", "kind": "similar"}, "task x, kind: .*similar"),
        ({"name": "x", "kind": "similarity"}, r'task x: .*"test".*\bsimilarity\b'),
        ({"name": "x", "kind": "classification", "test": _rows(9, 1)}, r'task x: .*"train".*\bclassification\b'),
        ({"name": "x", "kind": "clustering", "test": _rows(9, 1), "max_items": 0}, r"task x, max_items: .*\(got 0\)"),
        (
            {"name": "x", "kind": "pairs", "test": _pair_rows(), "score": "score", "max_train": 9},
            "task x: .*pairs .*max_train, score; .*exclude, label, positive",
        ),
    ],
)
def test_bad_descriptions(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(DistilvecError, match=message):
        load_task(spec)


@pytest.mark.parametrize(
    ("content", "message"), [("a: [", "line 1, column 5"), ("- a", "name, kind, test"), (None, "no such file")]
)
def test_bad_task_files(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "task.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(DistilvecError, match=rf"/task\.yaml: (.|\n)*{message}"):
        load_task(str(file))


def test_two_tasks_of_one_name() -> None:
    spec = {"name": "s", "kind": "similarity", "test": _pair_rows()}
    with pytest.raises(DistilvecError, match=r": s\."):
        load_tasks([spec, spec])


def test_a_benchmark_without_mteb(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "mteb" else find(name, *more))
    with pytest.raises(EnvironmentProblem, match=r'"NFCorpus" .*distilvec\[mteb\]'):
        load_task("NFCorpus")


def test_mteb_itself() -> None:
    pytest.importorskip("mteb", reason="the extra mteb is not installed")
    from mteb.mocks.mock_tasks import MockRetrievalTask, MockSTSTask

    from distilvec.judging import CachedEncoder, MtebTask

    encoder = CachedEncoder(words, name="org/words")
    score = MtebTask(MockSTSTask()).score(encoder)
    assert (score.task, score.metric, score.interval) == ("MockSTSTask", "cosine_spearman", None)
    assert MtebTask(MockRetrievalTask()).score(encoder).kind == "retrieval"
    assert load_task("NFCorpus").name == "NFCorpus"
    with pytest.raises(DistilvecError, match='"NFCorpu".*"NFCorpus"'):
        load_task("NFCorpu")


def test_a_file_of_data_is_not_a_task(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a", "label": "b"}\n')
    with pytest.raises(DistilvecError, match=r'^judging\.tasks: ".*/rows\.jsonl".*kind: classification'):
        load_task(str(file))


@pytest.mark.parametrize("spec", [["stsb"], None, 7])
def test_tasks_that_are_not_a_name_file_or_mapping_are_refused(spec: Any) -> None:
    with pytest.raises(DistilvecError, match=rf"^judging\.tasks: .*{type(spec).__name__}"):
        load_task(spec)


@pytest.mark.parametrize("labels", [("1.0", "0.0"), (1.0, 0.0), (True, False), ("1", "0")])
def test_labels_of_pairs_however_they_are_spelt(labels: tuple[Any, Any]) -> None:
    """A column of numbers with gaps comes out of pandas as 1.0 and 0.0."""
    rows = [{**row, "label": labels[row["label"] != "same"]} for row in _pair_rows()]
    plain = load_task({"name": "p", "kind": "pairs", "test": rows})
    named = load_task({"name": "p", "kind": "pairs", "test": rows, "positive": 1})
    expected = load_task({"name": "p", "kind": "pairs", "test": _pair_rows(), "positive": "same"})
    assert plain.score(words).value == named.score(words).value == expected.score(words).value


def test_list_of_tasks_mixes_names_files_and_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, place = tmp_path / "data", tmp_path / "project"
    data.mkdir()
    place.mkdir()
    rows = "".join(json.dumps({"text1": "a b", "text2": f"a {n}", "score": n}) + "\n" for n in range(4))
    (data / "stsb.test.jsonl").write_text(rows)
    (place / "own.jsonl").write_text(rows)
    (place / "more.yaml").write_text("name: more\nkind: similarity\ntest: own.jsonl\n")
    (place / "tasks.yaml").write_text("[stsb, more.yaml, {name: own, kind: similarity, test: own.jsonl}]\n")
    monkeypatch.setenv("DISTILVEC_DATA", str(data))
    monkeypatch.setattr(
        "distilvec.judging.loading.talas_spec",
        lambda name, folder: {"name": name, "kind": "similarity", "test": "stsb.test.jsonl"},
    )
    assert [task.name for task in read_tasks(place / "tasks.yaml")] == ["stsb", "more", "own"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"kind": "perceptron", "log": True}, "target: classification does not read log"),
        ({"kind": "perceptron", "target": "regression", "label": "y"}, "target: regression does not read label"),
        ({"kind": "retrieval", "text": "y"}, "not text"),
    ],
)
def test_keys_of_another_target_are_refused(given: dict[str, object], told: str) -> None:
    rows = [{"query": "a", "document": "b"}]
    with pytest.raises(ValueError, match=told):
        TaskSpec.model_validate({"name": "t", "train" if given["kind"] == "perceptron" else "test": rows, **given})


def test_neighbours_name_the_key_of_their_column() -> None:
    rows = [{"id": str(i), "body": f"text {i}"} for i in range(4)]
    with pytest.raises(DataError, match=r'no column "text", but "id", "body"\..* key text '):
        load_task({"name": "n", "kind": "neighbours", "corpus": rows, "teacher": "t"})


def test_documents_that_look_like_ids_are_told(caplog: pytest.LogCaptureFixture) -> None:
    def loaded(*documents: Any) -> str:
        caplog.clear()
        rows = [{"query": f"question {i}", "document": document} for i, document in enumerate(documents)]
        load_task({"name": "r", "kind": "retrieval", "test": rows})
        return caplog.text

    told = loaded("D17", "D18", "doc-3")
    assert all(word in told for word in ("column document", '"D17"', "queries", "corpus", "qrels"))
    assert (
        not loaded("What is the 1st?", "D18", "D19")
        and not loaded("yes", "no", "yes")
        and not loaded("c1cc(N)cc1", "CC(=O)O2")
    )
    with pytest.raises(DataError, match=r"row 1, column document: .*list \['D17'\].*qrels"):
        loaded(["D17"], ["D18"])
