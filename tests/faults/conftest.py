"""A small recipe with its files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def job(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> dict[str, Any]:
    """A recipe in a folder of its own: 120 short texts, vectors from elsewhere as teacher, a tiny student."""
    texts = list(dict.fromkeys(" ".join(text.split()[:10]) for text in sentences))[:120]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "known.txt").write_text("".join(text + "\n" for text in texts))
    np.save(tmp_path / "vectors.npy", np.random.default_rng(0).standard_normal((len(texts), 24)).astype(np.float32))
    shutil.copytree(tiny_bert, tmp_path / "model")
    return {
        "corpus": {"path": "texts.jsonl", "holdout": 0.2},
        "teachers": [{"name": "given", "vectors": "vectors.npy", "texts": "known.txt"}],
        "student": {"model": "model"},
        "method": {"name": "cosine"},
        "optimizer": {"lr": 1e-2},
        "training": {"epochs": 1, "batch_size": 16, "save_every": 2, "logging_steps": 1, "use_cpu": True},
        "judging": {"speed": False, "agreement": False},
        "output": "out",
    }
