"""The loop that teaching spends its time in: length-sorted batches, tokenised ahead in another thread.

Texts are sorted by their number of characters, longest first (running out of memory shows at once), and tokenised
slice by slice in a background thread. Within a slice they are sorted by their true number of tokens and cut into
batches that hold about the same number of padded tokens each: many short texts or few long ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from torch import Tensor

Batch = tuple[np.ndarray, dict[str, Any]]  # int64 [b] positions of the texts, features of the model
Prepare = Callable[[Sequence[str]], list[Batch]]  # positions count within the slice
Forward = Callable[[dict[str, Any]], Tensor]  # features -> [b, D]

_SLICE = 2048
_AHEAD = 2


def stream_batches(texts: Sequence[str], prepare: Prepare, forward: Forward) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions int64 [b] and vectors float32 [b, D], batch by batch.

    One batch is always under way on the device while the one before is handed out.

    Args:
        prepare: tokenises a slice of texts and cuts it into batches; runs in the background thread.
        forward: runs a batch; may return before the device is done.
    """
    waiting: tuple[np.ndarray, Tensor] | None = None
    for rows, features in prepared_batches(texts, prepare):
        vectors = forward(features)
        if waiting is not None:
            yield waiting[0], waiting[1].float().cpu().numpy()
        waiting = (rows, vectors)
    if waiting is not None:
        yield waiting[0], waiting[1].float().cpu().numpy()


def prepared_batches(texts: Sequence[str], prepare: Prepare) -> Iterator[Batch]:
    """Positions int64 [b] and features of every batch, tokenised ahead in another thread."""
    characters = np.fromiter((len(text) for text in texts), np.int64, len(texts))
    order = np.argsort(-characters, kind="stable")
    slices = [order[start : start + _SLICE] for start in range(0, len(order), _SLICE)]
    pool = ThreadPoolExecutor(1, "distilvec-tokens")
    try:
        ahead: deque[tuple[np.ndarray, Future[list[Batch]]]] = deque()
        for rows in slices:
            ahead.append((rows, pool.submit(prepare, [texts[int(row)] for row in rows])))
            if len(ahead) > _AHEAD:
                yield from _positions(*ahead.popleft())
        while ahead:
            yield from _positions(*ahead.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _positions(rows: np.ndarray, batches: Future[list[Batch]]) -> Iterator[Batch]:
    for local, features in batches.result():
        yield rows[local], features


def cut_batches(lengths: np.ndarray, budget: int, waste: float = 0.12) -> list[np.ndarray]:
    """Positions in batches of falling length, each of at most `budget` padded tokens (or of one text).

    A batch that has an eighth of the budget ends early where more than the share `waste` of it would be padding.

    >>> [batch.tolist() for batch in cut_batches(np.array([4, 9, 4, 4, 4]), 12)]
    [[1], [0, 2, 3], [4]]
    """
    lengths = np.maximum(lengths, 1)
    order = np.argsort(-lengths, kind="stable")
    batches, start, real = [], 0, 0
    for stop, length in enumerate(lengths[order].tolist()):
        padded = int(lengths[order[start]]) * (stop - start + 1)
        wasteful = padded * 8 > budget and padded - (real + length) > waste * padded
        if stop > start and (padded > budget or wasteful):
            batches.append(order[start:stop])
            start, real = stop, 0
        real += length
    if start < len(order):
        batches.append(order[start:])
    return batches
