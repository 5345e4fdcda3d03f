"""Contrastive losses: each row finds its partner among the others."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from distilvec.functional.similarity import normalize
from distilvec.precision import full_precision


@full_precision
def info_nce(
    queries: Tensor,
    keys: Tensor,
    temperature: float | Tensor,
    targets: Tensor | None = None,
    exclude: Tensor | None = None,
) -> Tensor:
    """-log softmax over the keys of cos(query, key) / temperature, at each query's own key.

    Args:
        queries: [N, d].
        keys: [M, d].
        temperature: > 0.
        targets: int [N], each query's key; None: the i-th key for the i-th query.
        exclude: bool [N, M], True = not a negative of this query (equal items of a batch). What it says of
            the target itself is ignored. A query whose keys are all excluded has the loss 0.

    Returns:
        [N], >= 0. A zero vector has the cosine 0 with every key and gets no gradient.

    Source: van den Oord et al. 2018, eq. 4; SimCSE (Gao et al. 2021), eq. 1.

    >>> info_nce(torch.eye(4), torch.eye(4), 0.05).allclose(torch.log1p(3 * torch.tensor(-20.0).exp()))
    True
    """
    logits = (normalize(queries) / temperature) @ normalize(keys).mT
    if targets is None:
        targets = torch.arange(len(queries), device=queries.device)
    if exclude is not None:
        logits = logits.masked_fill(exclude.scatter(1, targets.unsqueeze(1), False), -math.inf)
    return cross_entropy(logits, targets, reduction="none")
