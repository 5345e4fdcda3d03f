"""A shipped student as the start of another training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.jobs import tiny_recipe

import distilvec
from distilvec.flow.run import train
from distilvec.recipe import Recipe
from distilvec.students import load_student

#: One step that changes nothing.
STILL: dict[str, Any] = {
    "optimizer": {"lr": 1e-12, "heads_lr": 1e-12},
    "training": {"max_steps": 1, "batch_size": 8, "use_cpu": True},
}


def vectors_of(folder: Path, texts: list[str]) -> np.ndarray:
    found = np.asarray(distilvec.load(folder).encode(texts), np.float64)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.mark.parametrize("width", [4, 32])
def test_student_in_the_teachers_space_is_trained_further(
    width: int, tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    """With what it learnt, as no step is taken that changes it."""

    def own(texts: list[str]) -> np.ndarray:
        seen = np.array([[len(text), text.count("e"), text.count("a"), 1.0] for text in texts], np.float32)
        return np.tile(seen, width // 4) * np.arange(1, width + 1)

    teachers = [{"name": "own", "call": own}]
    leaf = {"teachers": teachers, "method": {"name": "leaf"}}
    first = train(tiny_recipe(tmp_path / "first", tiny_bert, sentences[:60], **leaf))
    again = train(
        tiny_recipe(tmp_path / "again", tiny_bert, sentences[:60], student={"model": str(first)}, **leaf, **STILL)
    )
    before, after = (vectors_of(folder, sentences[:20]) for folder in (first, again))
    wanted = own(sentences[:20])
    wanted = wanted / np.linalg.norm(wanted, axis=1, keepdims=True)
    assert (after * wanted).sum(1).mean() > (before * wanted).sum(1).mean() - 0.05


def test_student_with_an_expert_head_is_trained_further(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> None:
    moe = {"method": {"name": "distillmoe", "moe_weight": 1.0}}
    far = {"optimizer": {"lr": 1e-3, "heads_lr": 0.3}, "training": {"max_steps": 12, "batch_size": 8, "use_cpu": True}}
    first = train(tiny_recipe(tmp_path / "first", tiny_bert, sentences[:60], **moe, **far))
    again = train(
        tiny_recipe(tmp_path / "again", tiny_bert, sentences[:60], student={"model": str(first)}, **moe, **STILL)
    )
    before, after = (vectors_of(folder, sentences[:20]) for folder in (first, again))
    assert (before * after).sum(1).min() > 0.99
    assert sum(type(module).__name__ == "ExpertHead" for module in distilvec.load(again).children()) == 2


def test_student_that_this_teacher_taught_gets_no_second_map(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    """Where the recipe leaves the method open; another embedder of the same width gets one."""
    stranger = load_student(tiny_bert)
    torch.manual_seed(3)
    for parameter in stranger.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    stranger.save_pretrained(str(tmp_path / "stranger"))
    cut: dict[str, Any] = {"student": {"shrink": {"of": "tiny", "layers": 1}}, "method": {}}
    steps = {"training": {"max_steps": 80, "batch_size": 8, "use_cpu": True}, "optimizer": {"lr": 3e-3}}
    first = train(tiny_recipe(tmp_path / "first", tiny_bert, sentences[:60], **cut, **steps))
    open_method = {"method": {}, "optimizer": STILL["optimizer"]}
    for start, mapped in ((first, False), (tmp_path / "stranger", True)):
        student = {"model": str(start)}
        again = train(
            tiny_recipe(tmp_path / f"again-{start.name}", tiny_bert, sentences[:60], student=student, **open_method)
        )
        assert any(type(module).__name__ == "Dense" for module in distilvec.load(again)) == mapped
    saved = Recipe.load(tmp_path / "again-student" / "out" / "recipe.yaml")
    assert saved.method.entries == [{"name": "cosine", "map": False}]
