"""A student that goes on learning without forgetting: its vectors are held where they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distilvec
from distilvec.errors import DistilvecError
from distilvec.recipe import Recipe
from distilvec.students import load_student
from distilvec.students.tap import StudentTap


def trained(folder: Path, start: Path, teacher: Path, texts: list[str], **student: Any) -> Any:
    return distilvec.distill(
        teacher=str(teacher),
        student={"model": str(start), **student},
        corpus=texts,
        method={"name": "cosine", "init": "random"},
        output=str(folder),
        optimizer={"lr": 3e-3},
        training={"epochs": 3, "batch_size": 16, "logging_steps": 1},
        judging={"agreement": False, "speed": False},
    )


def moved(before: np.ndarray, after: np.ndarray) -> float:
    cosines = (before * after).sum(1) / np.linalg.norm(before, axis=1) / np.linalg.norm(after, axis=1)
    return float(1 - cosines.mean())


def test_old_texts_keep_their_vectors(
    tmp_path: Path, tiny_bert: Path, tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    """Taught by another model on some texts; others, never seen in training, are looked at."""
    new, old = sentences[:60], sentences[120:180]
    before = load_student(tiny_bert, device="cpu").encode(old)
    forgotten = trained(tmp_path / "free", tiny_bert, tiny_model_folders["xlmr"], new)
    kept = trained(tmp_path / "kept", tiny_bert, tiny_model_folders["xlmr"], new, remember=5.0)
    far, near = (moved(before, run.student.encode(old)) for run in (forgotten, kept))
    assert near < 0.5 * far and far > 1e-3
    terms = [line["term/remember"] for line in kept.record["training"].log if "term/remember" in line]
    # It has not moved before the first step; dropout alone makes the value more than 0.
    assert len(terms) > 3 and 0 <= terms[0] < 0.2
    assert not any("term/remember" in line for line in forgotten.record["training"].log)


def test_a_student_from_nothing_has_nothing_to_remember() -> None:
    data = {"corpus": {"path": "x.txt"}, "teachers": [{"model": "t"}]}
    with pytest.raises(DistilvecError, match="^student: remember .*model"):
        Recipe.build({**data, "student": {"fresh": {}, "remember": 1.0}})


def test_former_student_is_read_in_mini_batches(tiny_bert: Path, tmp_path: Path) -> None:
    import distilvec

    sizes = []
    run = StudentTap.__call__

    def counted(self: StudentTap, features: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        sizes.append(len(next(iter(features.values()))))
        return run(self, features, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StudentTap, "__call__", counted)
        distilvec.distill(
            str(tiny_bert),
            student={"model": str(tiny_bert), "remember": 0.5},
            corpus={"path": [f"text number {number} of them" for number in range(60)], "holdout": 0.0},
            method="cosine",
            output=tmp_path / "out",
            training={"max_steps": 2, "batch_size": 25, "mini_batch_size": 4},
            judging={"tasks": [], "agreement": False, "speed": False},
        )
    assert sizes and sizes.count(25) == 0
