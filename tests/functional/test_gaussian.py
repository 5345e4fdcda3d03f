from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.functional.cases import FEW, SEEDS
from torch.distributions import MultivariateNormal, Normal

from distilvec.functional import gaussian_nll, triangular_gaussian_nll


def rows(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@FEW
@given(seed=SEEDS, spread=st.sampled_from([0.1, 1.0, 5.0]))
def test_agrees_with_torch_distributions(seed: int, spread: float) -> None:
    target, mean, log_variance = rows(seed, 3, 4), rows(seed + 1, 3, 4), spread * rows(seed + 2, 3, 4)
    expected = -Normal(mean, (log_variance / 2).exp()).log_prob(target)
    assert torch.allclose(gaussian_nll(target, mean, log_variance), expected)


@FEW
@given(seed=SEEDS, width=st.integers(1, 5), shared=st.booleans())
def test_triangular_agrees_with_torch_distributions(seed: int, width: int, shared: bool) -> None:
    target, mean = rows(seed, 3, width), rows(seed + 1, 3, width)
    factor = rows(seed + 2, width, width) if shared else rows(seed + 2, 3, width, width)
    factor = factor.tril(-1) + torch.diag_embed(factor.diagonal(dim1=-2, dim2=-1).exp())
    expected = -MultivariateNormal(mean, precision_matrix=factor @ factor.mT).log_prob(target)
    assert torch.allclose(triangular_gaussian_nll(target, mean, factor), expected)
    above = factor + rows(seed + 3, width, width).triu(1)
    assert torch.equal(triangular_gaussian_nll(target, mean, above), triangular_gaussian_nll(target, mean, factor))


@FEW
@given(seed=SEEDS)
def test_a_diagonal_factor_is_the_diagonal_gaussian(seed: int) -> None:
    target, mean, log_variance = (rows(seed + i, 3, 4) for i in range(3))
    factor = torch.diag_embed((-log_variance / 2).exp())
    expected = gaussian_nll(target, mean, log_variance).sum(-1)
    assert torch.allclose(triangular_gaussian_nll(target, mean, factor), expected)


@FEW
@given(seed=SEEDS)
def test_a_scaled_common_factor_needs_no_matrix_per_item(seed: int) -> None:
    target, mean, scale = rows(seed, 3, 4), rows(seed + 1, 3, 4), rows(seed + 2, 3, 4).exp()
    common = rows(seed + 3, 4, 4).tril(-1) + torch.eye(4).double()
    expected = triangular_gaussian_nll(target, mean, scale.unsqueeze(-1) * common)
    found = triangular_gaussian_nll(scale * target, scale * mean, common) - scale.log().sum(-1)
    assert torch.allclose(found, expected)


def test_a_perfect_mean_leaves_the_constant_and_the_best_variance_is_the_squared_error() -> None:
    zero = torch.zeros(4)
    assert torch.allclose(gaussian_nll(zero, zero, zero), torch.full((4,), math.log(2 * math.pi) / 2))
    log_variance = torch.tensor(2.0, requires_grad=True)
    gaussian_nll(torch.tensor(math.e), torch.tensor(0.0), log_variance).backward()
    assert log_variance.grad is not None and abs(log_variance.grad) < 1e-6


def test_an_item_does_not_move_another_items_density() -> None:
    target, mean, log_variance = rows(0, 3, 4), rows(1, 3, 4), rows(2, 3, 4)
    before = gaussian_nll(target, mean, log_variance)
    target[2] += 9
    after = gaussian_nll(target, mean, log_variance)
    assert torch.equal(before[:2], after[:2]) and not torch.equal(before[2], after[2])
