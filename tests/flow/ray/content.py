"""Comparing what two stores hold."""

from __future__ import annotations

import numpy as np

from distilvec.store import RaggedSignal, SignalStore
from distilvec.store.layout import SIGNAL, read_signals


def same_content(one: SignalStore, other: SignalStore) -> None:
    """Equal keys, each once, and vectors that differ by no more than float16 rounds."""
    keys = one.keys(np.arange(len(one)))
    assert len(one) == len(other) == len(np.unique(keys, axis=0))
    rows = other.rows(keys)
    assert (rows >= 0).all()
    assert one.card == other.card
    np.testing.assert_allclose(other.read(rows), one.read(np.arange(len(one))), rtol=2e-3, atol=1e-4)


def same_signals(one: SignalStore, other: SignalStore) -> None:
    """Equal signals besides sentence vectors, at least one, for each key of the first store."""
    names = read_signals(one.path).keys() - {SIGNAL}
    assert names and names == read_signals(other.path).keys() - {SIGNAL}
    keys = one.keys(np.arange(len(one)))
    for name in names:
        mine, others = RaggedSignal(one.path, name), RaggedSignal(other.path, name)
        assert len(mine) == len(others)
        for a, b in zip(mine.read(mine.rows(keys)), others.read(others.rows(keys)), strict=True):
            np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=2e-3, atol=2e-3)
