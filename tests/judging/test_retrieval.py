from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.functions import lengths

from distilvec.errors import DataError
from distilvec.judging import CachedEncoder, RetrievalTask
from distilvec.judging.reranking import RerankingTask
from distilvec.judging.scripts import WORDS_OR_PAIRS, in_pairs
from distilvec.judging.tasks import top_rows, unit

from .embedders import noise, topic_texts, words

TEXTS = topic_texts(160)[0]
QUERIES = [" ".join(text.split()[::2]) for text in TEXTS[:40]]
NOT_THERE = [f"lost{i}" for i in range(3)]


def test_against_sentence_transformers(tiny_bert: Path, sentences: list[str]) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

    model = SentenceTransformer(str(tiny_bert), device="cpu")
    rng = np.random.default_rng(0)
    queries, documents = sentences[:30], sentences[30:190]
    relevance = {q: {int(d): 1.0 for d in rng.choice(160, 3, replace=False)} for q in range(30)}
    score = RetrievalTask("r", queries, documents, relevance).score(model.encode)
    evaluator = InformationRetrievalEvaluator(
        {str(q): text for q, text in enumerate(queries)},
        {str(d): text for d, text in enumerate(documents)},
        {str(q): {str(d) for d in found} for q, found in relevance.items()},
        ndcg_at_k=[10],
        precision_recall_at_k=[10, 100],
        mrr_at_k=[10],
        map_at_k=[10],
    )
    theirs = evaluator(model)
    assert score.value == pytest.approx(theirs["cosine_ndcg@10"], abs=1e-6)
    assert score.details["recall@10"] == pytest.approx(theirs["cosine_recall@10"], abs=1e-6)
    assert score.details["recall@100"] == pytest.approx(theirs["cosine_recall@100"], abs=1e-6)
    assert score.details["mrr@10"] == pytest.approx(theirs["cosine_mrr@10"], abs=1e-6)
    assert (score.metric, score.n, score.details["documents"]) == ("ndcg@10", 30, 160)


def test_graded_relevance_against_sklearn() -> None:
    from sklearn.metrics import ndcg_score

    rng = np.random.default_rng(0)
    grades = rng.choice([0, 0, 0, 0, 1, 2, 4], size=(40, 160)).astype(float)
    relevance = {q: {d: float(grades[q, d]) for d in range(160)} for q in range(40)}
    score = RetrievalTask("r", QUERIES, TEXTS, relevance).score(words)
    cosine = unit(words(QUERIES)) @ unit(words(TEXTS)).T
    assert score.value == pytest.approx(ndcg_score(grades, cosine, k=10), abs=1e-6)


def test_from_pairs_counts_equal_documents_once() -> None:
    pairs = RetrievalTask.from_pairs("r", [*QUERIES, "again"], [*TEXTS[:40], TEXTS[0]])
    assert (len(pairs.queries), len(pairs.documents)) == (41, 40)
    assert pairs.relevance[40] == {0: 1.0}
    twice = RetrievalTask.from_pairs("r", ["q", "q"], ["d", "e"])
    assert twice.relevance == [{0: 1.0, 1: 1.0}]
    score = RetrievalTask.from_pairs("r", QUERIES, TEXTS[:40]).score(words)
    assert score.value > 0.9 > 0.4 > RetrievalTask.from_pairs("r", QUERIES, TEXTS[:40]).score(noise).value


def test_queries_without_answer_are_left_out() -> None:
    task = RetrievalTask("r", [*QUERIES[:2], *NOT_THERE], TEXTS, {0: {0: 1.0}, 1: {1: 1.0}, 3: {0: 0.0}, 4: {2: -1.0}})
    score = task.score(words)
    assert (score.n, score.details["queries_without_answer"]) == (2, 3)


def test_fewer_documents_than_ten() -> None:
    score = RetrievalTask("r", ["sea"], ["ship", "sea", "moon"], {0: {1: 1.0}}).score(words)
    assert (score.value, score.interval) == (1.0, None)
    assert score.details["recall@100"] == 1.0


@pytest.mark.skipif(importlib.util.find_spec("bm25s") is None, reason="the extra bm25 is not installed")
def test_bm25_is_scored_too() -> None:
    task = RetrievalTask.from_pairs("r", QUERIES, TEXTS[:40])
    found = task.score(noise).details["bm25"]
    assert found["ndcg@10"] > 0.9
    assert set(found) == {"ndcg@10", "recall@10", "recall@100", "mrr@10"}
    lost = RetrievalTask("r", NOT_THERE, TEXTS, {q: {q: 1.0} for q in range(3)})
    assert lost.bm25() == {"ndcg@10": 0.0, "recall@10": 0.0, "recall@100": 0.0, "mrr@10": 0.0}


