"""The choice of the attention kernel: made once, followed on resume, without a trace in the student."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.training.assembling import assemble, run, weights
from torch import Tensor

from distilvec.students import load_student
from distilvec.students.output import StudentOutput
from distilvec.training import network as chosen
from distilvec.training.network import attention, choose_attention, rehearse

CPU = torch.device("cpu")


@pytest.mark.parametrize("method", ["talas", "distilcse"])
def test_trying_kernels_leaves_no_trace(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Dropout, the queue of a method and gradients are as without the trial; the kernel that is kept is sdpa."""
    plain = weights(*run(home, tmp_path / "plain", method))
    tried: list[str] = []

    def timed(student: Any, kernel: str, step: Any) -> float:
        with attention(student, kernel):
            step()
        tried.append(kernel)
        return float(kernel == "eager")

    monkeypatch.setattr(chosen, "STEPS", 1)
    monkeypatch.setattr(chosen, "_time", timed)
    again = weights(*run(home, tmp_path / "tried", method))
    assert tried == ["sdpa", "eager"]
    assert plain.keys() == again.keys() and all(torch.equal(plain[name], again[name]) for name in plain)


def test_the_faster_kernel_is_chosen_once_and_kept(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    student = load_student(tiny_bert, device="cpu")
    config = student[0].model.config
    seen: list[str] = []
    now = [0.0]
    monkeypatch.setattr(chosen, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def step() -> None:
        seen.append(config._attn_implementation)
        now[0] += 2 if seen[-1] == "sdpa" else 1

    assert choose_attention(student, step, tmp_path, steps=1000, device=CPU) == "eager"
    assert seen.count("sdpa") == seen.count("eager") > 1
    assert config._attn_implementation == "sdpa"
    count = len(seen)
    assert choose_attention(student, step, tmp_path, steps=1000, device=CPU) == "eager"
    assert len(seen) == count
    (tmp_path / chosen.FILE).write_text(json.dumps({"kernel": "sdpa"}))
    assert choose_attention(student, step, tmp_path, steps=1000, device=CPU) == "sdpa"
    assert len(seen) == count


def test_short_trainings_and_other_devices_keep_what_they_have(tiny_bert: Path, tmp_path: Path) -> None:
    student = load_student(tiny_bert, device="cpu")
    assert choose_attention(student, lambda: None, tmp_path, steps=chosen.STEPS - 1, device=CPU) is None
    assert choose_attention(student, lambda: None, tmp_path, steps=1000, device=torch.device("meta")) is None
    assert not any(tmp_path.iterdir())


def test_both_kernels_give_the_same_vectors_and_the_configuration_comes_back(
    tiny_model_folders: dict[str, Path], sentences: list[str]
) -> None:
    for kind in ("bert", "xlmr", "qwen3", "modernbert"):
        student = load_student(tiny_model_folders[kind], device="cpu").eval()
        before = student.encode(sentences[:8])
        with pytest.raises(RuntimeError, match="on purpose"), attention(student, "eager"):
            assert student[0].model.config._attn_implementation == "eager"
            assert abs(student.encode(sentences[:8]) - before).max() < 1e-5
            raise RuntimeError("on purpose")
        assert student[0].model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("content", ["", '{"kernel": ', '{"kernel": "none"}'])
def test_unreadable_choice_of_attention_is_made_again(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(chosen, "_time", lambda student, kernel, step: float(kernel == "sdpa"))
    (tmp_path / chosen.FILE).write_text(content)
    student = load_student(tiny_bert, device="cpu")
    for _ in range(2):
        kernel = choose_attention(student, lambda: None, tmp_path, steps=1000, device=torch.device("cpu"))
        assert kernel == "eager"
    assert [file.name for file in tmp_path.glob("[!.]*")] == [chosen.FILE]


def test_kernels_are_tried_on_a_mini_batch(home: Path, tmp_path: Path) -> None:
    made = assemble(home, "cosine")
    made.distiller.mini_batch_size = 3
    loop, tap, sizes = made.loop(tmp_path, {}), made.distiller.tap, []

    def tapped(features: dict[str, Tensor], *args: Any) -> StudentOutput:
        sizes.append(len(features["input_ids"]))
        return tap(features, *args)

    made.distiller.tap = tapped
    rehearse(loop)
    assert sizes == [3]
