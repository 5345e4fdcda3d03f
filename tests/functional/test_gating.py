from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.functional.cases import FEW, SEEDS

from distilvec.functional import expert_similarity, gate_floor_penalty, load_balance, optimal_gate


def rows(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@FEW
@given(seed=SEEDS, experts=st.integers(1, 5))
def test_expert_similarity_agrees_with_the_formula(seed: int, experts: int) -> None:
    outputs = rows(seed, 3, experts, 4)
    for item, found in zip(outputs, expert_similarity(outputs).tolist(), strict=True):
        pairs = [(m, n) for m in range(experts) for n in range(experts) if m != n]
        cosines = [torch.cosine_similarity(item[m], item[n], dim=0).item() for m, n in pairs]
        assert found == pytest.approx(sum(max(c, 0) for c in cosines) / max(len(pairs), 1))


def test_expert_similarity_of_orthogonal_equal_opposed_and_zero_experts() -> None:
    assert expert_similarity(torch.eye(3)[None]).tolist() == [0]
    assert expert_similarity(torch.ones(1, 3, 4)).item() == pytest.approx(1)
    assert expert_similarity(torch.tensor([[[1.0, 0], [-1, 0]]])).tolist() == [0]
    assert expert_similarity(torch.zeros(2, 3, 4)).tolist() == [0, 0]


def test_gate_floor() -> None:
    weights = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.9, 0.1, 0.0], [1.0, 0.0, 0.0]])
    assert gate_floor_penalty(weights).tolist() == pytest.approx([0, 0.01, 0.02], abs=1e-7)
    assert gate_floor_penalty(weights, 0.25)[0].item() == 0
    assert gate_floor_penalty(weights, 0.5)[0].item() == pytest.approx(3 / 36)


@FEW
@given(seed=SEEDS, beta=st.sampled_from([0.1, 1.0, 10.0]))
def test_no_gate_beats_the_optimal_one(seed: int, beta: float) -> None:
    losses = rows(seed, 1, 4).abs()

    def objective(gate: torch.Tensor) -> torch.Tensor:
        return (gate * losses).sum(-1) + beta * (gate * (4 * gate.clamp_min(1e-300)).log()).sum(-1)

    best = optimal_gate(losses, beta)
    assert best.sum().item() == pytest.approx(1)
    others = (rows(seed + 1, 50, 4) * 3).softmax(-1)
    assert (objective(others) >= objective(best) - 1e-12).all()
    assert objective(best).item() == pytest.approx(-beta * math.log((-losses / beta).exp().mean().item()))


@FEW
@given(seed=SEEDS, experts=st.integers(2, 6), top=st.integers(1, 2))
def test_load_balance_agrees_with_the_formula_and_leaves_padding_out(seed: int, experts: int, top: int) -> None:
    probabilities = rows(seed, 7, experts).softmax(-1)
    selected = torch.zeros(7, experts, dtype=torch.bool).scatter(1, probabilities.topk(top).indices, True)
    real = torch.arange(7) < 5
    found = load_balance(probabilities, selected & real[:, None])
    share = selected[real].double().sum(0) / (5 * top)
    assert found.item() == pytest.approx((experts * share * probabilities[real].mean(0)).sum().item())
    probabilities[5:] = torch.nan
    assert torch.equal(load_balance(probabilities, selected & real[:, None]), found)


def test_load_balance_keeps_the_precision_it_is_given() -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.rand(301, 7, generator=generator, dtype=torch.float64).softmax(-1)
    selected = torch.rand(301, 7, generator=generator) < 0.3
    share = selected.sum(0).double() / selected.sum()
    exact = 7 * (share * probabilities[selected.any(-1)].sum(0) / selected.any(-1).sum()).sum()
    assert load_balance(probabilities, selected).item() == pytest.approx(exact.item(), rel=1e-14)


def test_load_balance_is_one_when_even_and_k_when_one_expert_takes_all() -> None:
    one_hot = torch.eye(4).repeat(3, 1)
    assert load_balance(one_hot, one_hot.bool()).item() == pytest.approx(1)
    collapsed = torch.zeros(5, 4).index_fill(1, torch.tensor(2), 1.0)
    assert load_balance(collapsed, collapsed.bool()).item() == 4


def test_load_balance_without_assignments_is_zero_without_gradient() -> None:
    probabilities = torch.full((3, 4), 0.25, requires_grad=True)
    value = load_balance(probabilities, torch.zeros(3, 4, dtype=torch.bool))
    value.backward()
    assert value.item() == 0
    assert probabilities.grad is not None and not probabilities.grad.any()
