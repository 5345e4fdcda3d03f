"""No step loops over its items or tokens: as many tensor operations for a large batch as for a small one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.methods.baseline_cases import CLASSIFYING, METHODS, make_method, make_step
from tests.methods.conftest import make_world, total
from tests.methods.test_suite import CASES
from tests.methods.token_world import TokenWorld, mixed, only_student, only_teacher
from torch.utils._python_dispatch import TorchDispatchMode

from distilvec.modules import sphere

TOKENS: list[tuple[str, dict[str, Any]]] = [
    # Its transport stops where every item has converged; a few steps are always made.
    *(("emo", {"preset": preset, "iterations": 3, "tolerance": 1e-30}) for preset in ("sound", "paper")),
    *(("distillmoe", {"preset": preset}) for preset in ("sound", "paper")),
    ("distillmoe", {"preset": "code", "maps": "separate"}),
    ("distillmoe", {"token_map": "pairs", "scope": "sentence", "aggregation": "sba", "gate_kl": 0.1}),
    *((name, {"form": "embedding"}) for name in ("mined", "cdm")),
    ("dskd", {}),
]


class Counting(TorchDispatchMode):
    """How many operations reach torch's kernels."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operations(step: Callable[[], dict[str, Any]]) -> int:
    """Forward and backward."""
    with Counting() as seen:
        total(step()).backward()
    return seen.count


@pytest.mark.parametrize(("name", "dims", "options"), CASES, ids=[f"{n}-{d}-{o}" for n, d, o in CASES])
def test_methods_on_vectors(name: str, dims: list[int] | None, options: dict[str, Any]) -> None:
    found = []
    for items in (24, 36, 48):
        world = make_world()
        method = world.method(name, dims, **options)
        student = world.output(range(items), method.needs(world.student, world.teachers).views)
        signals, batch = world.signals(range(items)), world.batch(range(items))
        found.append(operations(lambda: method(student, signals, batch)))  # noqa: B023
    assert found[0] == found[1] == found[2] > 5


@pytest.mark.parametrize(("name", "options"), TOKENS, ids=[f"{n}-{o}" for n, o in TOKENS])
def test_methods_on_tokens(name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # The mean on the sphere stops where every item has converged; two steps are always made.
    monkeypatch.setattr(sphere, "_KARCHER_STEPS", 2)
    found = []
    for rows, pad in ((range(6), 0), (range(12), 0), (range(24), 40)):
        world = TokenWorld()
        method = world.method(name, **options)
        needs = method.needs(world.student, world.infos)
        signals = [only_teacher(one, needs, k) for k, one in enumerate(world.signals(rows, pad, student_pad=pad))]
        student = world.output(rows, needs.views, pad)
        mixed(method, student)
        student = only_student(student, needs)
        found.append(operations(lambda: method(student, signals, world.batch(rows))))  # noqa: B023
    assert found[0] == found[1] == found[2] > 20


@pytest.mark.parametrize("name", sorted(METHODS.keys() - {"sft"}))  # which adds nothing to the task's own loss
def test_methods_on_class_logits(name: str) -> None:
    found = []
    for items in (4, 8, 32):
        step, method = make_step(items), make_method(name, CLASSIFYING)
        found.append(operations(lambda: method(step.student, [step.signals], step.batch)))  # noqa: B023
    assert found[0] == found[1] == found[2] > 5
