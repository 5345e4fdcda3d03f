"""Similarity of each block of the student to the teacher's vectors, before and after training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
import torch

from distilvec.evenly import evenly_spaced
from distilvec.judging.agreement import debiased_cka
from distilvec.report.sections.base import Block, Data, Heading, Outcome, Text, table
from distilvec.report.sections.tokens import features_of
from distilvec.students import StudentTap

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

#: Texts that are compared, at most and at least, and texts in a batch.
LAYER_TEXTS, FEWEST, BATCH = 400, 20, 64


class Layers(Data):
    """Similarity of each block's pooled states to the teacher's vectors, in [0, 1], block 1 first."""

    after: list[float]
    before: list[float]

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        """Compare on held-out texts; None for fewer than 20, or if the student has no blocks."""
        teacher, texts = outcome.vectors(outcome.teacher_name), outcome.texts()
        if teacher is None or len(texts) < FEWEST:
            return None
        rows = evenly_spaced(len(texts), LAYER_TEXTS)
        chosen = [texts[row] for row in rows]
        after, before = pooled_blocks(outcome.shipped, chosen), pooled_blocks(outcome.untrained, chosen)
        if after is None or before is None:
            return None
        return cls(after=similarity(after, teacher[rows]), before=similarity(before, teacher[rows]))

    def blocks(self) -> list[Block]:
        text = (
            "Linear CKA of each block's states with the teacher's vectors: 1 = both tell texts apart in the same way, "
            "0 = in unrelated ways."
        )
        rows = [
            [f"block {number}", f"{after:.2f}", f"{before:.2f}"]
            for number, (after, before) in enumerate(zip(self.after, self.before, strict=True), start=1)
        ]
        lead = Text(self.about(text), "lead")
        return [Heading("Layer by layer"), lead, table(["student's layer", "after training", "before"], rows, kind="")]


def pooled_blocks(model: SentenceTransformer, texts: Sequence[str]) -> np.ndarray | None:
    """Pooled states of the blocks, [L, n, d]; None without blocks."""
    tap, parts = StudentTap(model), []
    if tap.info.layers is None:
        return None
    with torch.no_grad():
        for start in range(0, len(texts), BATCH):
            layers = tap(features_of(model, texts[start : start + BATCH]), views=1, layers=True).layers  # [1, L, B, d]
            assert layers is not None
            parts.append(layers[0].float().cpu().numpy())
    return np.concatenate(parts, axis=1)


def similarity(layers: np.ndarray, teacher: np.ndarray) -> list[float]:
    """Linear CKA (debiased, in [0, 1]) of each block's pooled states [L, n, d] with the teacher's vectors [n, D]."""
    return [max(0.0, min(1.0, debiased_cka(block, teacher))) for block in layers]