@pytest.mark.skipif(importlib.util.find_spec("bm25s") is None, reason="the extra bm25 is not installed")
def test_bm25_does_not_start_jax(tmp_path: Path) -> None:
    """It would take three quarters of a GPU's memory for itself."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("raise SystemError('started')\n")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from distilvec.judging import RetrievalTask
found = RetrievalTask("r", ["ship"], ["a ship", "a wave"], {{0: {{0: 1.0}}}}).bm25()
assert found["ndcg@10"] == 1.0 and "jax" not in sys.modules, (found, sys.modules.get("jax"))
try:
    import jax
except SystemError:
    print("as before")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "as before\n", done.stderr


@pytest.mark.skipif(importlib.util.find_spec("bm25s") is None, reason="the extra bm25 is not installed")
def test_bm25_by_its_formula() -> None:
    """Lucene's BM25 written out on four documents without stop words."""
    documents = ["ship wave wave", "ship harbour moon planet", "comet", "wave ship"]
    tokens = [document.split() for document in documents]
    average = np.mean([len(t) for t in tokens])
    expected = []
    for t in tokens:
        total = 0.0
        for word in ("ship", "wave"):
            n = sum(word in other for other in tokens)
            idf = np.log(1 + (4 - n + 0.5) / (n + 0.5))
            frequency = t.count(word)
            total += idf * frequency / (frequency + 1.5 * (1 - 0.75 + 0.75 * len(t) / average))
        expected.append(total)
    best = int(np.argmax(expected))
    found = RetrievalTask("r", ["ship wave"], documents, {0: {best: 1.0}}).bm25()
    assert found is not None
    assert found["mrr@10"] == 1.0
    second = int(np.argsort(expected)[-2])
    found = RetrievalTask("r", ["ship wave"], documents, {0: {second: 1.0}}).bm25()
    assert found is not None
    assert found["mrr@10"] == 0.5


@pytest.mark.parametrize("package", ["bm25s", None])
@pytest.mark.parametrize(
    ("queries", "documents"),
    [
        (["手机壳", "上海"], ["北京的天气很好", "我买了一个新的手机壳", "他昨天去了上海"]),
        (["กินข้าว", "ที่นี่"], ["วันนี้ฝนตก", "ฉันกินข้าวแล้ว", "เขาอยู่ที่นี่"]),
        (["さくら", "電車"], ["今日は暑いです", "庭にさくらがあります", "電車で行きました"]),
    ],
)
def test_search_by_words_finds_scripts_without_spaces(
    package: str | None, queries: list[str], documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if package is None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    else:
        pytest.importorskip(package)
    task = RerankingTask(RetrievalTask("r", queries, documents, {0: {1: 1.0}, 1: {2: 1.0}}))
    assert task.first == ("tf-idf" if package is None else "BM25")
    assert task._found[1][:, 0].tolist() == [1, 2]


def test_scripts_with_spaces_keep_their_words() -> None:
    bm25s = pytest.importorskip("bm25s")
    texts = [
        *TEXTS,
        *QUERIES,
        "L’été, à 12:30 – naïve user_name! 한국어 단어",
        "Добрый день, мир",
        "नमस्ते दुनिया",
        "شكرا جزيلا",
    ]
    assert [in_pairs(text) for text in texts] == texts
    ours, plain = (
        bm25s.tokenize(texts, stopwords="en", show_progress=False, return_ids=False, **how)
        for how in ({"token_pattern": WORDS_OR_PAIRS}, {})
    )
    assert ours == plain


def test_without_bm25s_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    details = RetrievalTask.from_pairs("r", QUERIES[:3], TEXTS[:3]).score(words).details
    assert details["bm25"] is None
    assert "pip install 'distilvec[bm25]'" in details["bm25_absent"]


def test_relevance_outside_the_columns_is_refused() -> None:
    with pytest.raises(DataError, match=r"^task r: .*document row 9 of 2\b"):
        RetrievalTask("r", ["q"], ["d", "e"], {0: {9: 1.0}})
    with pytest.raises(DataError, match=r"^task r: .*query row 5 of 1\b"):
        RetrievalTask("r", ["q"], ["d", "e"], {5: {0: 1.0}})
    with pytest.raises(DataError, match=r"^task r: .*\b1 queries, 1 documents"):
        RetrievalTask("r", ["q"], ["d"], {0: {0: 0.0}})


def test_top_rows_is_a_stable_sort() -> None:
    rng = np.random.default_rng(0)
    queries, documents = rng.integers(-2, 3, (30, 4)), rng.integers(-2, 3, (50, 4))
    found = top_rows(queries, documents, 50)
    assert np.array_equal(found, np.argsort(-(queries @ documents.T), axis=1, kind="stable"))
    products = queries @ documents.T
    five = np.take_along_axis(products, top_rows(queries, documents, 5), axis=1)
    assert np.array_equal(five, -np.sort(-products, axis=1)[:, :5])


def test_retrieval_with_words_of_one_letter_is_scored() -> None:
    task = RetrievalTask.from_pairs("letters", ["x", "y"], ["a", "b"])
    assert task.score(CachedEncoder(lengths)).kind == "retrieval"
