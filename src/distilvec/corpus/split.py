"""What is trained on and what is held out."""

from __future__ import annotations

import numpy as np

_CHUNK = 1 << 20


def held_out(keys: np.ndarray, share: float) -> np.ndarray:
    """Which items are kept out of training: a fixed property of each item, whatever else the corpus holds.

    Args:
        keys: uint8 [n, 16].
        share: in [0, 1).

    Returns:
        bool [n].
    """
    # The half of the key that neither the duplicate check nor a store's shards go by.
    numbers = np.ascontiguousarray(keys[:, 8:]).view("<u8")[:, 0]
    return numbers < np.uint64(share * 2.0**64)


def leaking(keys: np.ndarray, train: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Which held-out rows have a text that is trained on in another row.

    Memory grows with the held-out rows only.

    Args:
        keys: uint8 [n, 16], contiguous.
        train: int64 [t] rows.
        held: int64 [h] rows.

    Returns:
        bool [h].
    """
    if not len(train) or not len(held):
        return np.zeros(len(held), bool)
    halves = keys.view("<u8")[:, 0]
    own = np.asarray(halves[held])
    texts, text_of = np.unique(own, return_inverse=True)
    trained = np.zeros(len(texts), bool)
    for start in range(0, len(train), _CHUNK):
        some = halves[train[start : start + _CHUNK]]
        place = np.searchsorted(texts, some)
        place[place == len(texts)] = 0
        trained[place[texts[place] == some]] = True
    return np.asarray(trained[text_of])
