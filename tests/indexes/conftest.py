"""An index of the tiny BERT, whose vectors of different texts are unlike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distilvec.students import load_student


@pytest.fixture(scope="session")
def plain(tiny_bert: Path, sentences: list[str]) -> np.ndarray:
    """float32 [200, 32], not of length 1."""
    return encoded(tiny_bert, sentences)


def encoded(model: Path, texts: list[str], **options: Any) -> np.ndarray:
    """As somebody encodes who does not know this package."""
    return np.asarray(load_student(model, device="cpu").encode(texts, show_progress_bar=False, **options))
