"""Texts in which nothing can be seen count as empty, wherever texts come in."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from starlette.testclient import TestClient

from distilvec.corpus import read_corpus
from distilvec.corpus.keys import is_blank
from distilvec.errors import DataError
from distilvec.judging import judge, load_task
from distilvec.judging.encoder import CachedEncoder
from distilvec.serving import application
from distilvec.students.static_tables import static

#: Zero-width space and joiners, soft hyphen, selector of a form, Hangul's fillers, Braille's empty cell, a lone accent,
#: the mark of a direction, an end of paragraph, a control character of Latin-1, a tag.
INVISIBLE = [
    "\u200b \u200b",
    "\u2060\u200d",
    "\u00ad",
    "\ufe0f",
    "\u3164",
    "\uffa0",
    "\u115f",
    "\u2800",
    "\u0301",
    "\u202e",
    "\u2029",
    "\x85",
    "\U000e0041",
    "\ufeff\u200b",
]
VISIBLE = ["a\u200b", "\U0001f44d\ufe0f", "\uac01", "\u2801", "é", "\u0928\u093f", ".", "\ue000"]


def test_visible_texts() -> None:
    assert all(map(is_blank, [*INVISIBLE, "", " \t"]))
    assert not any(map(is_blank, VISIBLE))


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_a_corpus_counts_them_as_empty(kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"texts.{kind}"
    texts = [text for text in INVISIBLE if text != "\x85"] + VISIBLE
    lines = texts if kind == "txt" else [json.dumps({"text": text}) for text in texts]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    corpus = read_corpus(file, tmp_path / "corpus", holdout=0.0)
    assert corpus.texts() == VISIBLE
    assert corpus.audit.rejected == {"empty": len(INVISIBLE) - 1}


def test_optional_negatives_may_be_invisible(tmp_path: Path) -> None:
    rows = [{"a": "query", "b": "document", "c": "\u200b"}, {"a": "other", "b": "\u00ad", "c": "x"}]
    corpus = read_corpus(rows, tmp_path / "corpus", text=["a", "b", "c"], holdout=0.0)
    assert corpus.texts() == ["query", "document"] and corpus.audit.rejected == {"empty": 1}


@pytest.mark.parametrize("text", INVISIBLE)
def test_tasks_name_the_row(text: str) -> None:
    rows = [{"text1": "a", "text2": "b", "score": 1.0}, {"text1": text, "text2": "b", "score": 0.0}]
    with pytest.raises(DataError, match="row 2, column text1: the text is empty"):
        load_task({"name": "s", "kind": "similarity", "test": rows})


@pytest.fixture(scope="module")
def table(tiny_bert: Path) -> SentenceTransformer:
    """A table of word vectors, whose vector of an unknown sign is zero."""
    return static(str(tiny_bert), dimensions=16)


def test_a_table_of_vectors_serves_no_zeros(table: SentenceTransformer) -> None:
    unknown = "\U0001f9ff\U0001faac"
    assert not table.encode([unknown]).any(), "what this test is about"
    with TestClient(application(table, "table")) as client:
        for text in [*INVISIBLE, unknown]:
            answer = client.post("/v1/embeddings", json={"input": ["a text", text]})
            assert answer.status_code == 400 and "input 1 " in answer.json()["error"]["message"]
        answer = client.post("/v1/embeddings", json={"input": ["a text", "a\u200b"]})
        assert answer.status_code == 200 and np.any(answer.json()["data"][1]["embedding"])


def test_judging_says_that_vectors_are_zero(table: SentenceTransformer, caplog: pytest.LogCaptureFixture) -> None:
    rows: list[dict[str, Any]] = [{"text1": f"word {n}", "text2": "\U0001f9ff", "score": n / 9} for n in range(10)]
    with caplog.at_level(logging.WARNING):
        judge(
            {"table": CachedEncoder(table, name="table")},
            [load_task({"name": "s", "kind": "similarity", "test": rows})],
        )
    assert "table: 1 of 11 vectors are zero" in caplog.text
