"""Token ids of documents, each read with its query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from distilvec.corpus.keys import join_pair
from distilvec.flow.score import QueryDocuments
from distilvec.training.items import check_items
from distilvec.training.tokens import TokenizedCorpus

if TYPE_CHECKING:
    from pathlib import Path

    from sentence_transformers import SentenceTransformer

    from distilvec.corpus import Corpus


class PairCorpus(TokenizedCorpus):
    """As `TokenizedCorpus`: a document's row has the ids of its query and itself, a query's row those of nothing.

    Attributes:
        asked: bool [rows of the corpus], the documents.
    """

    asked: np.ndarray

    def features(self, rows: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
        """Rows -> what `Ranker` reads: as `TokenizedCorpus.features`, and `asked`, bool [B]."""
        return {**super().features(rows), "asked": torch.from_numpy(self.asked[np.asarray(rows)])}


def pair_items(student: SentenceTransformer, corpus: Corpus, cache: Path) -> PairCorpus:
    """Token ids of a corpus' documents with their queries, made once and kept in a file."""
    check_items(student, corpus.kind, "student")
    pairs = QueryDocuments.of(corpus)
    query_of = np.full(len(corpus), -1)
    query_of[pairs.documents] = pairs.queries

    def texts(rows: np.ndarray) -> list[str]:
        rows = np.asarray(rows)
        documents = rows[query_of[rows] >= 0]
        both = zip(corpus.texts(query_of[documents]), corpus.texts(documents), strict=True)
        joined = iter([join_pair(*pair) for pair in both])
        return [next(joined) if query_of[row] >= 0 else join_pair("", "") for row in rows]

    tokens = PairCorpus.build(student, texts, len(corpus), cache, f"{corpus.fingerprint}|with their queries")
    tokens.asked = query_of >= 0
    return tokens
