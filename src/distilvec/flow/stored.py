"""A teacher that answers from its store, and is asked only for what the store lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distilvec.corpus.keys import Modality, content_keys
from distilvec.errors import DataError
from distilvec.store import SignalStore


class StoredTeacher:
    """A teacher behind its store: the corpus' own items, which judging asks for, are neither encoded nor paid again.

    What the store lacks (all, where the corpus tells roles apart), and the sides of queries and documents where the
    teacher has them, are asked of the teacher.

    Args:
        teacher: with `encode`; everything else is its own, too.
        store: with vectors of it.
        modality: of the items.
    """

    def __init__(self, teacher: Any, store: SignalStore, modality: Modality) -> None:
        self.teacher, self.store, self.modality = teacher, store, modality

    def __getattr__(self, name: str) -> Any:
        return getattr(self.teacher, name)

    def encode(self, items: Sequence[str]) -> np.ndarray:
        """float32 [n, D]."""
        try:
            rows = self.store.rows(content_keys(items, modality=self.modality))
        except DataError:  # an item of a task that is no molecule, which a model of texts reads all the same
            rows = np.full(len(items), -1)
        known = rows >= 0
        if not known.any():
            return np.asarray(self.teacher.encode(items))
        vectors = np.empty((len(items), self.teacher.card.width), np.float32)
        vectors[known] = self.store.read(rows[known])
        if not known.all():
            asked = [item for item, there in zip(items, known, strict=True) if not there]
            vectors[~known] = self.teacher.encode(asked)
        return vectors
