"""Shapes of the students of `quarter`."""

from __future__ import annotations

from typing import Any

#: Keys of `shrink`; at most 5.67, 2.84 and 1.1 million parameters. The eighth's is nearly the one of `budgets`
#: that came furthest in whole trainings, by agreement on held-out texts.
SIZES: dict[str, dict[str, Any]] = {
    "quarter": {"layers": [1, 3, 5, 6], "vocabulary": 20_000, "embedding": 80, "inner": 528},
    "eighth": {"layers": [1, 4, 6], "vocabulary": 20_500, "embedding": 84, "inner": 448, "width": 192},
    "twentieth": {"layers": [1, 6], "vocabulary": 11_900, "embedding": 54, "inner": 256, "width": 160},
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
    "quarter, 26,000 pieces of rank 72": {"layers": [1, 3, 5, 6], "vocabulary": 26_000, "embedding": 72, "inner": 440},
    "quarter, 26,000 pieces": {"layers": [1, 3, 5, 6], "vocabulary": 26_000, "embedding": 80, "inner": 372},
    "quarter, 26,000 pieces, five blocks": {
        "layers": [1, 2, 3, 5, 6],
        "vocabulary": 26_000,
        "embedding": 72,
        "inner": 448,
        "width": 320,
    },
}
#: Static students of the same sizes, and the numbers a piece that model2vec may have of all 30,522 pieces.
TABLES: dict[str, dict[str, int]] = {
    "quarter": {"vocabulary": 22_000, "dimensions": 256, "model2vec": 185},
    "eighth": {"vocabulary": 11_000, "dimensions": 256, "model2vec": 93},
    "twentieth": {"vocabulary": 8_500, "dimensions": 128, "model2vec": 36},
}
