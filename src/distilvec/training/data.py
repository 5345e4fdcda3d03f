"""From corpus rows to the tensors of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from distilvec.teachers.signals import Wanted
from distilvec.training.items import PreparedCorpus
from distilvec.training.sources import shifted
from distilvec.training.tokens import TokenizedCorpus

if TYPE_CHECKING:
    from distilvec.corpus import Corpus


class SignalSource(Protocol):
    """The source of a teacher's signals: a store or the teacher itself."""

    def prepare(self, wanted: Wanted, tokens: TokenizedCorpus | PreparedCorpus) -> None:
        """Called once before the first `fetch`, with what the method wants of this teacher."""
        ...

    def fetch(self, rows: Sequence[int] | np.ndarray) -> dict[str, Any]:
        """Corpus rows -> the fields of `TeacherSignals`, on the CPU; student positions count without padding."""
        ...


def fetch_all(sources: Sequence[SignalSource], rows: np.ndarray, features: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what all teachers say about corpus rows, aligned with the student's padded features."""
    fetched = [source.fetch(rows) for source in sources]
    for signals in fetched:
        if signals.get("alignments"):
            signals["alignments"] = shifted(signals["alignments"], features["attention_mask"].bool(), side=0)
    return fetched


class Collator:
    """Corpus rows -> a plain dictionary of tensors: features, teachers, keys, and what the corpus knows.

    Args:
        corpus: the prepared corpus.
        tokens: its token ids, or its prepared items, for the student.
        sources: one per teacher, in the recipe's order.
        companions: int64 [n, m], corpus rows of the rest of each anchor's pair or triplet; where given, a batch of
            anchors is followed by all their positives, then by all their negatives.
        scores: float32 [rows of the corpus], what the scorers say of each document and its anchor; NaN where nothing.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokens: TokenizedCorpus | PreparedCorpus,
        sources: Sequence[SignalSource],
        companions: np.ndarray | None = None,
        scores: np.ndarray | None = None,
    ) -> None:
        self.tokens, self.sources, self.companions = tokens, list(sources), companions
        # An item is what the teacher reads: a text and its translation, which have one lesson, are no negatives.
        self.keys, self.by_domain = corpus.teacher_keys, corpus.weights
        self.columns = {
            name: values
            for name, values in (
                ("labels", corpus.labels),
                ("domain", corpus.domains),
                ("group", corpus.groups),
                ("role", corpus.roles),
                ("scores", scores),
            )
            if values is not None
        }

    def expand(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Rows that a batch is drawn from -> all rows of the batch."""
        index = np.asarray(rows, dtype=np.int64)
        if self.companions is None:
            return index
        return np.concatenate([index, self.companions[index].T.ravel()])

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Tokens of each item's longest text, int [n]: batches are made of items of similar length."""
        lengths = self.tokens.lengths[rows]
        if self.companions is None:
            return lengths
        return np.maximum(lengths, self.tokens.lengths[self.companions[rows]].max(1))

    def weights(self, rows: np.ndarray) -> np.ndarray | None:
        """Return how often an epoch reads each of these rows, float [n]; None = once."""
        return None if self.by_domain is None else self.by_domain[self.columns["domain"][rows]]

    def known(self, index: np.ndarray) -> dict[str, Any]:
        """Return what the corpus and the scorers say of its rows: keys uint8 [n, 16], and columns [n] by name."""
        columns = {name: torch.from_numpy(np.asarray(values[index])) for name, values in self.columns.items()}
        return {"keys": torch.from_numpy(np.array(self.keys[index])), **columns}

    def __call__(self, rows: Sequence[int]) -> dict[str, Any]:
        index = self.expand(rows)
        features = self.tokens.features(index)
        return {
            "features": features,
            "teachers": fetch_all(self.sources, index, features),
            "rows": torch.from_numpy(index),
            **self.known(index),
        }


def amount(batch: dict[str, Any]) -> tuple[int, int]:
    """Count the items of a micro-batch, and what it is weighted by if there is any of it: tokens of answers, or the
    items that teachers have lessons for, of which a loss is a mean.
    """
    mask, items = batch["features"].get("answer_mask"), len(batch["rows"])
    if mask is None:
        return items, sum(int(each["present"].sum()) for each in batch["teachers"])
    from distilvec.modules.causal import answer_places

    return items, int(answer_places(mask)[1].sum())
