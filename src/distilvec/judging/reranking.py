"""Putting the documents that a search found first into a better order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from distilvec.errors import DataError
from distilvec.judging.encoder import CachedEncoder, Encode, is_sentence_transformer
from distilvec.judging.retrieval import RetrievalTask
from distilvec.judging.scores import Outputs, Score
from distilvec.judging.scripts import in_pairs
from distilvec.judging.tasks import JudgingTask

#: Documents of a query that are put into order.
DEPTH = 50
#: Queries whose documents are found at once by tf-idf.
_AT_ONCE = 100
Rows = npt.NDArray[np.int64]


class RerankingTask(JudgingTask):
    """nDCG@10 of the order that a model gives to the first documents of a search by words; MRR@10 in the details.

    The search is BM25's (extra `bm25`), or without that package one by tf-idf, which scikit-learn brings. Documents
    with equal numbers stay in its order. What it does not find among the first is found by no model; `found` in the
    details is the share of right documents that are there.

    Args:
        search: the queries, their documents, and which are right.
    """

    kind: ClassVar[str] = "reranking"

    def __init__(self, search: RetrievalTask, *, depth: int = DEPTH) -> None:
        super().__init__(search.name, search.domain, search.seed)
        self.search, self.depth = search, depth

    def texts(self) -> list[str]:
        return self.search.texts()

    def test_items(self) -> Sequence[tuple[str, ...]]:
        return self.search.test_items()

    @property
    def first(self) -> str:
        """The name of the search."""
        return self._found[0]

    @cached_property
    def _found(self) -> tuple[str, Rows]:
        """The search, and the rows of the first documents [queries, <= depth]; -1 = no more."""
        name, rows = "BM25", self.search.found_by_bm25()
        if rows is None:
            found = found_by_tfidf(self.search.queries, self.search.documents, self.depth + 1)
            name, rows = "tf-idf", self.search.without_own(found)
        return name, rows[:, : self.depth]

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """Each query with each of its first documents."""
        rows = self._found[1]
        places = zip(*np.nonzero(rows >= 0), strict=True)
        return [(self.search.queries[query], self.search.documents[rows[query, place]]) for query, place in places]

    def score(self, encode: Encode) -> Score:
        """Score a cross-encoder, or a function from pairs to as many numbers."""
        rows, begun = self._found[1], time.perf_counter()
        numbers = np.full(rows.shape, -np.inf)
        numbers[rows >= 0] = pair_numbers(encode, self.pairs)
        seconds = time.perf_counter() - begun
        order = np.argsort(-numbers, axis=1, kind="stable")
        figures = self.search.figures(np.take_along_axis(rows, order, axis=1))
        truth = np.zeros(len(rows), dtype=np.int8)  # what pairs only scores of the same queries
        mrr = self._scored(Outputs("ndcg@10", truth, figures["mrr@10"].astype(np.float32)), {})
        details = {
            "mrr@10": mrr.value,
            "mrr_interval": list(mrr.interval) if mrr.interval else None,
            "found": float(figures["recall@100"].mean()),
            "first": self.first,
            "depth": self.depth,
            "pairs": len(self.pairs),
            # Of what computes its numbers now: the time of others says nothing.
            "milliseconds": 1000 * seconds / len(rows) if hasattr(_model(encode), "parameters") else None,
        }
        return self._scored(Outputs("ndcg@10", truth, figures["ndcg@10"].astype(np.float32)), details)


def pair_numbers(encode: Any, pairs: Sequence[tuple[str, str]]) -> npt.NDArray[np.float64]:
    """Return what a model says of pairs, [n].

    Args:
        encode: a `CrossEncoder`, a student that is trained to be one, a function, or a `CachedEncoder` of one of these.
    """
    model = _model(encode)
    if is_sentence_transformer(model):
        from distilvec.modules.ranker import as_cross_encoder

        model = as_cross_encoder(model)
    if hasattr(model, "predict"):
        numbers = model.eval().predict(list(pairs), show_progress_bar=False)
    else:
        numbers = model(pairs)
    numbers = np.asarray(numbers, np.float64).reshape(len(pairs))
    if not np.isfinite(numbers).all():
        row = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise DataError(f"its number of {pairs[row]!r:.200} is not finite", where=getattr(encode, "name", "model"))
    return numbers


def _model(encode: Any) -> Any:
    return encode.model if isinstance(encode, CachedEncoder) else encode


def as_found(pairs: Sequence[tuple[str, str]]) -> npt.NDArray[np.float64]:
    """Zeros [n], which leave every order as it is."""
    return np.zeros(len(pairs))


def found_by_tfidf(queries: Sequence[str], documents: Sequence[str], depth: int) -> Rows:
    """Rows of the documents with most of a query's rare words, best first, [queries, <= depth]; -1 = none in common."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\S+")
    table = words.fit_transform(map(in_pairs, documents))
    found = []
    for start in range(0, len(queries), _AT_ONCE):
        products = (words.transform(map(in_pairs, queries[start : start + _AT_ONCE])) @ table.T).toarray()
        order = np.argsort(-products, axis=1, kind="stable")[:, :depth]
        found.append(np.where(np.take_along_axis(products, order, axis=1) > 0, order, -1))
    return np.concatenate(found)
