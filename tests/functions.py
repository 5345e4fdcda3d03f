"""Functions as teachers."""

from __future__ import annotations

import numpy as np


def lengths(texts: list[str]) -> np.ndarray:
    """float32 [n, 3]: characters, letters e, and 1."""
    return np.array([[len(text), text.count("e"), 1.0] for text in texts], np.float32)


class CountingFunction:
    """A function that counts the texts that it embeds, with 4 numbers for each."""

    def __init__(self) -> None:
        self.asked = 0

    def embed(self, texts: list[str]) -> np.ndarray:
        self.asked += len(texts)
        return np.array([[len(text), text.count("e"), text.count("a"), 1.0] for text in texts], np.float32)
