"""The split of a corpus into what is trained on and what is held out."""

from __future__ import annotations

import numpy as np

_CHUNK = 1 << 20
#: Share that is held out of a corpus of some thousand items or more; items that a verdict needs, and the most of a
#: small corpus that is given for them.
USUAL_SHARE, ENOUGH, MOST_SHARE = 0.02, 120, 0.2


def share_for(items: int) -> float:
    """Share to hold out of a corpus of so many items.

    >>> share_for(300), share_for(1500), share_for(20_000)
    (0.2, 0.08, 0.02)
    """
    return min(MOST_SHARE, max(USUAL_SHARE, ENOUGH / max(1, items)))


def held_out(keys: np.ndarray, share: float) -> np.ndarray:
    """Return which items, by their keys uint8 [n, 16], are kept out of training if a share in [0, 1) is: bool [n].

    It is a fixed property of each item, whatever else the corpus holds.
    """
    # The half of the key that neither the duplicate check nor a store's shards go by.
    numbers = np.ascontiguousarray(keys[:, 8:]).view("<u8")[:, 0]
    return numbers < np.uint64(share * 2.0**64)


def leaking(keys: np.ndarray, train: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Return which held-out rows, int64 [h], have a text that is trained on in another row, int64 [t]: bool [h].

    Memory grows with the held-out rows only. Texts are identified by their keys, uint8 [n, 16], contiguous.
    """
    halves = keys.view("<u8")[:, 0]
    own, trained = halves[held], np.zeros(len(held), bool)
    for start in range(0, len(train), _CHUNK):
        trained |= np.isin(own, halves[train[start : start + _CHUNK]])
    return trained
