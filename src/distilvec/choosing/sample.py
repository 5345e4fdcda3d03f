"""A few thousand items of a corpus, spread over all of it, as a corpus of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np

from distilvec.corpus import Corpus
from distilvec.corpus.keys import distinct_rows
from distilvec.corpus.split import leaking
from distilvec.errors import DataError
from distilvec.evenly import sampled_rows

#: With fewer held-out items an agreement says nothing; with more than this it gets no clearer.
FEWEST, MOST = 20, 1000
#: Texts that word pieces are chosen by; counting all of a large corpus once per candidate would take hours.
COUNTED = 100_000


def counted(corpus: Corpus) -> Corpus:
    """Return what word pieces are chosen by: the corpus, or a sample of it."""
    return corpus if len(corpus.train_rows) <= COUNTED else sampled(corpus, COUNTED)


class SampledCorpus:
    """Some rows of a corpus under new numbers; what is not about rows is the corpus' own.

    Args:
        train, holdout: its rows that are taken, ascending.
    """

    def __init__(self, corpus: Corpus, train: np.ndarray, holdout: np.ndarray) -> None:
        self._corpus, self._parts = corpus, (train, holdout)
        self._rows = np.sort(np.concatenate([train, holdout]))
        self.train_rows = np.searchsorted(self._rows, train)
        self.holdout_rows = np.searchsorted(self._rows, holdout)
        self.keys = corpus.keys[self._rows]
        same = corpus.teacher_keys is corpus.keys
        self.teacher_keys = self.keys if same else corpus.teacher_keys[self._rows]
        self.labels, self.domains, self.groups, self.roles = (
            None if values is None else values[self._rows]
            for values in (corpus.labels, corpus.domains, corpus.groups, corpus.roles)
        )
        chosen = hashlib.blake2b(self._rows.tobytes(), digest_size=8).hexdigest()
        self.fingerprint = f"{corpus.fingerprint}-{chosen}"

    def __len__(self) -> int:
        return len(self._rows)

    def texts(self, rows: Sequence[int] | np.ndarray | None = None) -> list[str]:
        return self._corpus.texts(self._rows if rows is None else self._rows[np.asarray(rows, np.int64)])

    def teacher_texts(self, rows: Sequence[int] | np.ndarray | None = None) -> list[str]:
        return self._corpus.teacher_texts(self._rows if rows is None else self._rows[np.asarray(rows, np.int64)])

    def bare(self, rows: np.ndarray) -> list[str]:
        return self._corpus.bare(self._rows[np.asarray(rows, np.int64)])

    def epoch_items(self, rows: np.ndarray) -> int:
        return self._corpus.epoch_items(self._rows[np.asarray(rows, np.int64)])

    def __reduce__(self) -> tuple[object, ...]:
        return _reopened, (self._corpus.folder, self._corpus.fingerprint, *self._parts)

    def __getattr__(self, name: str) -> object:
        return getattr(self._corpus, name)


def _reopened(folder: Path, fingerprint: str, train: np.ndarray, holdout: np.ndarray) -> SampledCorpus:
    return SampledCorpus(Corpus.open(folder, fingerprint), train, holdout)


def whole_groups(corpus: Corpus, rows: np.ndarray, of: np.ndarray) -> np.ndarray:
    """The rows, and those of `of` that form pairs or triplets with them."""
    if corpus.groups is None:
        return rows
    groups = np.asarray(corpus.groups)
    return of[np.isin(groups[of], groups[rows])]


def sampled(corpus: Corpus, limit: int, *, whole: bool = False) -> Corpus:
    """At most `limit` items, a sample of the corpus with a fixed seed: a fifth of them held out, at most 1,000.

    The corpus' own held-out items are taken; where it has fewer than 20, a fifth of the training items (at least 20)
    stand in for them. Each held-out item is there once, as in a run: copies would pass for texts that are alike.

    Args:
        whole: more training items than that, so that pairs and triplets are whole.

    Raises:
        DataError: fewer than 40 items are left.
    """
    train, holdout = np.asarray(corpus.train_rows), distinct_rows(corpus.keys, corpus.holdout_rows)
    if len(holdout) < FEWEST:
        holdout = sampled_rows(distinct_rows(corpus.keys, train), max(FEWEST, len(train) // 5))
        train = np.setdiff1d(train, holdout)
        train = train[~leaking(corpus.keys, holdout, train)]  # texts of several pairs are on one side
    holdout = sampled_rows(holdout, min(MOST, limit // 5))
    left = train
    train = sampled_rows(left, limit - len(holdout))
    train = whole_groups(corpus, train, left) if whole else train
    if len(holdout) < FEWEST or len(train) < FEWEST:
        raise DataError(
            f"{len(train)} texts to fit a map to and {len(holdout)} to judge it on are too few to compare students",
            where="corpus",
            remedy=f"Give at least {FEWEST} of each.",
        )
    return cast(Corpus, SampledCorpus(corpus, train, holdout))
