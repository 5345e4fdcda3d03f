"""The loop that teaching spends its time in: length-sorted batches, tokenised ahead in another thread.

Texts are sorted by their number of characters, longest first (running out of memory shows at once), and tokenised
slice by slice in a background thread. Within a slice they are sorted by their true number of tokens and cut into
batches that hold about the same number of padded tokens each: many short texts or few long ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from distilvec.errors import EnvironmentProblem

Given = TypeVar("Given")
Batch = tuple[np.ndarray, dict[str, Any]]  # int64 [b] positions of the texts, features of the model
Prepare = Callable[[Sequence[str]], list[Batch]]  # positions count within the slice
Forward = Callable[[dict[str, Any]], Tensor]  # features -> [b, D]

_SLICE = 2048
_AHEAD = 2


def stream_batches(
    texts: Sequence[str], prepare: Prepare, forward: Forward, too_large: Callable[[int], None]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Positions int64 [b] and vectors float32 [b, D], batch by batch; `too_large` is as of `in_room`.

    One batch is always under way on the device while the one before is handed out: `forward` may return before the
    device is done. `prepare` runs in the background thread.
    """
    waiting: tuple[np.ndarray, Tensor] | None = None
    for rows, vectors in in_room(prepared_batches(texts, prepare), forward, too_large):
        if waiting is not None:
            yield waiting[0], waiting[1].float().cpu().numpy()
        waiting = (rows, vectors)
    if waiting is not None:
        yield waiting[0], waiting[1].float().cpu().numpy()


def in_room(
    batches: Iterable[Batch], act: Callable[[dict[str, Any]], Given], too_large: Callable[[int], None]
) -> Iterator[tuple[np.ndarray, Given]]:
    """Positions int64 [b] and what `act` gives of each batch; of its halves, where the device has no room for it.

    Args:
        too_large: told the number of padded tokens that there was no room for.

    Raises:
        EnvironmentProblem: there is no room for a single text.
    """
    for batch in batches:
        todo = [batch]
        while todo:
            rows, features = todo.pop()
            try:
                found = act(features)
            except torch.OutOfMemoryError as problem:
                if len(rows) == 1:
                    raise EnvironmentProblem(
                        f"the device has no room for a single text ({str(problem).splitlines()[0]})",
                        remedy="Give the teacher a smaller max_length, a narrower dtype, or a larger device.",
                    ) from problem
            else:
                yield rows, found
                continue
            # Only now, without the traceback, nothing holds on to what the failed pass had made.
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            too_large(max(each.numel() for each in features.values() if isinstance(each, Tensor)))
            half = len(rows) // 2
            todo += [(rows[part], _part(features, part, len(rows))) for part in (slice(half, None), slice(half))]


def _part(features: dict[str, Any], part: slice, count: int) -> dict[str, Any]:
    """Some rows of a batch of `count`; what is not about rows stays."""
    return {
        name: value[part] if isinstance(value, Tensor | list) and len(value) == count else value
        for name, value in features.items()
    }


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
