from __future__ import annotations

import math

import numpy as np
import ot
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.functional.cases import FEW, SEEDS

from distilvec.functional import sinkhorn, sorted_wasserstein, transport_cost

Problem = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def problem(seed: int, *shape: int) -> Problem:
    generator = torch.Generator().manual_seed(seed)
    cost = 2 * torch.rand(shape, generator=generator, dtype=torch.float64)
    source = torch.randn(shape[:-1], generator=generator, dtype=torch.float64).softmax(-1)
    target = torch.randn((*shape[:-2], shape[-1]), generator=generator, dtype=torch.float64).softmax(-1)
    return cost, source, target


@FEW
@given(seed=SEEDS, n=st.integers(1, 6), m=st.integers(1, 6), epsilon=st.sampled_from([0.05, 0.1, 1.0]))
def test_agrees_with_pot(seed: int, n: int, m: int, epsilon: float) -> None:
    cost, source, target = problem(seed, n, m)
    expected = ot.sinkhorn(
        source.numpy(), target.numpy(), cost.numpy(), epsilon, "sinkhorn_log", numItermax=5000, stopThr=1e-12
    )
    plan, error = sinkhorn(cost, source, target, epsilon, 2000, 1e-10, return_error=True)
    assume(error <= 1e-10)
    assert torch.allclose(plan, torch.from_numpy(expected), atol=1e-7)
    assert transport_cost(cost, plan).item() == pytest.approx(float(np.sum(expected * cost.numpy())), abs=1e-7)


