"""The cache of prepared items."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from distilvec.recipe import TrainingSection
from distilvec.training import BucketedBatches
from distilvec.training import items as prepared
from distilvec.training.items import PreparedCorpus
from distilvec.training.loop import Loop


class Squares:
    """A first module that prepares its items."""

    def prepare(self, texts: list[str]) -> list[np.ndarray]:
        return [np.full(10, int(text) ** 2) for text in texts]

    def collate(self, items: list[np.ndarray]) -> dict[str, Tensor]:
        return {"squares": torch.from_numpy(np.stack(items))}


class Kept:
    """A collator that says how much of the corpus a worker keeps."""

    def __init__(self, tokens: PreparedCorpus) -> None:
        self.tokens = tokens

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        return self.tokens.lengths[rows]

    def __call__(self, rows: list[int]) -> int:
        self.tokens.features(rows)
        return len(self.tokens._cache)


@pytest.mark.parametrize(("workers", "most"), [(0, 8), (2, 4)])
def test_workers_share_the_memory_for_prepared_items(workers: int, most: int) -> None:
    size = prepared.bytes_of(np.full(10, 0))
    tokens = PreparedCorpus([Squares()], lambda rows: [str(row) for row in rows], 40, cache_bytes=8 * size)  # type: ignore[arg-type]
    kept = Kept(tokens)
    loop: Any = SimpleNamespace(
        training=TrainingSection(dataloader_num_workers=workers),
        sampler=BucketedBatches(kept.lengths(np.arange(40)), 4, seed=0),
        collator=kept,
        rows=np.arange(40),
        device=torch.device("cpu"),
    )
    loader = Loop.loader.func(loop)
    assert max(loader) == max(loader) == most
