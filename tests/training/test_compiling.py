"""A student that is compiled while it trains: with open shapes, not where it is evaluated, and without a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.assembling import run, weights

from distilvec.errors import EnvironmentProblem
from distilvec.recipe import TrainingSection
from distilvec.students import load_student
from distilvec.students.tap import StudentTap
from distilvec.training.network import attention, compilation, compiled


@pytest.fixture(autouse=True)
def forget() -> None:
    torch._dynamo.reset()


def without_dropout(folder: Path) -> Any:
    """A student that trains, the same each time."""
    student = load_student(folder, device="cpu").train()
    for module in student.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return student


class Counting:
    """A backend that runs the graph as it is and counts the graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return graph.forward


def test_batches_of_other_sizes_are_not_compiled_again(tiny_bert: Path, sentences: list[str]) -> None:
    student = without_dropout(tiny_bert)
    tap, backend = StudentTap(student), Counting()
    seen, first = [], 0
    batches = [
        student.preprocess([text * repeats for text in sentences[:count]])
        for count, repeats in ((8, 1), (5, 2), (7, 1), (3, 3))
    ]
    assert len({batch["input_ids"].shape for batch in batches}) == 4
    with compiled(student, {"backend": backend}):
        for batch in batches:
            seen.append(tap(batch, views=1, tokens=[2]))
            first = first or backend.graphs
        assert backend.graphs == first > 0
        student.eval()
        student.encode(sentences[:2])
        assert backend.graphs == first
        student.train()
    assert "forward" not in vars(student[0].model)
    for batch, output in zip(batches, seen, strict=True):
        plain = tap(batch, views=1, tokens=[2])
        assert torch.allclose(plain.embedding, output.embedding, atol=1e-6)
        assert torch.allclose(plain.tokens[2], output.tokens[2], atol=1e-6)
    assert backend.graphs == first


def test_nothing_else_is_compiled(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    networks: list[Any] = []
    wrapped = torch.compile

    def compile_and_tell(network: Any, **how: Any) -> Any:
        networks.append(network)
        return wrapped(network, **how)

    monkeypatch.setattr(torch, "compile", compile_and_tell)
    run(home, tmp_path, torch_compile=True, torch_compile_backend="eager")
    assert [type(network.__self__).__name__ for network in networks] == ["BertModel"]


def test_a_method_that_looks_into_the_blocks_learns_the_same(home: Path, tmp_path: Path) -> None:
    plain = weights(*run(home, tmp_path / "plain", "talas", max_steps=2))
    fast = weights(*run(home, tmp_path / "fast", "talas", max_steps=2, torch_compile_backend="eager"))
    assert plain.keys() == fast.keys()
    assert all(torch.allclose(plain[name], fast[name], atol=1e-4) for name in plain)


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_attention_maps_are_the_same(tiny_bert: Path, sentences: list[str], kernel: str) -> None:
    student = without_dropout(tiny_bert)
    tap, batch = StudentTap(student), student.preprocess(sentences[:6])
    with attention(student, kernel):
        plain = tap(batch, views=1, attention=[2])
        with compiled(student, {"backend": "eager"}):
            fast = tap(batch, views=1, attention=[2])
    assert torch.allclose(plain.attention[2], fast.attention[2], atol=1e-6)
    assert torch.allclose(plain.embedding, fast.embedding, atol=1e-6)


def test_a_failed_compilation_names_its_setting(tiny_bert: Path, sentences: list[str]) -> None:
    student = load_student(tiny_bert, device="cpu").train()

    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler found")

    with (
        pytest.raises(EnvironmentProblem, match=r"^training\.torch_compile: .*C\+\+ compiler"),
        compiled(student, {"backend": broken}),
    ):
        student(student.preprocess(sentences[:2]))
    assert "forward" not in vars(student[0].model)


def test_what_a_recipe_asks_for() -> None:
    assert compilation(TrainingSection()) is None
    assert compilation(TrainingSection(torch_compile=True)) == {"backend": "inductor", "mode": None}
    assert compilation(TrainingSection(torch_compile_mode="default")) == {"backend": "inductor", "mode": "default"}
    assert compilation(TrainingSection(torch_compile_backend="eager")) == {"backend": "eager", "mode": None}
