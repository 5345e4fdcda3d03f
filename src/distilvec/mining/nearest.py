"""The nearest documents of many queries, exactly, in memory that depends on the sizes of the blocks alone.

A block of queries meets the documents a block at a time. Of the products only those are kept that are above the k-th
best of their query so far, which after the first blocks are few: the time is that of the matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

#: Documents that are read, and multiplied with a block of queries, at once.
DOCUMENTS = 4096
#: Found and not merged yet, per query: what waits takes as much room as what is kept.
_WAITING = 2


class Vectors(Protocol):
    """Vectors of unit length by number, 0 <= number < len."""

    def __len__(self) -> int: ...

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers int64 [n], best ascending -> float32 [n, D]."""
        ...


def nearest(
    queries: np.ndarray,
    documents: Vectors,
    count: int,
    *,
    block: int = DOCUMENTS,
    progress: Callable[[float], None] = lambda share: None,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[np.ndarray, np.ndarray] | None:
    """The documents of largest inner product with each query.

    Args:
        queries: float32 [Q, D].
        documents: n of them.
        count: k >= 1.
        block: documents at a time; memory is 4 * Q * (block + 8 k) bytes, besides the vectors of a block.
        progress: told the share of the documents that is done, in (0, 1], after each block.
        stop: asked after each block.

    Returns:
        Similarities float32 [Q, k], falling, and numbers int64 [Q, k]; of equal similarities the smaller number is
        first. -inf and -1 where there are fewer than k documents. None where `stop` said so.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    asked = torch.from_numpy(queries).to(device)
    best = torch.full((len(queries), count), -torch.inf, device=device)
    numbers = torch.full((len(queries), count), -1, dtype=torch.int64, device=device)
    waiting: list[tuple[Tensor, Tensor, Tensor]] = []
    pairs = 0
    for start in range(0, len(documents), block):
        read = documents.read(np.arange(start, min(start + block, len(documents))))
        products = asked @ torch.from_numpy(read).to(device).T
        if start == 0:
            first = products.topk(min(count, products.shape[1]), dim=1)
            least = first.values[:, -1:] if first.values.shape[1] == count else best[:, -1:]
            # Those equal to the last are taken too, so that the smaller number wins.
            rows, columns = (products >= least).nonzero(as_tuple=True)
        else:
            rows, columns = (products > best[:, -1:]).nonzero(as_tuple=True)
        waiting.append((rows, products[rows, columns], columns + start))
        pairs += len(rows)
        if pairs > _WAITING * best.numel() or start == 0 or start + block >= len(documents):
            best, numbers = _merged(best, numbers, waiting)
            waiting, pairs = [], 0
        progress(min(start + block, len(documents)) / len(documents))
        if stop():
            return None
    return best.cpu().numpy(), numbers.cpu().numpy()


def _merged(best: Tensor, numbers: Tensor, waiting: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The k best of each row, of those so far and those that wait."""
    size, count = best.shape
    place = torch.arange(size, device=best.device).repeat_interleave(count)
    kept = numbers.flatten() >= 0
    rows = torch.cat([place[kept], *(each[0] for each in waiting)])
    values = torch.cat([best.flatten()[kept], *(each[1] for each in waiting)])
    ids = torch.cat([numbers.flatten()[kept], *(each[2] for each in waiting)])
    # Stable sorts from the last key to the first: by row, then the largest value, then the smallest number.
    order = ids.argsort(stable=True)
    order = order[values[order].argsort(descending=True, stable=True)]
    order = order[rows[order].argsort(stable=True)]
    rows, values, ids = rows[order], values[order], ids[order]
    rank = torch.arange(len(rows), device=best.device) - torch.searchsorted(rows, rows)
    inside = rank < count
    best, numbers = torch.full_like(best, -torch.inf), torch.full_like(numbers, -1)
    best[rows[inside], rank[inside]] = values[inside]
    numbers[rows[inside], rank[inside]] = ids[inside]
    return best, numbers
