"""Signals for corpus rows: from stores, or from teachers that run alongside the student."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from distilvec.errors import DataError

if TYPE_CHECKING:
    from distilvec.corpus import Corpus
    from distilvec.store import SignalStore
    from distilvec.teachers import Teacher


class StoreSource:
    """Sentence vectors of one teacher from its store; row numbers are looked up once, for the whole corpus."""

    def __init__(self, store: SignalStore, corpus: Corpus, rows: np.ndarray | None = None) -> None:
        self.store = store
        self.numbers = np.full(len(corpus), -1, np.int64)
        wanted = np.arange(len(corpus)) if rows is None else rows
        self.numbers[wanted] = store.rows(corpus.teacher_keys[wanted])
        if len(wanted) and (self.numbers[wanted] < 0).all():
            raise DataError(
                "this store has none of the corpus' texts",
                where=str(store.path),
                remedy="Was it made from another corpus? Run `distilvec teach` for this one.",
            )

    def fetch(self, rows: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
        numbers = self.numbers[np.asarray(rows)]
        present = numbers >= 0
        vectors = np.zeros((len(numbers), self.store.width), np.float32)
        if present.any():
            vectors[present] = self.store.read(numbers[present])
        return {"sentence": torch.from_numpy(vectors), "present": torch.from_numpy(present)}


class LiveSource:
    """Sentence vectors of a teacher that encodes each batch when it is asked for."""

    def __init__(self, teacher: Teacher, corpus: Corpus) -> None:
        self.teacher, self.corpus = teacher, corpus

    def fetch(self, rows: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
        vectors = self.teacher.encode(self.corpus.teacher_texts(np.asarray(rows)))
        finite = np.isfinite(vectors).all(-1)
        return {
            "sentence": torch.from_numpy(np.where(finite[:, None], vectors, 0).astype(np.float32)),
            "present": torch.from_numpy(finite),
        }
