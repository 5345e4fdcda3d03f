"""Scorers opened and asked about a corpus' pairs, their stores filled, and what training gets of them."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distilvec.corpus import Corpus
from distilvec.corpus.keys import content_keys, join_pair
from distilvec.corpus.lazy import LazyTexts
from distilvec.errors import DataError, DistilvecError
from distilvec.interruption import StopSignals
from distilvec.progress import Ticker
from distilvec.recipe import ScorerSection
from distilvec.scorers.base import Scorer, pair_keys
from distilvec.store import FillReport, SignalStore, fill
from distilvec.store.turns import alone

logger = logging.getLogger(__name__)
#: Scores are differences of large numbers as often as not, and there is one for a pair.
STORAGE = "float32"


@dataclass
class ScoredCorpus:
    """A scorer, its store, and what scoring cost."""

    scorer: Scorer
    store: SignalStore
    filled: FillReport


@dataclass(frozen=True)
class QueryDocuments:
    """Every document of a corpus of pairs or triplets, beside its query.

    Attributes:
        queries, documents: int64 [n], corpus rows.
        keys: uint8 [n, 16], of both.
    """

    corpus: Corpus
    queries: np.ndarray
    documents: np.ndarray
    keys: np.ndarray

    @classmethod
    def of(cls, corpus: Corpus, rows: np.ndarray | None = None) -> QueryDocuments:
        """Those of a corpus, or of some of its rows."""
        if corpus.groups is None or corpus.roles is None:
            raise DistilvecError(
                "scorers judge queries and documents, and the corpus has single texts",
                where="corpus.text",
                remedy="Name the columns of query and document (and negatives): text: [query, document].",
            )
        groups, roles = np.asarray(corpus.groups), np.asarray(corpus.roles)
        places = np.arange(len(groups)) if rows is None else np.sort(np.asarray(rows))
        anchors, documents = places[roles[places] == 0], places[roles[places] != 0]
        order = np.argsort(groups[anchors], kind="stable")
        at = np.searchsorted(groups[anchors], groups[documents], sorter=order)
        at = np.minimum(at, max(len(anchors) - 1, 0))
        queries = anchors[order][at] if len(anchors) else documents[:0]
        own = groups[queries] == groups[documents[: len(queries)]]
        queries, documents = queries[own], documents[: len(own)][own]
        return cls(corpus, queries, documents, _keys(corpus, queries, documents))

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def texts(self) -> LazyTexts:
        """Joint texts, read when they are asked for."""
        return LazyTexts(self._joined, np.arange(len(self)))

    def _joined(self, places: np.ndarray) -> list[str]:
        sides = (self.corpus.bare(rows[places]) for rows in (self.queries, self.documents))
        return [join_pair(*pair) for pair in zip(*sides, strict=True)]


def _keys(corpus: Corpus, *sides: np.ndarray) -> np.ndarray:
    """Keys of pairs uint8 [n, 16], from the rows of both sides; without prompts, which are for embedders."""
    if not corpus.prompts:
        return pair_keys(*(corpus.keys[rows] for rows in sides))
    return pair_keys(*(content_keys(LazyTexts(corpus.bare, rows)) for rows in sides))


def score_one(
    section: ScorerSection, scorer: Scorer, pairs: QueryDocuments, stores: Path, shard: tuple[int, int] | None = None
) -> ScoredCorpus:
    """Fill the store of one scorer with what it lacks for these pairs."""
    store = SignalStore.create(stores / section.name, scorer.card, 1, STORAGE)
    store.verify(changed=True)
    ticker = Ticker(f"scoring with {section.name}", "pairs")
    with StopSignals() as signals:
        scorer.stop = signals.came  # a function that makes everybody wait looks at it, too
        try:
            with alone(store.path, signals) if shard is None else nullcontext():
                filled = fill(store, scorer, pairs.texts, pairs.keys, shard=shard, progress=ticker, stop=signals.came)
        finally:
            scorer.stop = None
    signals.check(
        f"scoring was stopped by {signals.name}; the scores of {filled.present + filled.taught:,} of "
        f"{filled.distinct:,} pairs are kept",
        store.path,
    )
    return ScoredCorpus(scorer, store, filled)


def check_gaps(section: ScorerSection, scored: ScoredCorpus) -> None:
    """Warn of scores that are about no pair, once all pairs of a corpus were asked about."""
    filled, scores = scored.filled, scored.scorer.scores
    if filled.distinct and filled.absent == filled.distinct:
        raise without_scores(section, filled.distinct)
    if scores is not None and (unknown := scores - (filled.distinct - filled.absent)) > 0:
        told = "%s: %s of its %s scores are about no pair of the corpus"
        logger.warning(told, section.name, f"{unknown:,}", f"{scores:,}")


def without_scores(section: ScorerSection, pairs: int) -> DataError:
    """Return what is said of a scorer that has nothing for so many pairs."""
    return DataError(
        f"it has no score for any of the {pairs:,} pairs",
        where=f"scorer {section.name}",
        remedy="Query and document have to be the corpus' own texts, letter by letter.",
    )


def scores_of(scored: list[ScoredCorpus], pairs: QueryDocuments) -> np.ndarray:
    """Return what the scorers say of each document and its query.

    Of several scorers it is the mean of their scores, each of zero mean and unit deviation over the pairs; a pair that
    one of them has nothing for has none.

    Returns:
        float32 [rows of the corpus], NaN for queries and where there is none.
    """
    each = []
    for one in scored:
        rows = one.store.rows(pairs.keys)
        values = np.full(len(pairs), np.nan, np.float64)
        values[rows >= 0] = one.store.read(rows[rows >= 0])[:, 0]
        if len(scored) > 1 and (rows >= 0).any():  # a dry run's few pairs may have none
            values = (values - np.nanmean(values)) / max(float(np.nanstd(values)), 1e-12)
        each.append(values)
    scores = np.full(len(pairs.corpus), np.nan, np.float32)
    scores[pairs.documents] = np.mean(each, axis=0)
    return scores