@FEW
@given(seed=SEEDS, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_a_small_epsilon_comes_near_the_exact_cost_without_underflow(seed: int, dtype: torch.dtype) -> None:
    cost, source, target = problem(seed, 4, 5)
    plan, error = sinkhorn(cost.to(dtype), source.to(dtype), target.to(dtype), 1e-3, 200, return_error=True)
    exact = float(ot.emd2(source.numpy(), target.numpy(), cost.numpy()))
    # Costs are below 2; the entropy of 20 entries is at most log 20.
    slack = 2 * error.item() + 1e-3
    assert exact - slack <= transport_cost(cost.to(dtype), plan).item() <= exact + 1e-3 * math.log(20) + slack


@FEW
@given(seed=SEEDS, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_the_plan_meets_its_marginals(seed: int, dtype: torch.dtype) -> None:
    cost, source, target = (x.to(dtype) for x in problem(seed, 3, 7, 5))
    plan, error = sinkhorn(cost, source, target, 0.5, 500, 1e-6, return_error=True)
    assert error.shape == (3,) and (error <= 2e-6).all()
    assert torch.allclose(plan.sum(-1), source, atol=2e-6)
    assert torch.allclose((plan.sum(-2) - target).abs().sum(-1), error, atol=3e-6)


def test_flat_costs_give_the_product_of_the_marginals() -> None:
    _, source, target = problem(3, 4, 5)
    assert torch.allclose(sinkhorn(torch.zeros(4, 5).double(), source, target, 0.1), torch.outer(source, target))


def test_the_error_tells_of_too_few_iterations() -> None:
    cost, source, target = problem(0, 6, 6)
    _, error = sinkhorn(cost, source, target, 0.02, iterations=2, return_error=True)
    assert error > 1e-3


@FEW
@given(seed=SEEDS, padding=st.integers(1, 4))
def test_entries_without_mass_have_no_effect_whatever_they_cost(seed: int, padding: int) -> None:
    cost, source, target = problem(seed, 4, 3)
    wide = torch.full((4 + padding, 3 + padding), torch.nan).double()
    wide[2:4] = torch.inf
    rows = torch.tensor([0, 1, *range(2 + padding, 4 + padding)])
    wide[rows[:, None], torch.arange(3)] = cost
    wide_source = torch.zeros(4 + padding).double().index_put((rows,), source)
    wide_target = torch.nn.functional.pad(target, (0, padding))
    leaves = [x.requires_grad_() for x in (cost, source, target)]
    wide_leaves = [x.requires_grad_() for x in (wide, wide_source, wide_target)]
    alone, padded = sinkhorn(*leaves, 0.2, 30), sinkhorn(*wide_leaves, 0.2, 30)
    inside = padded[rows][:, :3]
    assert torch.allclose(inside, alone, atol=1e-12)
    assert padded.count_nonzero() == inside.count_nonzero()
    weights = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)).double()
    expected = torch.autograd.grad((alone * weights).sum(), leaves)
    found = torch.autograd.grad((inside * weights).sum(), wide_leaves)
    assert all(g.isfinite().all() for g in found)
    assert torch.allclose(found[0][rows][:, :3], expected[0], atol=1e-9)
    assert found[0].count_nonzero() <= 12
    assert not found[1][2 : 2 + padding].any() and not found[2][3:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_mass_at_all_gives_an_empty_plan(dtype: torch.dtype) -> None:
    cost = torch.rand(2, 3, 4, dtype=dtype, requires_grad=True)
    source, target = torch.zeros(2, 3, dtype=dtype), torch.zeros(2, 4, dtype=dtype)
    source[1], target[1] = 1 / 3, 1 / 4
    plan, error = sinkhorn(cost, source, target, 0.1, return_error=True)
    transport_cost(cost, plan).sum().backward()
    assert not plan[0].any() and error[0] == 0
    assert plan[1].sum().item() == pytest.approx(1, abs=1e-5)
    assert cost.grad is not None and cost.grad.isfinite().all() and not cost.grad[0].any()


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_a_converged_item_does_not_change_while_others_iterate(tolerance: float) -> None:
    items = [(scale * cost, source, target) for scale in (0.2, 1, 8) for cost, source, target in [problem(1, 5, 5)]]
    plans = sinkhorn(*(torch.stack(parts) for parts in zip(*items, strict=True)), 0.1, 300, tolerance)
    for plan, item in zip(plans, items, strict=True):
        alone, error = sinkhorn(*item, 0.1, 300, tolerance, return_error=True)
        assert torch.allclose(plan, alone, rtol=0, atol=1e-12)
        assert error <= tolerance or item is items[2]


def test_the_gradient_through_the_iterations_is_that_of_the_converged_plan() -> None:
    cost, source, target = problem(5, 3, 4)
    cost.requires_grad_()
    value = transport_cost(cost.detach(), sinkhorn(cost, source, target, 0.5, 500, 1e-13))
    (gradient,) = torch.autograd.grad(value, cost)
    step = 1e-5
    for place in ((0, 0), (1, 2)):
        moved = [cost.detach().clone() for _ in range(2)]
        moved[0][place] += step
        moved[1][place] -= step
        values = [transport_cost(cost.detach(), sinkhorn(c, source, target, 0.5, 500, 1e-13)) for c in moved]
        assert gradient[place].item() == pytest.approx(((values[0] - values[1]) / (2 * step)).item(), abs=1e-6)


def test_one_target_for_a_whole_batch_is_broadcast() -> None:
    cost, source, target = problem(2, 3, 4, 5)
    expected = sinkhorn(cost, source, target[0].expand(3, 5), 0.1)
    assert torch.equal(sinkhorn(cost, source, target[0], 0.1), expected)


@FEW
@given(seed=SEEDS, n=st.integers(1, 6), m=st.integers(1, 6))
def test_sorted_wasserstein_pads_sorts_and_forgets_the_order(seed: int, n: int, m: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p, q = (torch.randn(k, generator=generator).double().softmax(-1) for k in (n, m))
    longest = max(n, m)
    padded = [np.pad(np.sort(x.numpy())[::-1], (0, longest - len(x))) for x in (p, q)]
    found = sorted_wasserstein(p, q)
    assert found.item() == pytest.approx(float(np.abs(padded[0] - padded[1]).sum()), abs=1e-12)
    # For equally many values it is n times the one-dimensional transport distance of the values themselves.
    assert found.item() == pytest.approx(longest * float(ot.wasserstein_1d(*padded, p=1)), abs=1e-9)
    order = torch.randperm(n, generator=generator)
    assert torch.allclose(sorted_wasserstein(p[order], q), found)
    assert sorted_wasserstein(p, p[order]) == 0
    assert 0 <= found <= 2


def test_sorted_wasserstein_pads_after_sorting() -> None:
    assert sorted_wasserstein(torch.tensor([-1.0, 2.0]), torch.tensor([2.0, -1.0, 0.0])).item() == 2.0
