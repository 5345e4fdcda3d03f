"""What every scorer can do, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from distilvec.corpus.keys import content_keys, join_pair
from distilvec.teachers.cards import TeacherCard

#: A query and a document.
Pair = tuple[str, str]


class Scorer(Protocol):
    """What judges pairs. A pair travels as one joint text (`corpus.keys.join_pair`), and a score as a vector of width 1,
    so that a store keeps scores as it keeps vectors.

    Attributes:
        card: who it is; its width is 1.
        gaps: whether NaN says that it has no score for a pair; otherwise it is a mistake.
    """

    card: TeacherCard
    gaps: bool

    def stream(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Joint texts -> pairs (int64 [b] positions, float32 [b, 1]) until every one was given once."""
        ...


def pair_keys(pairs: Sequence[Pair]) -> np.ndarray:
    """Keys uint8 [n, 16] of pairs, under which a store keeps their scores."""
    return content_keys([join_pair(*pair) for pair in pairs])


def score_pairs(scorer: Scorer, pairs: Sequence[Pair]) -> np.ndarray:
    """float32 [n], NaN where the scorer has nothing."""
    found = np.full(len(pairs), np.nan, np.float32)
    for rows, scores in scorer.stream([join_pair(*pair) for pair in pairs]):
        found[rows] = scores[:, 0]
    return found
