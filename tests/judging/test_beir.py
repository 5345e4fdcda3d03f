"""What contradicts itself in BEIR's three files: one right value, or an error that names the line."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distilvec.errors import DataError, DistilvecError
from distilvec.judging import RetrievalTask, load_task

from .embedders import topic_texts, words

TEXTS = topic_texts(60)[0]
CORPUS: list[dict[str, Any]] = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(TEXTS)]
QUERIES: list[dict[str, Any]] = [{"_id": f"q{i}", "text": " ".join(TEXTS[i].split()[:4])} for i in range(20)]
QRELS: list[dict[str, Any]] = [{"query-id": f"q{i}", "corpus-id": f"d{i}", "score": 1} for i in range(20)]


def task_of(
    corpus: list[dict[str, Any]] = CORPUS, queries: list[dict[str, Any]] = QUERIES, qrels: list[dict[str, Any]] = QRELS
) -> RetrievalTask:
    task = load_task({"name": "r", "kind": "retrieval", "queries": queries, "corpus": corpus, "qrels": qrels})
    assert isinstance(task, RetrievalTask)
    return task


def test_equal_documents_under_other_ids_count_as_one(caplog: pytest.LogCaptureFixture) -> None:
    copies = [{"_id": f"x{i}", "title": "", "text": f" {TEXTS[i]}"} for i in range(20)]
    plain = task_of().score(words)
    with caplog.at_level(logging.WARNING):
        again = task_of([*copies, *CORPUS]).score(words)
    assert again.value == pytest.approx(plain.value, abs=1e-9) and plain.value > 0.5
    assert again.details["recall@100"] == plain.details["recall@100"]
    assert (again.details["equal_documents"], again.details["documents"]) == (20, 60)
    assert "equal_documents" not in plain.details
    assert "task r: 20 documents have the text of another one" in caplog.text
    assert RetrievalTask.remarks(again.details) == ["20 documents have the text of another one and count as that one"]


def test_a_copy_has_the_highest_degree_of_its_text() -> None:
    copy = {"_id": "x", "title": "", "text": TEXTS[0]}
    for degrees in ((2, 1), (1, 2), (2, 0)):
        judged = [
            {"query-id": "q0", "corpus-id": name, "score": n} for name, n in zip(("d0", "x"), degrees, strict=True)
        ]
        assert task_of([*CORPUS, copy], qrels=judged).relevance == [{0: 2.0}]


def test_equal_queries_share_their_answers() -> None:
    queries = [{"_id": "a", "text": "sea"}, {"_id": "b", "text": "moon"}, {"_id": "c", "text": "sea "}]
    qrels = [{"query-id": q, "corpus-id": d, "score": 1} for q, d in (("a", "d0"), ("b", "d1"), ("c", "d2"))]
    task = task_of(queries=queries, qrels=qrels)
    assert (task.queries, task.relevance) == (["sea", "moon"], [{0: 1.0, 2: 1.0}, {1: 1.0}])
    assert task.facts == {"equal_queries": 1}


def test_queries_that_are_documents_under_another_id_are_counted() -> None:
    task = task_of(queries=[{"_id": f"q{i}", "text": TEXTS[i + 30]} for i in range(20)])
    assert task.facts == {"queries_among_documents": 20}
    assert task_of(queries=[{"_id": f"q{i}", "text": TEXTS[i]} for i in range(20)]).facts == {}, "these are right"
    itself = [{"_id": f"d{i + 30}", "text": TEXTS[i + 30]} for i in range(20)]
    judged = [{"query-id": f"d{i + 30}", "corpus-id": f"d{i}", "score": 1} for i in range(20)]
    assert task_of(queries=itself, qrels=judged).facts == {}, "these are taken out of what is found"


@pytest.mark.parametrize("name", [float, int, str, lambda i: f"{i}.0", np.float32])
@pytest.mark.parametrize("named", [float, int, lambda i: f"{i}.0"])
def test_whole_numbers_are_ids_however_they_are_spelt(name: Any, named: Any) -> None:
    corpus = [{"_id": name(i), "text": text} for i, text in enumerate(TEXTS)]
    qrels = [{"query-id": f"q{i}", "corpus-id": named(i), "score": 1} for i in range(20)]
    assert task_of(corpus, qrels=qrels).score(words).value == task_of().score(words).value


def test_codes_with_leading_zeros_are_not_numbers() -> None:
    corpus = [{"_id": "007", "text": TEXTS[7]}, {"_id": "7", "text": TEXTS[0]}]
    task = task_of(corpus, qrels=[{"query-id": "q0", "corpus-id": 7, "score": 1}])
    assert task.relevance == [{1: 1.0}]
    with pytest.raises(DataError, match=r'row 1, column corpus-id: .*"7".*1 of 1 '):
        task_of(corpus[:1], qrels=[{"query-id": "q0", "corpus-id": 7, "score": 1}])


def test_an_id_that_is_there_twice_names_both_rows() -> None:
    for text, other in ((TEXTS[3], "the same"), ("quite another text", "another")):
        with pytest.raises(DataError, match=rf'row 61, column _id: the id "d3".*row 4 too, with {other} text'):
            task_of([*CORPUS, {"_id": "d3", "title": "", "text": text}])


def test_qrels_that_name_what_is_not_there_are_counted() -> None:
    more = [{"query-id": "q1", "corpus-id": "d999", "score": 1}, {"query-id": "q777", "corpus-id": "d1", "score": 0}]
    with pytest.raises(DataError, match=r'row 21, column corpus-id: .*"d999".*\b2 of 22 lines'):
        task_of(qrels=[*QRELS, *more])


def test_a_pair_that_is_judged_again() -> None:
    again = {"query-id": "q1", "corpus-id": "d1", "score": 1}
    assert task_of(qrels=[*QRELS, again]).score(words).value == task_of().score(words).value
    with pytest.raises(DataError, match=r"row 21, column score: .*degree 1 above, and 0 here"):
        task_of(qrels=[*QRELS, {**again, "score": 0}])


def test_trec_s_own_form_says_how_it_gets_a_heading(tmp_path: Any) -> None:
    (tmp_path / "trec.tsv").write_text("".join(f"q{i} 0 d{i} 1\n" for i in range(20)))
    with pytest.raises(DataError, match=r"trec\.tsv: one of the columns query_id, query-id .*awk"):
        task_of(qrels=str(tmp_path / "trec.tsv"))  # type: ignore[arg-type]


def test_document_with_only_a_title_is_read(tmp_path: Path) -> None:
    files = {
        "queries": [{"_id": "q", "text": "a query"}],
        "corpus": [
            {"_id": "a", "title": "A title", "text": ""},
            {"_id": "b", "title": "", "text": "A text"},
            {"_id": "c", "title": "Both", "text": "of them"},
        ],
        "qrels": [{"query_id": "q", "doc_id": "a", "relevance": 1}],
    }
    for name, rows in files.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {"name": "found", "kind": "retrieval", **{name: f"{name}.jsonl" for name in files}}
    task = load_task(spec, tmp_path)
    assert isinstance(task, RetrievalTask)
    assert set(task.texts()) == {"a query", "A title", "A text", "Both of them"}
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "title": "", "text": ""}\n')
    with pytest.raises(DataError, match=r"corpus\.jsonl, line 1, column text: the text is empty"):
        load_task(spec, tmp_path)


def test_exclude_without_test_rows_is_refused(tmp_path: Path) -> None:
    files = {name: f"{name}.jsonl" for name in ("queries", "corpus", "qrels")}
    with pytest.raises(DistilvecError, match="exclude is for the rows of test"):
        load_task({"name": "found", "kind": "retrieval", **files, "exclude": ["a query"]}, tmp_path)
    with pytest.raises(DistilvecError, match="retrieval takes test, or queries"):
        load_task({"name": "found", "kind": "retrieval", **files, "test": "pairs.jsonl"}, tmp_path)


def test_titles_are_read_if_the_first_document_has_none(tmp_path: Path) -> None:
    parts = {
        "queries": [{"_id": "q", "text": "a query"}],
        "corpus": [{"_id": "a", "text": "A text"}, {"_id": "b", "title": "A title", "text": "of this"}],
        "qrels": [{"query_id": "q", "doc_id": "a", "relevance": 1}],
    }
    for name, rows in parts.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = load_task({"name": "found", "kind": "retrieval", **{name: f"{name}.jsonl" for name in parts}}, tmp_path)
    assert "A title of this" in set(task.texts())
