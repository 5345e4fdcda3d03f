"""What every teacher can do, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch

from distilvec.teachers.cards import TeacherCard
from distilvec.teachers.signals import TeacherSignals


class Teacher(Protocol):
    """A frozen embedder of texts.

    Attributes:
        card: who it is.
    """

    @property
    def card(self) -> TeacherCard: ...

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, D] in the order of the texts; rows of NaN where the teacher has nothing for a text."""
        ...

    def stream(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs (int64 [b] positions in `texts`, float32 [b, D]) until every text was given once, in any order."""
        ...

    def has(self, texts: Sequence[str]) -> np.ndarray:
        """bool [n]: whether the teacher has something for each text. Models and callables have it for all."""
        ...

    def signals(self, texts: Sequence[str]) -> TeacherSignals:
        """What the teacher says about B texts, for training without a store."""
        ...


class SentenceTeacher:
    """`encode`, `has` and `signals` for a teacher that implements `card` and `stream`."""

    card: TeacherCard

    def stream(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        raise NotImplementedError

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, D] in the order of the texts; rows of NaN where the teacher has nothing for a text."""
        vectors = np.full((len(texts), self.card.width), np.nan, np.float32)
        for rows, part in self.stream(texts):
            vectors[rows] = part
        return vectors

    def has(self, texts: Sequence[str]) -> np.ndarray:
        """bool [n]: whether the teacher has something for each text."""
        return np.ones(len(texts), dtype=bool)

    def signals(self, texts: Sequence[str]) -> TeacherSignals:
        """Sentence vectors [B, D] of B texts; absent texts are zeros with `present` False."""
        vectors = torch.from_numpy(self.encode(texts))
        present = torch.from_numpy(self.has(texts))
        return TeacherSignals(present=present, sentence=torch.where(present[:, None], vectors, 0.0))
