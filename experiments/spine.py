"""A student of the spine that other experiments take as a teacher: the cut student of talas_table.py, by cosine.

Two layers of all-MiniLM-L6-v2 with at most 5,000 of its word pieces, trained for two epochs on TALAS's corpus: some
minutes on one core, once. (headline.py's is better and takes hours.)
"""

from __future__ import annotations

from pathlib import Path

from common import WORK, shared
from talas_table import DTYPE

from distilvec.demo import demo_teacher
from distilvec.recipe import Recipe
from distilvec.run import run
from distilvec.training import bfloat16_pays

FOLDER = WORK / "spine"


def spine_student() -> Path:
    """Its folder; made where it is not there yet."""
    student = FOLDER / "run" / "student"
    if not student.is_dir():
        run(recipe(), resume=True)
    return student


def recipe() -> Recipe:
    return Recipe.build(
        {
            "corpus": {"path": str(shared() / "data" / "talas_corpus.jsonl.gz"), "domain": "domain", "holdout": 0.0},
            "teachers": [{"name": "minilm", "model": demo_teacher(), "dtype": DTYPE}],
            "student": {"shrink": {"of": "minilm", "layers": 2, "vocabulary": 5000}, "max_length": 128},
            "method": {"name": "cosine"},
            "training": {"epochs": 2, "batch_size": 32, "seed": 0, "bf16": bfloat16_pays()},
            "optimizer": {"lr": 3e-4, "heads_lr": 3e-4},
            "judging": {"tasks": []},
            "cache": str(FOLDER / "cache"),
            "output": str(FOLDER / "run"),
        }
    )
