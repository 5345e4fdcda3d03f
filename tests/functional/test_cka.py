from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.functional.cases import FEW, SEEDS

from distilvec.functional import centred_gram, cka_distance, cka_distance_to_gram, linear_cka


def rows(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def reference(x: np.ndarray, y: np.ndarray, debiased: bool) -> float:
    """From the definitions with n x n kernels: Kornblith eq. 3; Song eq. 5."""
    n = len(x)
    first, second = x @ x.T, y @ y.T
    centre = np.eye(n) - 1 / n

    def dependence(k: np.ndarray, m: np.ndarray) -> float:
        if not debiased:
            return float(np.trace(k @ centre @ m @ centre))
        k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
        middle = k.sum() * m.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * (k @ m).sum()
        return float((np.trace(k @ m) + middle) / (n * (n - 3)))

    return dependence(first, second) / np.sqrt(dependence(first, first) * dependence(second, second))


@FEW
@given(seed=SEEDS, n=st.integers(3, 12), p=st.integers(1, 8), q=st.integers(1, 8), debiased=st.booleans())
def test_agrees_with_the_definition(seed: int, n: int, p: int, q: int, debiased: bool) -> None:
    n += debiased
    x, y = rows(seed, n, p) + 3, rows(seed + 1, n, q)
    found = linear_cka(x, y, debiased=debiased).item()
    assert found == pytest.approx(reference(x.numpy(), y.numpy(), debiased), abs=1e-8)
    assert (-1 if debiased else 0) <= found <= 1


@FEW
@given(seed=SEEDS, scale=st.floats(1e-3, 1e3), debiased=st.booleans(), n=st.integers(5, 14))
def test_rotations_scale_shift_and_joint_order_do_not_matter(seed: int, scale: float, debiased: bool, n: int) -> None:
    x, y = rows(seed, n, 4), rows(seed + 1, n, 3)
    expected = linear_cka(x, y, debiased=debiased)
    turned = scale * x @ torch.linalg.qr(rows(seed + 2, 4, 4)).Q + rows(seed + 3, 1, 4)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(linear_cka(turned[order], y[order], debiased=debiased), expected, atol=1e-9)
    assert torch.allclose(linear_cka(y, x, debiased=debiased), expected)
    assert linear_cka(x, turned, debiased=debiased).item() == pytest.approx(1)
    assert cka_distance(x, turned, debiased=debiased).item() == pytest.approx(0, abs=1e-9)


@FEW
@given(seed=SEEDS, n=st.integers(1, 9), hidden=st.integers(0, 3), p=st.integers(1, 20), debiased=st.booleans())
def test_a_gram_matrix_is_all_that_is_taken_of_one_side(seed: int, n: int, hidden: int, p: int, debiased: bool) -> None:
    x, y = rows(seed, n + hidden, p), rows(seed + 1, n + hidden, 7)
    mask = torch.arange(n + hidden) < n
    found = cka_distance_to_gram(x, centred_gram(y, mask), mask, debiased)
    torch.testing.assert_close(found, cka_distance(x, y, mask, debiased), atol=1e-9, rtol=1e-9)
    # Bigger tables: whoever pads the Gram matrix with zeros changes nothing.
    gram, wider = torch.zeros(n + hidden + 2, n + hidden + 2).double(), torch.cat([x, rows(seed + 2, 2, p)])
    gram[:n, :n] = centred_gram(y, mask)[:n, :n]
    again = cka_distance_to_gram(wider, gram, torch.cat([mask, torch.tensor([False, False])]), debiased)
    torch.testing.assert_close(again, found, atol=1e-9, rtol=1e-9)


@FEW
@given(seed=SEEDS, padding=st.integers(0, 5), debiased=st.booleans(), n=st.integers(4, 9))
def test_masked_rows_have_no_effect_whatever_they_hold(seed: int, padding: int, debiased: bool, n: int) -> None:
    x, y = rows(seed, n, 5), rows(seed + 1, n, 3)
    mask = torch.zeros(n + padding, dtype=torch.bool)
    places = torch.randperm(n + padding, generator=torch.Generator().manual_seed(seed))[:n].sort().values
    mask[places] = True
    longer_x, longer_y = (
        torch.full((n + padding, 5), torch.nan).double(),
        torch.full((n + padding, 3), 1e30).double(),
    )
    longer_x[places], longer_y[places] = x, y
    longer_x.requires_grad_()
    short = x.clone().requires_grad_()
    for function in (linear_cka, cka_distance):
        alone, padded = function(short, y, None, debiased), function(longer_x, longer_y, mask, debiased)
        assert torch.allclose(padded, alone, atol=1e-10)
        (expected,) = torch.autograd.grad(alone, short)
        (found,) = torch.autograd.grad(padded, longer_x)
        assert torch.allclose(found[places], expected, atol=1e-9)
        assert not found[~mask].any()


def test_two_rows_are_always_alike_and_count_for_nothing() -> None:
    x, y = rows(0, 2, 5), rows(1, 2, 4)
    assert linear_cka(x, y).item() == pytest.approx(1)
    assert cka_distance(x, y).item() == 0


@pytest.mark.parametrize(
    ("debiased", "real"), [(False, 0), (False, 1), (False, 2), (True, 0), (True, 1), (True, 2), (True, 3)]
)
def test_too_few_rows_give_zero_and_no_gradient(real: int, debiased: bool) -> None:
    x = rows(0, 6, 4).float().requires_grad_()
    mask = torch.arange(6) < real
    distance = cka_distance(x, rows(1, 6, 3).float(), mask, debiased)
    distance.backward()
    assert distance.item() == 0
    assert x.grad is not None and not x.grad.any()


@pytest.mark.parametrize("debiased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [5, 7, 30])
def test_equal_rows_give_no_features_however_the_mean_rounds(debiased: bool, dtype: torch.dtype, count: int) -> None:
    x = torch.full((count, 4), 1000.1, dtype=dtype, requires_grad=True)
    y = rows(1, count, 3).to(dtype).requires_grad_()
    distance = cka_distance(x, y, debiased=debiased)
    distance.backward()
    assert distance.item() == 1
    assert x.grad is not None and y.grad is not None
    assert not x.grad.any() and not y.grad.any()


def test_the_gradient_is_finite_where_nothing_is_alike() -> None:
    x = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]], requires_grad=True)
    y = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]], requires_grad=True)
    distance = cka_distance(x, y)
    distance.backward()
    assert distance.item() == 1
    assert x.grad is not None and x.grad.isfinite().all()
    nearly = (x.detach() + 1e-3 * torch.tensor([[1.0], [0.0], [0.0], [0.0]])).requires_grad_()
    cka_distance(nearly, y).backward()
    assert nearly.grad is not None and 0.01 < nearly.grad.abs().max() < 10


