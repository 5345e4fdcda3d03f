"""Shapes of the students of quarter.py."""

from __future__ import annotations

from typing import Any

#: Keys of `shrink`; at most 5.67, 2.84 and 1.1 million parameters.
SIZES: dict[str, dict[str, Any]] = {
    "quarter": {"layers": [1, 3, 5, 6], "vocabulary": 20_000, "embedding": 80, "inner": 528},
    "eighth": {"layers": [1, 3, 6], "vocabulary": 14_000, "embedding": 50, "inner": 128},
    "twentieth": {"layers": [1], "vocabulary": 9_000, "embedding": 44, "inner": 96},
}
