from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from tests.functional.cases import FEW, SEEDS
from torch.autograd import gradgradcheck

from distilvec.functional import cosine_distance, margin_gap, normalize, relation_gap, relation_matrix


def rows(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(seed: int, width: int) -> torch.Tensor:
    return torch.linalg.qr(rows(seed, width, width)).Q


@FEW
@given(seed=SEEDS, scale=st.floats(1e-6, 1e6))
def test_normalize_has_length_one_and_forgets_the_scale(seed: int, scale: float) -> None:
    x = rows(seed, 3, 5)
    assert torch.allclose(normalize(x).norm(dim=-1), torch.ones(3).double())
    assert torch.allclose(normalize(x * scale), normalize(x))
    assert torch.allclose(normalize(x, dim=0), torch.nn.functional.normalize(x, dim=0))


def test_normalize_gives_a_zero_vector_no_gradient() -> None:
    x = torch.tensor([[0.0, 0.0], [1e-20, 0.0], [3.0, 4.0]], requires_grad=True)
    normalize(x)[:, 0].sum().backward()
    assert x.grad is not None
    assert x.grad[:2].tolist() == [[0, 0], [0, 0]]
    assert torch.allclose(x.grad[2], torch.tensor([0.128, -0.096]))


@FEW
@given(seed=SEEDS, scale=st.floats(1e-3, 1e3))
def test_cosine_distance_agrees_with_scipy(seed: int, scale: float) -> None:
    x, y = rows(seed, 4, 6), rows(seed + 1, 4, 6)
    expected = torch.from_numpy(cdist(x.numpy(), y.numpy(), "cosine")).diagonal()
    assert torch.allclose(cosine_distance(x * scale, y), expected)
    assert torch.allclose(cosine_distance(x, -x * scale), torch.full((4,), 2.0).double())
    assert torch.allclose(cosine_distance(x, x * scale), torch.zeros(4).double(), atol=1e-12)


def test_cosine_distance_of_a_zero_vector_is_one_without_gradient() -> None:
    x, y = torch.zeros(2, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)
    distance = cosine_distance(x, y)
    distance.sum().backward()
    assert distance.tolist() == [1, 1]
    assert x.grad is not None and y.grad is not None
    assert not x.grad.any() and not y.grad.any()


def test_cosine_distance_moves_a_vector_only_across_itself() -> None:
    x, y = rows(0, 5, 4).requires_grad_(), rows(1, 5, 4)
    (gradient,) = torch.autograd.grad(cosine_distance(x, y).sum(), x)
    assert torch.allclose((gradient * x).sum(-1), torch.zeros(5).double(), atol=1e-12)


@FEW
@given(seed=SEEDS, count=st.integers(1, 6))
def test_relation_matrix_holds_the_cosines(seed: int, count: int) -> None:
    x = rows(seed, count, 4)
    relations = relation_matrix(x)
    assert torch.allclose(relations, torch.from_numpy(1 - cdist(x.numpy(), x.numpy(), "cosine")))
    assert torch.allclose(relation_matrix(x.flip(0)), relations.flip(0, 1))


@FEW
@given(seed=SEEDS, count=st.integers(1, 6))
def test_relation_gap_is_the_mean_squared_difference(seed: int, count: int) -> None:
    x, y = rows(seed, count, 4), rows(seed + 1, count, 7)
    expected = torch.nn.functional.mse_loss(relation_matrix(x), relation_matrix(y))
    assert torch.allclose(relation_gap(x, y), expected)
    assert torch.allclose(relation_gap(x, y), relation_gap(y, x))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(relation_gap(x[order], y[order]), expected)


@FEW
@given(seed=SEEDS)
def test_relation_gap_does_not_see_rotations_and_lengths(seed: int) -> None:
    x = rows(seed, 5, 4)
    turned = x @ rotation(seed + 1, 4) * rows(seed + 2, 5, 1).abs()
    assert relation_gap(x, turned) < 1e-24
    assert relation_gap(x, x) == 0


def test_relation_gap_has_second_derivatives() -> None:
    assert gradgradcheck(relation_gap, (rows(0, 4, 3).requires_grad_(), rows(1, 4, 2).requires_grad_()))


def test_relation_gap_holds_nothing_larger_than_its_tables() -> None:
    count, width = 64, 48
    x, y = rows(0, count, width).requires_grad_(), rows(1, count, width)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, tuple | list) else (result,):
                if isinstance(tensor, torch.Tensor):
                    largest = max(largest, tensor.numel())
            return result

    with Watch():
        relation_gap(x, y).backward()
    assert largest == count * count


def naive_margin_gap(x: torch.Tensor, y: torch.Tensor, margin: float) -> list[float]:
    first, second = relation_matrix(x).tolist(), relation_matrix(y).tolist()
    others = [[j for j in range(len(x)) if j != i] for i in range(len(x))]
    return [
        math.fsum(max(abs(first[i][j] - second[i][j]) - margin, 0) for j in others[i]) / max(len(others[i]), 1)
        for i in range(len(x))
    ]


@FEW
@given(seed=SEEDS, count=st.integers(1, 6), margin=st.sampled_from([0.0, 0.1, 0.5, 2.0]))
def test_margin_gap_agrees_with_the_formula(seed: int, count: int, margin: float) -> None:
    x, y = rows(seed, count, 3), rows(seed + 1, count, 4)
    found = margin_gap(x, y, margin)
    assert torch.allclose(found, torch.tensor(naive_margin_gap(x, y, margin), dtype=torch.float64))
    assert margin < 2 or not found.any()


@pytest.mark.parametrize("margin", [0.0, 0.1])
def test_margin_gap_of_one_row_and_of_zero_rows(margin: float) -> None:
    assert margin_gap(rows(0, 1, 3), rows(1, 1, 4), margin).tolist() == [0]
    x, y = torch.zeros(3, 2, requires_grad=True), torch.eye(3)
    gap = margin_gap(x, y, margin)
    gap.sum().backward()
    assert gap.tolist() == [0, 0, 0]
    assert x.grad is not None and not x.grad.any()
