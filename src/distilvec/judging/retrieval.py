"""Finding documents by queries, with BM25 beside it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from distilvec.corpus.keys import canonical
from distilvec.errors import DataError
from distilvec.judging.encoder import Encode
from distilvec.judging.scores import Outputs, Score
from distilvec.judging.scripts import WORDS_OR_PAIRS, in_pairs
from distilvec.judging.tasks import JudgingTask, distinct, side, top_rows, unit

DEPTH = 100
Relevance = Mapping[int, Mapping[int, float]]


class RetrievalTask(JudgingTask):
    """nDCG@10 of a search by cosine; recall@10, recall@100, MRR@10 and BM25's figures in the details.

    nDCG uses the judged relevance itself as gain and log2(rank + 1) as discount, as trec_eval does. Queries
    without any relevant document are left out and counted. Equal documents, which no model tells apart, are one, with
    the highest relevance of any of them; so are equal queries.

    Args:
        relevance: query row -> {document row: relevance}; 0 or less = not relevant.
        own: the document that each query is itself, which is taken out of what is found for it.
        begin: what queries and documents begin with, so that models read them as they are; None = models put their own
            prompts before them.
    """

    kind: ClassVar[str] = "retrieval"

    def __init__(
        self,
        name: str,
        queries: Sequence[str],
        documents: Sequence[str],
        relevance: Relevance,
        *,
        domain: str | None = None,
        seed: int = 0,
        own: Sequence[int] | None = None,
        begin: tuple[str, str] | None = None,
    ) -> None:
        super().__init__(name, domain, seed)
        self.begin = begin
        wanted = {q: {d: float(g) for d, g in grades.items() if g > 0} for q, grades in relevance.items()}
        rows = [q for q in sorted(wanted) if wanted[q]]
        if not rows or not documents:
            given = f"{len(queries)} queries, {len(documents)} documents"
            raise DataError(f"no query has a relevant document ({given})", where=f"task {name}")
        if rows[0] < 0 or rows[-1] >= len(queries):
            raise DataError(f"relevance names query row {rows[-1]} of {len(queries)}", where=f"task {name}")
        highest = max(max(wanted[q]) for q in rows)
        if highest >= len(documents) or min(min(wanted[q]) for q in rows) < 0:
            raise DataError(f"relevance names document row {highest} of {len(documents)}", where=f"task {name}")
        self.documents, document_row = numbered(documents)
        asked, query_row = numbered([queries[q] for q in rows])
        self.queries, self.relevance = asked, [dict[int, float]() for _ in asked]
        itself = np.full(len(asked), -1)
        for q, row in zip(rows, query_row, strict=True):
            for d, grade in wanted[q].items():
                place = document_row[d]
                self.relevance[row][place] = max(grade, self.relevance[row].get(place, 0.0))
            if own is not None and own[q] >= 0:
                itself[row] = document_row[own[q]]
        self.own = None if own is None else itself
        self.unjudged = len(queries) - len(rows)
        odd = {
            "equal_documents": len(documents) - len(self.documents),
            "equal_queries": len(rows) - len(asked),
            "queries_among_documents": self._among_documents(itself),
        }
        #: What is odd about the texts, counted.
        self.facts = {fact: count for fact, count in odd.items() if count}
        self._bm25: dict[str, float] | None = None

    @classmethod
    def from_pairs(cls, name: str, queries: Sequence[str], documents: Sequence[str], **options: Any) -> RetrievalTask:
        """Each query has one right document, the one in its row; equal documents (and queries) are one."""
        (asked, query_row), (found, document_row) = numbered(queries), numbered(documents)
        relevance: dict[int, dict[int, float]] = {}
        for query, document in zip(query_row, document_row, strict=True):
            relevance.setdefault(query, {})[document] = 1.0
        return cls(name, asked, found, relevance, **options)

    def _among_documents(self, own: npt.NDArray[Any]) -> int:
        """Count the queries equal to a document that is neither judged right for them nor left out as their own."""
        row_of = {canonical(text): row for row, text in enumerate(self.documents)}
        places = [row_of.get(canonical(text), -1) for text in self.queries]
        found = zip(places, own.tolist(), self.relevance, strict=True)
        return sum(place not in (-1, itself) and place not in wanted for place, itself, wanted in found)

    @staticmethod
    def remarks(details: Mapping[str, Any]) -> list[str]:
        """Sentences on what is odd about a task's texts, by `facts` or by the details of a score."""
        sentences = {
            "equal_documents": "{:,} documents have the text of another one and count as that one",
            "equal_queries": "{:,} queries have the text of another one and count as that one",
            "queries_among_documents": "{:,} queries have the text of a document that is not right for them, and which "
            "every model finds first",
        }
        return [sentence.format(details[fact]) for fact, sentence in sentences.items() if details.get(fact)]

    def texts(self) -> list[str]:
        return distinct(self.queries, self.documents)

    def test_items(self) -> Sequence[tuple[str, ...]]:
        return [(query,) for query in self.queries]

    def score(self, encode: Encode) -> Score:
        documents = unit((encode if self.begin else side(encode, "document"))(self.documents))
        queries = unit((encode if self.begin else side(encode, "query"))(self.queries))
        values = self.figures(self.without_own(top_rows(queries, documents, self._depth)))
        details: dict[str, Any] = {key: float(column.mean()) for key, column in values.items() if key != "ndcg@10"}
        details |= {"documents": len(self.documents), "queries_without_answer": self.unjudged, **self.facts}
        details["bm25"] = self.bm25()
        if details["bm25"] is None:
            details["bm25_absent"] = "BM25 needs bm25s: pip install 'distilvec[bm25]'"
        per_query = values["ndcg@10"].astype(np.float32)
        return self._scored(Outputs("ndcg@10", self._truth(), per_query), details)

    def _truth(self) -> npt.NDArray[Any]:
        """[queries], which pairs only scores of the same queries."""
        return np.zeros(len(self.queries), dtype=np.int8)

    def bm25(self) -> dict[str, float] | None:
        """The same figures for BM25, or None; computed once."""
        ranked = self.found_by_bm25() if self._bm25 is None else None
        if ranked is not None:
            self._bm25 = {key: float(column.mean()) for key, column in self.figures(ranked).items()}
        return self._bm25

    def found_by_bm25(self) -> npt.NDArray[Any] | None:
        """Rows of documents by BM25 (bm25s: Lucene's variant, k1 1.5, b 0.75, English stop words), best first.

        Scripts without spaces between words are searched by pairs of characters.

        Returns:
            [queries, at most DEPTH], -1 = no further one has a word in common; None where bm25s is not installed.
        """
        if importlib.util.find_spec("bm25s") is None:
            return None
        bm25s = _bm25s()
        index = bm25s.BM25()
        before = self.begin or ("", "")
        asked, found = (
            [in_pairs(text.removeprefix(prompt)) for text in texts]
            for texts, prompt in zip((self.queries, self.documents), before, strict=True)
        )
        how: dict[str, Any] = {"token_pattern": WORDS_OR_PAIRS, "stopwords": "en", "show_progress": False}
        tokens = bm25s.tokenize(found, **how)
        depth = min(self._depth, len(self.documents))
        ranked = np.full((len(self.queries), depth), -1)
        if any(len(each) for each in tokens.ids):  # single characters and stop words are no words to it
            index.index(tokens, show_progress=False)
            words = bm25s.tokenize(asked, **how)
            rows, scores = index.retrieve(words, k=depth, show_progress=False, backend_selection="numpy")
            ranked = np.where(np.asarray(scores) > 0, np.asarray(rows), -1)  # score 0: no word in common
        return self.without_own(ranked)

    @property
    def _depth(self) -> int:
        """The number of documents to look up, so that `DEPTH` are left without the query itself."""
        return DEPTH + (self.own is not None)

    def without_own(self, ranked: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Ranked rows [queries, k] -> [queries, at most DEPTH] without the query itself."""
        if self.own is None:
            return ranked
        itself = ranked == self.own[:, None]
        order = np.argsort(itself, axis=1, kind="stable")
        moved = np.take_along_axis(np.where(itself, -1, ranked), order, axis=1)
        return moved[:, :DEPTH]

    def figures(self, ranked: npt.NDArray[Any]) -> dict[str, npt.NDArray[np.float64]]:
        """Per-query figures of ranked document rows [queries, <= DEPTH]; -1 = nothing."""
        gains = np.array(
            [[wanted.get(int(d), 0.0) for d in row] for wanted, row in zip(self.relevance, ranked, strict=True)]
        )
        gains = np.pad(gains, ((0, 0), (0, max(0, DEPTH - gains.shape[1]))))
        best = np.zeros((len(gains), 10))
        for row, wanted in enumerate(self.relevance):
            top = sorted(wanted.values(), reverse=True)[:10]
            best[row, : len(top)] = top
        discount = 1 / np.log2(np.arange(2, 12))
        hit = gains > 0
        relevant = np.array([len(wanted) for wanted in self.relevance], dtype=np.float64)
        first = np.where(hit[:, :10].any(axis=1), hit[:, :10].argmax(axis=1) + 1.0, np.inf)
        return {
            "ndcg@10": (gains[:, :10] @ discount) / (best @ discount),
            "recall@10": hit[:, :10].sum(axis=1) / relevant,
            "recall@100": hit.sum(axis=1) / relevant,
            "mrr@10": 1 / first,
        }


def numbered(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """Texts that differ by more than surrounding white space, and for every text its row among them."""
    first, rows = dict[str, int](), list[int]()
    different = list[str]()
    for text in texts:
        row = first.setdefault(canonical(text), len(first))
        if row == len(different):
            different.append(text)
        rows.append(row)
    return different, rows


def _bm25s() -> Any:
    """bm25s as if there were no JAX, which it starts where there is: three quarters of a GPU's memory would be gone."""
    if "bm25s" in sys.modules:
        return sys.modules["bm25s"]
    started = sys.modules.get("jax")
    sys.modules["jax"] = None  # type: ignore[assignment]  # what makes an import fail
    try:
        return importlib.import_module("bm25s")
    finally:
        del sys.modules["jax"]
        if started is not None:
            sys.modules["jax"] = started
