"""What the untrained student and the teachers say about held-in items, before the heads are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from distilvec.methods.base import Sample
from distilvec.students.output import StudentOutput
from distilvec.students.tap import StudentTap
from distilvec.teachers.signals import TeacherSignals
from distilvec.training.data import SignalSource
from distilvec.training.tokens import TokenizedCorpus

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

SAMPLE = 10_000


def make_sample(
    student: SentenceTransformer,
    tokens: TokenizedCorpus,
    sources: Sequence[SignalSource],
    rows: np.ndarray,
    *,
    seed: int,
    layers: bool,
    limit: int = SAMPLE,
    batch_size: int = 64,
) -> Sample:
    """Embeddings of at most `limit` rows in eval mode (V = 1), with the teachers' signals for them.

    Args:
        student: untrained.
        rows: corpus rows to draw from, without replacement, seeded.
        layers: whether pooled states of every block are wanted too.

    Returns:
        A sample on the CPU: embedding [1, N, d], layers [1, L, N, d] or None, sentence vectors [N, D].
    """
    chosen = np.random.default_rng([seed, 1]).permutation(rows)[:limit]
    chosen = chosen[np.argsort(tokens.lengths[chosen], kind="stable")]
    tap = StudentTap(student)
    device = next(student.parameters()).device
    training = student.training
    student.eval()
    embeddings: list[Tensor] = []
    states: list[Tensor] = []
    with torch.no_grad():
        for start in range(0, len(chosen), batch_size):
            features = tokens.features(chosen[start : start + batch_size])
            output = tap({name: value.to(device) for name, value in features.items()}, views=1, layers=layers)
            embeddings.append(output.embedding.float().cpu())
            if output.layers is not None:
                states.append(output.layers.float().cpu())
    student.train(training)
    observed = StudentOutput(torch.cat(embeddings, 1), torch.cat(states, 2) if states else None)
    fetched: list[dict[str, Any]] = [dict(source.fetch(chosen)) for source in sources]
    return Sample(observed, [TeacherSignals(**signals) for signals in fetched])
