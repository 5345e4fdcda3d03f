"""Teachers and students that read next to nothing of a text: a run says so, or works."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import distilvec
from distilvec.errors import DistilvecError


@pytest.mark.parametrize("side", ["teacher", "student"])
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize("method", ["emo", "distillmoe", "cdm"])
def test_a_text_of_which_a_token_is_read(
    method: str, length: int, side: str, tiny_model_folders: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    teacher = {"model": str(tiny_model_folders["bert"]), **({"max_length": length} if side == "teacher" else {})}
    student = {"model": str(tiny_model_folders["gpt2"]), **({"max_length": length} if side == "student" else {})}
    try:
        run = distilvec.distill(
            teacher,
            student=student,
            corpus=sentences[:24],
            method={"name": method, **({"layers": 2} if method == "distillmoe" else {})},
            output=tmp_path / "out",
            training={"epochs": 1, "batch_size": 8},
            judging={"agreement": False, "speed": False},
        )
    except DistilvecError as refused:
        assert "max_length" in str(refused) and refused.remedy
    else:
        assert np.isfinite(distilvec.load(run.folder / "student").encode(sentences[:4])).all()
