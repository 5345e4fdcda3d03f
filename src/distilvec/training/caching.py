"""Gradient caching: a loss over a large batch, with the memory of a small one (Gao et al. 2021, arXiv:2101.06983).

The student reads a batch in mini-batches and keeps of each its vectors only. The loss sees the vectors of the whole
batch, so in-batch terms are those of the large batch, which accumulated small batches do not give. Backward, each
mini-batch is read once more, with the same dropout, for its share of the gradient: two forward passes and one
backward in place of one and one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from distilvec.errors import DistilvecError
from distilvec.students.output import StudentOutput
from distilvec.students.tap import StudentTap


def in_mini_batches(
    tap: StudentTap, features: dict[str, Any], size: int, views: int = 1, layers: bool = False
) -> StudentOutput:
    """Return `tap(features, views, layers)`, with the activations of at most `size` rows in memory at a time.

    Rows of similar length are read together and padded to their own length.

    Args:
        features: B rows with `attention_mask` [B, S], or images: every tensor has B rows.
        size: rows of a mini-batch.
        views, layers: see `StudentTap`.

    Returns:
        As the tap, in the given order of rows; without tokens and attention.

    Raises:
        DistilvecError: features that are not one row per item (static embeddings, molecules).
    """
    rows = _rows(features)
    if rows <= size:
        return tap(features, views, layers)
    mask = features.get("attention_mask")
    order = torch.arange(rows) if mask is None else mask.sum(1).argsort(stable=True)
    parts = _parts(features, order, size)
    outputs = [checkpoint(tap, part, views, layers, use_reentrant=False) for part in parts]
    back = torch.empty_like(order)
    back[order] = torch.arange(rows, device=order.device)

    def joined(values: list[Tensor], axis: int) -> Tensor:
        return torch.cat(values, axis).index_select(axis, back.to(values[0].device))

    special = features.get("special_tokens_mask")
    real, content = tap.masks(features, special)
    return StudentOutput(
        joined([each.embedding for each in outputs], 1),
        layers=joined([each.layers for each in outputs if each.layers is not None], 2) if layers else None,
        mask=real,
        content=content,
        extras={name: joined([each.extras[name] for each in outputs], 1) for name in outputs[0].extras},
    )


def _rows(features: dict[str, Any]) -> int:
    lengths = {len(value) for value in features.values() if isinstance(value, Tensor) and value.dim() > 0}
    if len(lengths) != 1 or ("offsets" in features and "attention_mask" not in features):
        raise DistilvecError(
            f"what this student reads ({', '.join(sorted(features))}) cannot be cut into mini-batches",
            where="training.mini_batch_size",
            remedy="Leave it out: gradient caching is for transformers, and for image networks without batch norms.",
        )
    return lengths.pop()


def _parts(features: dict[str, Any], order: Tensor, size: int) -> Iterator[dict[str, Any]]:
    """The features in parts of at most `size` rows, each without the columns that are padding in all its rows."""
    mask = features.get("attention_mask")
    for rows in order.split(size):
        part = {name: v[rows] if isinstance(v, Tensor) and v.dim() > 0 else v for name, v in features.items()}
        if mask is not None:
            columns = part["attention_mask"].any(0)
            width = mask.shape[1]
            part = {
                name: v[:, columns] if isinstance(v, Tensor) and v.dim() > 1 and v.shape[1] == width else v
                for name, v in part.items()
            }
        yield part
