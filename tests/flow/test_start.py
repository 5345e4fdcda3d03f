"""The untrained student: its key, its source and its dropout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.jobs import Job, tiny_recipe
from tests.students.architectures import opt

from distilvec.errors import DistilvecError
from distilvec.flow import start
from distilvec.flow.start import with_dropout
from distilvec.students import load_student


def test_start_key_depends_on_the_holdout(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    keys = set()
    for share in (0.02, 0.3):
        job = Job(tiny_recipe(tmp_path, tiny_bert, sentences[:60], corpus={"path": sentences[:60], "holdout": share}))
        keys.add(start.start_key(job.student_section, job.recipe.teachers, job.corpus, 0))
    assert len(keys) == 2


@pytest.mark.parametrize("reads", [{"causal": False}, {"adapters": ["some/adapters"]}])
def test_shrinking_a_teacher_read_with_other_settings_is_refused(
    reads: dict[str, Any], tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    teachers = [{"name": "tiny", "model": str(tiny_bert), **reads}]
    job = Job(
        tiny_recipe(
            tmp_path, tiny_bert, sentences[:60], teachers=teachers, student={"shrink": {"of": "tiny", "layers": 1}}
        )
    )
    with pytest.raises(DistilvecError, match=r"teacher tiny: .*merged model into a folder"):
        job.student()


def test_fresh_student_has_the_asked_max_length(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    size = {"layers": 1, "width": 32, "vocabulary": 301}
    given = tiny_recipe(tmp_path, tiny_bert, sentences, student={"fresh": size, "max_length": 512})
    student = Job(given).student()
    assert student.max_seq_length == 512
    assert student[0].model.config.max_position_embeddings == 512


def test_dropout_is_set_in_a_decoder(tiny_model_folders: dict[str, Path]) -> None:
    student = with_dropout(load_student(tiny_model_folders["qwen3"], device="cpu"), 0.5).train()
    features = student.preprocess(["a text of some words"])
    one, other = (student(dict(features))["sentence_embedding"] for _ in range(2))
    assert not torch.allclose(one, other)


def test_dropout_is_set_in_functional_dropout(tiny_bert: Path, tmp_path: Path) -> None:
    student = opt(tiny_bert, tmp_path, dropout=0.5, attention_dropout=0.5).train()

    def twice() -> float:
        features = student.preprocess(["one short text", "two"])
        first, second = (student(dict(features))["sentence_embedding"] for _ in range(2))
        return float((first - second).abs().max())

    assert twice() > 0.01
    with_dropout(student, 0.0)
    assert twice() == 0.0
