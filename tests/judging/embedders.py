"""Small encoders for the judging tests that need no model."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np


def words(texts: Sequence[str], width: int = 48) -> np.ndarray:
    """A bag of words: each word has a fixed random vector. Related texts are near each other."""
    return np.stack([sum((_word(word, width) for word in text.split()), np.zeros(width)) for text in texts])


def noise(texts: Sequence[str], width: int = 48) -> np.ndarray:
    """A fixed random vector for each text: knows nothing."""
    return np.stack([_word(text, width) for text in texts])


def _word(word: str, width: int) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(word.encode())).normal(size=width)


TOPICS = {
    "sea": ["ship", "wave", "harbour", "sail", "fish", "anchor", "tide", "storm", "captain", "island"],
    "kitchen": ["pan", "salt", "oven", "bread", "knife", "butter", "soup", "onion", "plate", "recipe"],
    "space": ["star", "orbit", "rocket", "planet", "moon", "comet", "gravity", "crater", "probe", "disc"],
}


def topic_texts(count: int, seed: int = 0, strange: int = 3) -> tuple[list[str], list[str]]:
    """Texts of three words of one topic and some strange ones, and the topic of each."""
    rng = np.random.default_rng(seed)
    names = list(TOPICS)
    every = [word for group in TOPICS.values() for word in group]
    texts, labels = [], []
    for _ in range(count):
        name = names[rng.integers(len(names))]
        texts.append(" ".join([*rng.choice(TOPICS[name], 3), *rng.choice(every, strange), f"n{rng.integers(10**6)}"]))
        labels.append(name)
    return texts, labels


def graded_pairs(count: int, seed: int = 0) -> tuple[list[str], list[str], list[float]]:
    """Pairs that share 0 to 5 of their 5 words, and that number as score."""
    rng = np.random.default_rng(seed)
    every = np.array([word for group in TOPICS.values() for word in group])
    left, right, scores = [], [], []
    for _ in range(count):
        chosen = rng.permutation(every)[:10]
        shared = int(rng.integers(0, 6))
        left.append(" ".join(chosen[:5]))
        right.append(" ".join([*chosen[:shared], *chosen[5 : 10 - shared]]))
        scores.append(float(shared))
    return left, right, scores
