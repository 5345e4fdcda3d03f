"""The method's terms on rows that were not trained on."""

from __future__ import annotations

import numpy as np
import torch

from distilvec.training.data import Collator
from distilvec.training.distributed import apart
from distilvec.training.sample import on_device
from distilvec.training.step import Distiller


@torch.no_grad()
def held_out_terms(distiller: Distiller, collator: Collator, rows: np.ndarray, batch_size: int) -> dict[str, float]:
    """Means of the method's terms over rows that were not trained on, in eval mode.

    A term in which not every item counts is the mean over those that do, and left out where none does. Terms that
    couple the rows of a batch are those of full batches, and empty where there is none. Every rank computes all of
    them.
    """
    end = len(rows) // batch_size * batch_size if distiller.needs.coupled else len(rows)
    if end == 0:
        return {}
    was_training, device = distiller.training, next(distiller.parameters()).device
    distiller.eval()
    terms: dict[str, list[tuple[float, float]]] = {}
    for start in range(0, end, batch_size):
        part = rows[start : min(start + batch_size, end)]
        with apart():
            result = distiller(**on_device(collator(part.tolist()), device))
        for name, value in result["terms"].items():
            terms.setdefault(name, []).append((float(value), float(result["counts"].get(name, len(part)))))
    distiller.train(was_training)
    pooled = {name: np.array(pairs).T for name, pairs in terms.items()}
    return {name: float(values @ counts / counts.sum()) for name, (values, counts) in pooled.items() if counts.sum()}
