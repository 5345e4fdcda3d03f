"""A store of 60 random vectors, or of some of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from distilvec.store import SignalStore

CARD = {"name": "t", "fingerprint": "v1"}
KEYS = np.random.default_rng(0).integers(0, 256, (60, 16), dtype=np.uint8)
VECTORS = np.random.default_rng(1).standard_normal((60, 8)).astype(np.float16).astype(np.float32)


def filled(folder: Path, first: int = 0, last: int = 40, name: str = "host-0") -> SignalStore:
    store = SignalStore.create(folder, CARD, 8)
    with store.writer(name) as writer:
        writer.add(KEYS[first:last], VECTORS[first:last])
    store.refresh()
    return store
