"""The sample that a method is built on."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.assembling import run

from distilvec.methods.base import Sample
from distilvec.students.output import StudentOutput
from distilvec.teachers.signals import TeacherSignals
from distilvec.training import fit, free_maps


@pytest.mark.parametrize(("room", "batches"), [(4 << 30, 7), (1 << 16, 1)])
def test_sample_of_token_states_is_cut_to_the_memory_limit(
    room: int, batches: int, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import distilvec
    from distilvec.training import sample

    made, take = [], sample.token_batches

    def counted(*args: Any) -> Any:
        made.append(take(*args))
        return made[-1]

    monkeypatch.setattr(sample, "TOKEN_BYTES", room)
    monkeypatch.setattr(sample, "token_batches", counted)
    distilvec.distill(
        str(tiny_bert),
        student={"shrink": {"of": "teacher", "layers": 1}},
        corpus={"path": [f"text number {number} of them" for number in range(200)], "holdout": 0.0},
        method={"name": "emo", "layers": 1},
        output=tmp_path / "out",
        training={"max_steps": 1, "batch_size": 8},
        judging={"tasks": [], "agreement": False, "speed": False},
    )
    assert [len(each) for each in made] == [batches]


def test_sample_is_freed_before_training(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, train = fit.__globals__["make_sample"], fit.__globals__["_train"]
    samples: list[weakref.ref[Sample]] = []

    def made(*args: Any, **kwargs: Any) -> Sample:
        sample: Sample = make(*args, **kwargs)
        samples.append(weakref.ref(sample))
        return sample

    def trained(*args: Any) -> None:
        gc.collect()
        assert [each() for each in samples] == [None]
        train(*args)

    monkeypatch.setitem(fit.__globals__, "make_sample", made)
    monkeypatch.setitem(fit.__globals__, "_train", trained)
    _, fitted = run(home, tmp_path, max_steps=1)
    assert fitted.free_map[0].any()


def test_teacher_without_sampled_rows_has_a_zero_map() -> None:
    signals = TeacherSignals(present=torch.zeros(4, dtype=torch.bool), sentence=torch.zeros(4, 5))
    (found,) = free_maps(Sample(StudentOutput(torch.ones(1, 4, 3)), [signals]))
    assert found.shape == (3, 5) and found.dtype == np.float32 and not found.any()
