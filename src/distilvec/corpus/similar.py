"""Texts that say nearly the same: found exactly, without comparing all pairs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable


class NearDuplicates:
    """Sets of words seen so far; two are near-duplicates where their Jaccard similarity reaches a threshold.

    Sets that alike share one of their first n - ceil(threshold * n) + 1 words in any fixed order (prefix filtering,
    Chaudhuri et al. 2006), so that only sets that meet there are compared. Long words, the rarer ones, come first.

    Args:
        threshold: in (0, 1].
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._sets: list[frozenset[str]] = []
        self._starts: dict[str, list[int]] = defaultdict(list)

    def __contains__(self, words: Iterable[str]) -> bool:
        own = frozenset(words)
        for number in {number for word in self._start(own) for number in self._starts.get(word, ())}:
            other = self._sets[number]
            shared = len(own & other)
            if shared >= self._threshold * (len(own) + len(other) - shared):
                return True
        return False

    def add(self, words: Iterable[str]) -> None:
        """Remember a set of words."""
        own = frozenset(words)
        for word in self._start(own):
            self._starts[word].append(len(self._sets))
        self._sets.append(own)

    def _start(self, words: frozenset[str]) -> list[str]:
        # A hair less than exact, so that rounding cannot hide a pair that just reaches the threshold.
        count = len(words) - math.ceil(self._threshold * len(words) - 1e-9) + 1
        return sorted(words, key=lambda word: (-len(word), word))[:count] if words else []
