"""Students of the spine that other experiments take as teachers: `talas`'s two kinds, taught by cosine.

    cut    two layers of all-MiniLM-L6-v2 with at most 5,000 of its word pieces
    bpe    `student-bpe` of the shared models: four layers of 256, a byte-level BPE of its own

Two epochs on TALAS's corpus, some minutes on one core, once. (`headline`'s is better and takes hours.)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.harness.records import WORK
from experiments.harness.script import shared
from experiments.harness.training import student_of
from experiments.talas.run import DTYPE

from distilvec.flow.demo import demo_teacher
from distilvec.recipe import Recipe
from distilvec.training import bfloat16_pays

FOLDER = WORK / "spine"


#: Folder of the run, what the student starts from, and its learning rate (of `talas`'s grid).
KINDS: dict[str, tuple[str, dict[str, Any], float]] = {
    "cut": ("run", {"shrink": {"of": "minilm", "layers": 2, "vocabulary": 5000}}, 3e-4),
    "bpe": ("bpe", {"model": "student-bpe"}, 1e-3),
}


def spine_student(kind: str = "cut") -> Path:
    """Its folder; made where it is not there yet."""
    return student_of(recipe(kind))


def trained_as(kind: str) -> dict[str, Any]:
    """What it was trained with. Its weights would not do: another processor rounds otherwise."""
    made = recipe(kind)
    return {
        "method": made.method.name,
        "epochs": made.training.epochs,
        "seed": made.training.seed,
        "lr": KINDS[kind][2],
    }


def recipe(kind: str) -> Recipe:
    name, student, lr = KINDS[kind]
    if "model" in student:
        student = {"model": str(shared() / "models" / student["model"])}
    return Recipe.build(
        {
            "corpus": {"path": str(shared() / "data" / "talas_corpus.jsonl.gz"), "domain": "domain", "holdout": 0.0},
            "teachers": [{"name": "minilm", "model": demo_teacher(), "dtype": DTYPE}],
            "student": {**student, "max_length": 128},
            "method": {"name": "cosine"},
            "training": {"epochs": 2, "batch_size": 32, "seed": 0, "bf16": bfloat16_pays()},
            "optimizer": {"lr": lr, "heads_lr": lr},
            "judging": {"tasks": []},
            "cache": str(FOLDER / "cache"),
            "output": str(FOLDER / name),
        }
    )
