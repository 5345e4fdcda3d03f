"""The documents and the queries of a corpus, by the places of their vectors in a store."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from distilvec.corpus import Corpus
from distilvec.corpus.groups import companion_rows
from distilvec.corpus.keys import content_keys
from distilvec.corpus.lazy import LazyTexts
from distilvec.judging.tasks import unit
from distilvec.mining.choosing import QueryBlock
from distilvec.store import SignalStore


@dataclass
class Collection:
    """Distinct documents of a side of the corpus, by the place of their vectors in the store.

    Attributes:
        rows: int64 [n], of the store, ascending.
        corpus: int64 [n], row of the corpus, or of the further documents after all of it.
        keys: V16 [n], sorted.
        order: int64 [n], number of the document of each key.
    """

    store: SignalStore
    rows: np.ndarray
    corpus: np.ndarray
    keys: np.ndarray
    order: np.ndarray

    @classmethod
    def of(cls, store: SignalStore, keys: np.ndarray, vectors: np.ndarray, places: np.ndarray) -> Collection:
        """Those with these keys uint8 [n, 16], whose vectors have these ones; without those of no vector.

        Args:
            places: int64 [n], where they stand.
        """
        rows = store.rows(vectors)
        known = rows >= 0
        words, first = np.unique(_words(keys[known]), return_index=True)
        rows = rows[known][first]
        by_row = np.argsort(rows)
        number = np.empty(len(by_row), np.int64)
        number[by_row] = np.arange(len(by_row))
        return cls(store, rows[by_row], places[known][first][by_row], words, number)

    def __len__(self) -> int:
        return len(self.rows)

    def numbers(self, keys: np.ndarray) -> np.ndarray:
        """int64 [n], the document of each key; -1 where there is none."""
        if not len(self):
            return np.full(len(keys), -1, np.int64)
        words = _words(keys)
        place = np.searchsorted(self.keys, words).clip(max=len(self) - 1)
        return np.where(self.keys[place] == words, self.order[place], -1)

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """float32 [n, D], of unit length."""
        return unit(self.store.read(self.rows[numbers]))


def _text_keys(corpus: Corpus) -> np.ndarray:
    """Keys uint8 [n, 16] of the texts without their prompts, with which a text would be another one on each side."""
    if not corpus.prompts:
        return np.asarray(corpus.teacher_keys)
    return content_keys(LazyTexts(corpus.bare, range(len(corpus))))


def _words(keys: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(keys).view("V16")[:, 0]


class Pairs:
    """Queries with their answers.

    Args:
        rows: of the corpus; those of them that are queries with a positive count.

    Attributes:
        anchors, positives: int64 [n], rows of the corpus.
        given: int64 [n, m], rows of the negatives that the corpus itself has, -1 where there is none.
    """

    def __init__(self, corpus: Corpus, rows: np.ndarray) -> None:
        assert corpus.groups is not None and corpus.roles is not None
        companions = companion_rows(np.asarray(corpus.groups), np.asarray(corpus.roles))
        self.anchors = rows[companions[rows, 0] >= 0]
        self.positives, given = companions[self.anchors, 0], companions[self.anchors, 1:]
        self.given = np.where(given == self.positives[:, None], -1, given)

    @classmethod
    def on_neither_side(cls, corpus: Corpus) -> Pairs:
        """Held-out pairs whose query is a text that other pairs are trained on."""
        either = np.zeros(len(corpus), bool)
        for rows in (corpus.train_rows, corpus.holdout_rows):
            either[np.asarray(rows)] = True
        return cls(corpus, np.flatnonzero(~either))


class Side(Pairs):
    """The queries of one side of the corpus, those trained on or those held out, and the documents that they search.

    What is held out stays apart: a text of a held-out pair that a training pair had for a negative would be left out
    of both.

    Args:
        rows: of the corpus.
        further: more documents; those that are texts of other rows of the corpus are left out.

    Attributes:
        left_out: further documents that are texts of other rows.
        known: bool [n], those whose query and positive have vectors here.
        shared: bool [n], those whose positive other pairs have on the other side, so that it is no document here.
    """

    def __init__(self, corpus: Corpus, store: SignalStore, rows: np.ndarray, further: Corpus | None) -> None:
        super().__init__(corpus, rows)
        self.left_out = 0
        documents = rows[np.asarray(corpus.roles)[rows] != 0]
        # Vectors are found by what the teacher reads, equal texts by what they are without a prompt.
        texts, read = _text_keys(corpus), corpus.teacher_keys
        keys, vectors, places = [texts[documents]], [read[documents]], [documents]
        if further is not None:
            more = _text_keys(further)
            apart = np.isin(_words(more), _words(np.delete(texts, rows, axis=0)))
            self.left_out = int(apart.sum())
            keys.append(more[~apart])
            vectors.append(np.asarray(further.teacher_keys)[~apart])
            places.append(len(corpus) + np.flatnonzero(~apart))
        self.documents = Collection.of(store, *(np.concatenate(each) for each in (keys, vectors, places)))
        self._store, self._keys = store, texts[self.anchors]
        self._vectors = store.rows(read[self.anchors])
        self._positive = self.documents.numbers(texts[self.positives])
        self.known = (self._vectors >= 0) & (self._positive >= 0)
        lost = np.flatnonzero((self._vectors >= 0) & (self._positive < 0))
        self.shared = np.zeros(len(self.anchors), bool)
        self.shared[lost] = store.rows(read[self.positives[lost]]) >= 0
        had = self.documents.numbers(texts[self.given.clip(0).reshape(-1)]).reshape(self.given.shape)
        self._had = np.where(self.given < 0, -1, had)
        #: Which of the anchors can be asked; in the order of their vectors.
        self.asked = np.flatnonzero(self.known)
        self._same = np.unique(_words(self._keys), return_inverse=True)[1]
        # Each text with each document that answers it, once: a query may stand in many pairs.
        answered = np.flatnonzero(self._positive >= 0)
        span = len(self.documents) + 1
        self._answered, self._answers = np.divmod(
            np.unique(self._same[answered] * span + self._positive[answered]), span
        )

    @property
    def digest(self) -> str:
        """The digest of what document numbers and places in `asked` mean; the order of a store's rows may change."""
        found = hashlib.blake2b(digest_size=16)
        for numbers in (self.documents.corpus, self.asked):
            found.update(f"{len(numbers)} ".encode())
            found.update(numbers.astype(np.int64).tobytes())
        return found.hexdigest()

    def depths(self, chosen: np.ndarray) -> np.ndarray:
        """int64 [n], how many documents each of these queries can lose for being its own."""
        low, high = self._spans(chosen)
        return high - low + 1 + self._had.shape[1]

    def block(self, chosen: np.ndarray) -> QueryBlock:
        """These queries, int64 [n] of `asked`."""
        low, high = self._spans(chosen)
        rows = np.repeat(np.arange(len(chosen)), high - low)
        within = np.arange(len(rows)) - np.repeat((high - low).cumsum() - (high - low), high - low)
        return QueryBlock(
            unit(self._store.read(self._vectors[chosen])),
            self._positive[chosen],
            rows,
            self._answers[np.repeat(low, high - low) + within],
            np.column_stack([self.documents.numbers(self._keys[chosen]), self._had[chosen]]),
        )

    def _spans(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where the answers of each query begin and end."""
        texts = self._same[chosen]
        return np.searchsorted(self._answered, texts, "left"), np.searchsorted(self._answered, texts, "right")