def test_debiased_is_near_zero_for_unrelated_rows_and_plain_is_not() -> None:
    x, y = rows(0, 200, 10, 64).float(), rows(1, 200, 10, 64).float()
    assert abs(linear_cka(x, y, debiased=True).mean()) < 0.05
    assert linear_cka(x, y).mean() > 0.8
    assert (linear_cka(x, y, debiased=True) < 0).float().mean() > 0.3


def test_negative_items_keep_their_gradient_when_debiased() -> None:
    x, y = rows(0, 50, 6, 32).requires_grad_(), rows(1, 50, 6, 32)
    distance = cka_distance(x, y, debiased=True)
    distance.sum().backward()
    assert (distance > 1).any() and x.grad is not None
    assert (x.grad[distance > 1].flatten(1).norm(dim=1) > 1e-4).all()


def test_the_ways_of_computing_agree_in_float32() -> None:
    x, y = rows(0, 40, 16).float(), rows(1, 40, 12).float()
    wide_x = torch.cat([x, torch.zeros(40, 200)], 1)
    for debiased in (False, True):
        narrow, wide = linear_cka(x, y, None, debiased), linear_cka(wide_x, y, None, debiased)
        assert torch.allclose(narrow, wide, atol=1e-5)


@pytest.mark.parametrize(("n", "width", "largest"), [(6, 300, 6 * 300), (400, 8, 400 * 8)])
@pytest.mark.parametrize("debiased", [False, True])
def test_works_on_the_smaller_side(n: int, width: int, largest: int, debiased: bool) -> None:
    x, y = rows(0, n, width).requires_grad_(), rows(1, n, width)
    kept: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        linear_cka(x, y, None, debiased)
    assert max(kept) <= largest
