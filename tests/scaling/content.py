"""Comparing what two stores hold."""

from __future__ import annotations

import numpy as np

from distilvec.store import SignalStore


def same_content(one: SignalStore, other: SignalStore) -> None:
    """Equal keys, each once, and vectors that differ by no more than float16 rounds."""
    keys = one.keys(np.arange(len(one)))
    assert len(one) == len(other) == len(np.unique(keys, axis=0))
    rows = other.rows(keys)
    assert (rows >= 0).all()
    assert one.card == other.card
    np.testing.assert_allclose(other.read(rows), one.read(np.arange(len(one))), rtol=2e-3, atol=1e-4)
