"""Maps from one space to another: values known beforehand, and stock modules that give the same."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from distilvec.indexes.adapters import LinearMap, Map, PairMoments, low_rank, procrustes, residual, ridge

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(300, 6)) + 0.5


def rotation(width: int) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(1).normal(size=(width, width)))[0]


def moments(x: np.ndarray, y: np.ndarray) -> PairMoments:
    return PairMoments(x.shape[1], y.shape[1]).add(x, y)


def test_sums_do_not_depend_on_the_blocks() -> None:
    y = X @ RANDOM.normal(size=(6, 4))
    whole, parts = moments(X, y), PairMoments(6, 4)
    for start in range(0, 300, 70):
        parts.add(X[start : start + 70], y[start : start + 70])
    assert parts.count == 300
    centred = X - X.mean(axis=0)
    for found in (whole, parts):
        assert np.allclose(found.centred[0], centred.T @ centred)
        assert np.allclose(found.centred[1], centred.T @ (y - y.mean(axis=0)))


def test_a_rotation_is_found_again_with_its_scale_and_offset() -> None:
    turn = rotation(6)
    found = procrustes(moments(X, 2.5 * X @ turn + 3))
    assert np.allclose(found.weight, 2.5 * turn.T, atol=1e-4) and found.setting == "scale 2.5"
    assert np.allclose(found(X), 2.5 * X @ turn + 3, atol=1e-4)


@pytest.mark.parametrize("width", [4, 9])
def test_procrustes_between_widths_is_orthonormal(width: int) -> None:
    """As the zero-padded form gives it: columns for a wider index, rows for a narrower one."""
    y = np.pad(X, ((0, 0), (0, 3))) @ rotation(9) if width == 9 else X[:, :4] @ rotation(4)
    found = procrustes(moments(X, 1.5 * y))
    small = found.weight @ found.weight.T if width == 4 else found.weight.T @ found.weight
    assert np.allclose(small / small[0, 0], np.eye(len(small)), atol=1e-5)
    # Down to fewer numbers the polar factor is the best only of rows that are spread alike in all directions.
    assert np.allclose(found(X), 1.5 * y, atol=1e-3 if width == 9 else 1.5)


def test_ridge_is_the_solution_of_its_normal_equations() -> None:
    y = X @ RANDOM.normal(size=(6, 4)) + RANDOM.normal(size=(300, 4))
    centred, wanted = X - X.mean(axis=0), y - y.mean(axis=0)
    strength = 0.3 * np.trace(centred.T @ centred) / 6
    solution = np.linalg.solve(centred.T @ centred + strength * np.eye(6), centred.T @ wanted)
    found = ridge(moments(X, y), 0.3)
    assert np.allclose(found.weight, solution.T, atol=1e-5)
    assert np.allclose(found(X).mean(axis=0), y.mean(axis=0), atol=1e-5)


def test_low_rank_keeps_what_has_that_rank() -> None:
    y = X @ RANDOM.normal(size=(6, 2)) @ RANDOM.normal(size=(2, 8))
    full = ridge(moments(X, y), 1e-9)
    one, two = low_rank(full, moments(X, y), [1, 2])
    assert np.linalg.matrix_rank(one.weight, tol=1e-3) == 1 and np.linalg.matrix_rank(two.weight, tol=1e-3) == 2
    assert np.allclose(two(X), y, atol=1e-3) and not np.allclose(one(X), y, atol=0.1)
    assert two.factors is not None and two.parameters == 2 * (6 + 8) + 8
    # the best of rank 1 of what was fitted, in squares (Eckart and Young)
    centred = y - y.mean(axis=0)
    rest = np.linalg.svd(centred, compute_uv=False)[1:]
    assert np.isclose(np.square(one(X) - y).sum(), np.square(rest).sum(), rtol=1e-3)


def test_the_network_fits_what_no_linear_map_can() -> None:
    x = X / np.linalg.norm(X, axis=1, keepdims=True)
    y = np.stack([np.abs(x[:, 0]), x[:, 1] * x[:, 2]], axis=1)
    linear = ridge(moments(x, y), 1e-6)
    loose, tight = residual(linear, x, y, [1e-4, 1e4], hidden=64)
    error = [float(np.square(made(x) - y).mean()) for made in (linear, loose, tight)]
    assert error[1] < 0.2 * error[0] and error[2] == pytest.approx(error[0], rel=0.02)


MADE: dict[str, Callable[[PairMoments, np.ndarray, np.ndarray], Map]] = {
    "procrustes": lambda sums, x, y: procrustes(sums),
    "ridge": lambda sums, x, y: ridge(sums, 1e-3),
    "low rank": lambda sums, x, y: low_rank(ridge(sums, 1e-3), sums, [2])[0],
    "residual": lambda sums, x, y: residual(ridge(sums, 1e-3), x, y, [0.1], hidden=20)[0],
}


@pytest.mark.parametrize("width", [4, 6, 9])
@pytest.mark.parametrize("kind", MADE)
def test_stock_modules_give_what_the_map_gives(kind: str, width: int) -> None:
    y = np.tanh(X @ RANDOM.normal(size=(6, width)))
    made = MADE[kind](moments(X, y), X.astype(np.float32), y)
    features = {"sentence_embedding": torch.from_numpy(X.astype(np.float32))}
    modules = made.modules()
    for module in modules:
        assert type(module).__module__.startswith("sentence_transformers.")
        features = module(features)
    assert made.kind == kind
    assert np.allclose(features["sentence_embedding"].detach().numpy(), made(X), atol=2e-6)
    counted = sum(part.numel() for module in modules for part in module.parameters())
    assert made.parameters == counted
    assert isinstance(made, LinearMap) or len(modules) == 2


@pytest.mark.parametrize("width", [7, 40])
def test_low_rank_keeps_the_axes_of_what_the_map_gives(width: int) -> None:
    """Against the axes of the fitted rows themselves, an index being narrower or wider than the model."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(300, 12)), rng.normal(size=(300, width))
    moments = PairMoments(12, width).add(x, y)
    full = ridge(moments, 0.1)
    given = (x - x.mean(axis=0)) @ full.weight.T.astype(np.float64)
    axes = np.linalg.svd(given, full_matrices=False)[2][:3]
    (made,) = low_rank(full, moments, [3])
    np.testing.assert_allclose(made.weight, axes.T @ axes @ full.weight, atol=1e-5)


def test_low_rank_of_a_wide_index_is_quick() -> None:
    """Of 9,600 numbers: their square has 92 million, whose axes take minutes."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 8)), rng.normal(size=(50, 9600))
    moments = PairMoments(8, 9600).add(x, y)
    begun = time.process_time()
    (made,) = low_rank(ridge(moments, 0.1), moments, [4])
    assert time.process_time() - begun < 20
    assert made.factors is not None and made.factors[0].shape == (9600, 4)
