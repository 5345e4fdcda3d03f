from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distilvec.errors import DataError, DistilvecError
from distilvec.modules.projection import projection, ridge_map


def rows(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 20),
    d=st.integers(1, 8),
    width=st.integers(1, 8),
    ridge=st.sampled_from([1e-3, 1e-2, 1.0]),
)
def test_agrees_with_scikit_learn(seed: int, n: int, d: int, width: int, ridge: float) -> None:
    from sklearn.linear_model import Ridge

    source, target = rows(seed, n, d), rows(seed + 1, n, width)
    gamma = ridge * source.square().sum().item() / d
    expected = Ridge(alpha=gamma, fit_intercept=False, solver="svd").fit(source.numpy(), target.numpy())
    assert np.allclose(ridge_map(source, target, ridge).numpy(), expected.coef_.reshape(width, d), atol=1e-8)


def test_absent_rows_have_no_effect_whatever_they_hold() -> None:
    source, target = rows(0, 12, 4), rows(1, 12, 3)
    present = torch.arange(12) % 3 > 0
    expected = ridge_map(source[present], target[present])
    target[~present] = torch.nan
    assert torch.equal(ridge_map(source, target, present=present), expected)


def test_finds_a_linear_map_and_the_scale_of_the_source_hardly_matters() -> None:
    source, true = rows(0, 200, 5), rows(1, 3, 5)
    assert torch.allclose(ridge_map(source, source @ true.mT, ridge=1e-10), true, atol=1e-6)
    usual = ridge_map(source, source @ true.mT)
    assert torch.allclose(ridge_map(1e6 * source, source @ true.mT) * 1e6, usual)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_computes_in_float64_also_under_autocast(dtype: torch.dtype) -> None:
    source, target = rows(0, 50, 6).to(dtype), rows(1, 50, 4).to(dtype)
    exact = ridge_map(source.double(), target.double())
    with torch.autocast("cpu", torch.bfloat16):
        found = ridge_map(source, target)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.allclose(found.double(), exact, atol=1e-6)


def test_fewer_rows_than_width_and_a_dead_dimension_are_fine() -> None:
    source = rows(0, 3, 10)
    source[:, 4] = 0
    weight = ridge_map(source, rows(1, 3, 2))
    assert weight.isfinite().all() and not weight[:, 4].any()


def test_a_projection_is_trainable_without_bias_and_starts_at_the_ridge_map() -> None:
    source, target = rows(0, 30, 6).float().requires_grad_(), rows(1, 30, 4).float()
    linear = projection(6, 4, source, target)
    assert linear.bias is None and linear.weight.requires_grad and linear.weight.is_leaf
    assert torch.equal(linear.weight, ridge_map(source, target))
    present = torch.arange(30) < 20
    fitted = projection(6, 4, source, target, present=present)
    assert torch.equal(fitted.weight, ridge_map(source[:20], target[:20]))
    better = (linear(source) - target).square().sum()
    assert better < (torch.nn.Linear(6, 4, bias=False)(source) - target).square().sum()


def test_a_random_projection_needs_no_vectors_and_follows_the_seed() -> None:
    torch.manual_seed(3)
    linear = projection(6, 4, init="random")
    torch.manual_seed(3)
    assert torch.equal(linear.weight, torch.nn.Linear(6, 4, bias=False).weight)


def test_what_cannot_be_fitted_says_why() -> None:
    source, target = rows(0, 5, 6), rows(1, 5, 4)
    with pytest.raises(DataError, match=r"\[0, 6\].*init: random"):
        ridge_map(source, target, present=torch.zeros(5, dtype=torch.bool))
    with pytest.raises(DataError, match=r"\[5, 6\].*init: random"):
        ridge_map(torch.zeros(5, 6), target)
    with pytest.raises(DataError, match=r"Row 0 of the 5\b"):
        ridge_map(source, target / 0)
    with pytest.raises(DistilvecError, match="init: random"):
        projection(6, 4)
