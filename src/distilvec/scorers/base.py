"""The base of all scorers, and the keys of pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from distilvec.corpus.keys import KEY_BYTES, PAIR, content_keys, join_pair, split_pair
from distilvec.errors import DistilvecError
from distilvec.teachers.base import Teacher

#: A query and a document.
Pair = tuple[str, str]


class Scorer(Teacher):
    """A judge of pairs. A pair travels as one joint text (`corpus.keys.join_pair`), and a score as a vector of width 1,
    so that a store keeps scores as it keeps vectors.

    Attributes:
        scores: how many pairs it has a score for, None where it can be asked about any.
    """

    scores: int | None = None

    def knows(self, keys: np.ndarray) -> np.ndarray:
        """Return which pairs it can have a score for, by their keys uint8 [n, 16]: bool [n]."""
        return np.ones(len(keys), bool)


def pair_keys(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Keys uint8 [n, 16] of pairs, under which a store keeps their scores, from the keys uint8 [n, 16] of both items.

    >>> one, other = content_keys(["a query"]), content_keys(["a document"])
    >>> bool((pair_keys(one, other) == pair_keys(other, one)).all())
    False
    """
    start = hashlib.blake2b(b"pair", digest_size=KEY_BYTES)
    digests = []
    for both in np.concatenate([queries, documents], axis=1):
        state = start.copy()
        state.update(both.tobytes())
        digests.append(state.digest())
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, KEY_BYTES)


def text_pair_keys(pairs: Sequence[Pair]) -> np.ndarray:
    """As `pair_keys`, of texts; surrounding white space does not count."""
    # A joint text has a space for a separator within one of the two.
    sides = ([text.replace(PAIR, " ") for text in side] for side in zip(*pairs, strict=True))
    return pair_keys(*(content_keys(side) for side in sides)) if pairs else np.zeros((0, KEY_BYTES), np.uint8)


def parted(texts: Sequence[str]) -> list[Pair]:
    """Joint texts as pairs; refuses a single text."""
    pairs: list[Pair] = []
    for text in texts:
        pair = split_pair(text)
        if isinstance(pair, str):
            raise DistilvecError(f"a scorer judges a query and a document, not one text, {text[:80]!r}")
        pairs.append(pair)
    return pairs


def score_pairs(scorer: Scorer, pairs: Sequence[Pair]) -> np.ndarray:
    """float32 [n], NaN where the scorer has nothing."""
    pair_scores = np.full(len(pairs), np.nan, np.float32)
    for rows, scores in scorer.stream([join_pair(*pair) for pair in pairs]):
        pair_scores[rows] = scores[:, 0]
    return pair_scores
