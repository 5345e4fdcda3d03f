"""Shapes of the students of `quarter`."""

from __future__ import annotations

from typing import Any


def shape(layers: list[int], vocabulary: int, embedding: int, inner: int, width: int | None = None) -> dict[str, Any]:
    """Keys of `shrink`."""
    found = {"layers": layers, "vocabulary": vocabulary, "embedding": embedding, "inner": inner}
    return found if width is None else {**found, "width": width}


#: Keys of `shrink`; at most 5.67, 2.84 and 1.1 million parameters. The eighth's is nearly the one of `budgets`
#: that came furthest in whole trainings, by agreement on held-out texts.
SIZES: dict[str, dict[str, Any]] = {
    "quarter": shape([1, 3, 5, 6], 20_000, 80, 528),
    "eighth": shape([1, 4, 6], 20_500, 84, 448, 192),
    "twentieth": shape([1, 6], 11_900, 54, 256, 160),
}
#: Others of the same sizes.
OTHERS: dict[str, dict[str, Any]] = {
    "quarter, today's": {"layers": [1, 6], "vocabulary": 5_000},
    "quarter, six blocks": shape([1, 2, 3, 4, 5, 6], 22_000, 104, 512, 256),
    "quarter, five blocks": shape([1, 2, 3, 5, 6], 21_500, 100, 768, 256),
    "quarter, four blocks": shape([1, 3, 5, 6], 22_000, 104, 1024, 256),
    "quarter, six wider blocks": shape([1, 2, 3, 4, 5, 6], 20_500, 88, 288, 320),
    "eighth, two wider blocks": shape([1, 6], 20_500, 80, 512, 256),
    "eighth, four narrower blocks": shape([1, 3, 5, 6], 20_500, 84, 448, 160),
    "eighth, four blocks": shape([1, 3, 5, 6], 10_000, 24, 64),
    "eighth, two blocks": shape([1, 6], 20_000, 48, 384),
    "eighth, whole width": shape([1, 3, 6], 14_000, 50, 128),
    "twentieth, whole width": shape([1], 9_000, 44, 96),
    "twentieth, half width": shape([1, 6], 11_000, 44, 256, 192),
    "twentieth, third of the width": shape([1, 6], 17_000, 44, 256, 128),
}
#: Learning rates: the smaller the student, the larger. Chosen by agreement on held-out texts after 81,000 texts
#: (`--rates`), kept of the eighth, and of a twentieth of another shape (one whole block, 9,000 pieces of rank 44, 96
#: units). In trials that were not kept 2e-3 was level with 1e-3 at a quarter, and 4e-3 level with 2.5e-3 and ahead of
#: 8e-3 at a twentieth of two narrow blocks.
RATES = {"quarter": 1e-3, "eighth": 2e-3, "twentieth": 4e-3}
#: Of the quarter with orthogonal steps; chosen by agreement on held-out texts after 40,000 texts.
MUON: dict[str, Any] = {"lr": 2e-3, "muon": True, "batch_size": 128}
#: Quarters with more word pieces, for lower rank or fewer inner units; all trained with orthogonal steps over half of
#: all texts (`--pieces`). Texts that a vocabulary cuts otherwise than the teacher's are what a student knows least.
PIECES: dict[str, dict[str, Any]] = {
    "quarter": SIZES["quarter"],
    "quarter, 26,000 pieces of rank 72": shape([1, 3, 5, 6], 26_000, 72, 440),
    "quarter, 26,000 pieces": shape([1, 3, 5, 6], 26_000, 80, 372),
    "quarter, 26,000 pieces, five blocks": shape([1, 2, 3, 5, 6], 26_000, 72, 448, 320),
}
#: Static students of the same sizes, and the numbers a piece that model2vec may have of all 30,522 pieces.
TABLES: dict[str, dict[str, int]] = {
    "quarter": {"vocabulary": 22_000, "dimensions": 256, "model2vec": 185},
    "eighth": {"vocabulary": 11_000, "dimensions": 256, "model2vec": 93},
    "twentieth": {"vocabulary": 8_500, "dimensions": 128, "model2vec": 36},
}
