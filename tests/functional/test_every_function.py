"""What all functions promise: precision under autocast, dtypes, gradients, independence of a stack's items."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from tests.functional.cases import CASES, FEW, SEEDS, Case
from torch.autograd import gradcheck

from distilvec import functional

EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
SMOOTH = pytest.mark.parametrize(
    "case",
    [case for case in CASES.values() if case.smooth],
    ids=[name for name, case in CASES.items() if case.smooth],
)
# Distributions cannot be all equal and zero: their functions' own files hold what is degenerate for them.
FREE = {name: case for name, case in CASES.items() if case.smooth and not case.positive}
DEGENERATE = pytest.mark.parametrize("case", FREE.values(), ids=FREE.keys())


def test_no_function_is_left_out() -> None:
    assert {case.function for case in CASES.values()} == set(functional.__all__)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_autocast_changes_nothing(case: Case, dtype: torch.dtype) -> None:
    plain = [x.requires_grad_() for x in case.tensors(dtype=dtype)]
    inside = [x.detach().clone().requires_grad_() for x in plain]
    expected = case.call(*plain)
    with torch.autocast("cpu", torch.bfloat16):
        found = case.call(*inside)
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == torch.bfloat16
    assert found.dtype == (torch.bool if not case.smooth else torch.promote_types(dtype, torch.float32))
    assert torch.equal(found, expected)
    if case.smooth:
        expected.sum().backward()
        found.sum().backward()
        for one, other in zip(plain, inside, strict=True):
            assert one.grad is not None and other.grad is not None
            assert other.grad.dtype == dtype and torch.equal(one.grad, other.grad)


@SMOOTH
def test_half_precision_is_only_the_inputs_rounding(case: Case) -> None:
    half = case.tensors(dtype=torch.bfloat16)
    exact = case.call(*[x.double() for x in half])
    assert torch.allclose(case.call(*half).double(), exact, rtol=1e-4, atol=1e-5)


@SMOOTH
@FEW
@given(seed=SEEDS)
def test_float32_agrees_with_float64(case: Case, seed: int) -> None:
    single = case.tensors(seed, torch.float32)
    exact = case.call(*[x.double() for x in single])
    assert torch.allclose(case.call(*single).double(), exact, rtol=1e-3, atol=2e-4)


@SMOOTH
@pytest.mark.parametrize("seed", [0, 1])
def test_gradients_are_those_of_the_value(case: Case, seed: int) -> None:
    assert gradcheck(case.call, [x.requires_grad_() for x in case.tensors(seed)])


@pytest.mark.parametrize(
    "case", [c for c in CASES.values() if c.stacked], ids=[n for n, c in CASES.items() if c.stacked]
)
def test_items_of_a_stack_do_not_matter_to_one_another(case: Case) -> None:
    stack = case.tensors(stack=3)
    together = case.call(*stack)
    for i in range(3):
        alone = case.call(*[x[i] for x in stack])
        assert torch.allclose(together[i].double(), alone.double(), rtol=1e-12, atol=1e-12)


@DEGENERATE
@pytest.mark.parametrize("fill", [0.0, 1.0, 1e-30, 1e4])
def test_equal_and_zero_inputs_give_finite_values_and_gradients(case: Case, fill: float) -> None:
    tensors = [torch.full_like(x, fill).requires_grad_() for x in case.tensors(dtype=torch.float32)]
    if case.function == "gaussian_nll":
        tensors[2] = torch.zeros_like(tensors[2], requires_grad=True)
    if case.function == "triangular_gaussian_nll":
        tensors[2] = torch.eye(4, requires_grad=True)
    value = case.call(*tensors)
    assert value.isfinite().all()
    value.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in tensors)
