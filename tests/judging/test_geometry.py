"""Agreement and collapse on spaces whose geometry is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from distilvec.errors import DataError, DistilvecError
from distilvec.judging import agreement, apply_map, collapse, linear_map, ridge_map
from distilvec.judging.agreement import debiased_cka
from distilvec.judging.tasks import unit

RNG = np.random.default_rng(0)
TEACHER = RNG.normal(size=(200, 24)) * np.linspace(2, 0.5, 24)
ROTATION = np.linalg.qr(RNG.normal(size=(24, 24)))[0]


def test_a_rotated_copy_agrees_in_everything_but_the_index() -> None:
    found = agreement(TEACHER, TEACHER @ ROTATION)
    assert found["cosine_from"] == "ridge"
    assert found["cosine"] > 0.99
    for key in ("similarity_pearson", "similarity_spearman", "neighbours", "cka"):
        assert found[key] == pytest.approx(1.0, abs=1e-3), key
    assert found["index_recall"] is None
    lost = agreement(TEACHER, TEACHER @ ROTATION, shared_space=True)
    assert lost["index_recall"] < 0.2
    assert abs(lost["cosine"]) < 0.3
    mapped = agreement(TEACHER, TEACHER @ ROTATION, ROTATION.T)
    assert (mapped["cosine_from"], mapped["items"]) == ("head", 200)
    assert mapped["cosine"] == pytest.approx(1.0, abs=1e-5)
    assert mapped["index_recall"] == pytest.approx(1.0, abs=1e-3)


def test_noise_lowers_every_figure() -> None:
    def of(noise: float) -> dict[str, Any]:
        student = TEACHER + noise * np.random.default_rng(1).normal(size=TEACHER.shape)
        return agreement(TEACHER, student, shared_space=True)

    little, much, only = of(0.3), of(1.5), of(1e6)
    for key in ("cosine", "similarity_pearson", "similarity_spearman", "neighbours", "cka", "index_recall"):
        assert 1 > little[key] > much[key] > only[key] > -0.1, key
    # Ten of the other 199 are found by chance.
    assert only["neighbours"] == pytest.approx(10 / 199, abs=0.03)
    assert only["cka"] == pytest.approx(0, abs=0.05)


def test_figures_by_their_definition() -> None:
    student = TEACHER[:, :10] + RNG.normal(size=(200, 10))
    head = ridge_map(student, TEACHER)
    found = agreement(TEACHER, student, head, neighbours=5)
    own, mapped, theirs = unit(student), unit(student @ head), unit(TEACHER)
    rows, columns = np.triu_indices(200, 1)
    a, b = (theirs @ theirs.T)[rows, columns], (own @ own.T)[rows, columns]
    assert found["similarity_pearson"] == pytest.approx(stats.pearsonr(a, b).statistic, abs=1e-4)
    assert found["similarity_spearman"] == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-4)
    assert found["cosine"] == pytest.approx((mapped * theirs).sum(axis=1).mean(), abs=1e-5)

    def nearest(queries: np.ndarray, row: int) -> set[int]:
        order = np.argsort(-(queries[row] @ (theirs if queries is not own else own).T))
        return set([other for other in order if other != row][:5])

    overlap = [len(nearest(theirs, row) & nearest(own, row)) / 5 for row in range(200)]
    recall = [len(nearest(theirs, row) & nearest(mapped, row)) / 5 for row in range(200)]
    assert found["neighbours"] == pytest.approx(np.mean(overlap), abs=1e-3)
    assert found["index_recall"] == pytest.approx(np.mean(recall), abs=1e-3)


def test_cka_by_its_definition() -> None:
    """Against the mean over distinct index quadruples that the unbiased estimate stands for."""
    from itertools import permutations

    x, y = RNG.normal(size=(6, 3)), RNG.normal(size=(6, 2))

    def hsic(a: np.ndarray, b: np.ndarray) -> float:
        k, m = a @ a.T, b @ b.T
        terms = [k[i, j] * (m[i, j] + m[q, r] - 2 * m[i, q]) for i, j, q, r in permutations(range(6), 4)]
        return float(np.mean(terms))

    expected = hsic(x, y) / np.sqrt(hsic(x, x) * hsic(y, y))
    assert debiased_cka(x, y) == pytest.approx(expected, abs=1e-9)
    assert debiased_cka(x, np.ones((6, 2))) == 0.0


def test_a_sample_is_seeded_and_near_the_whole() -> None:
    student = TEACHER + RNG.normal(size=TEACHER.shape)
    part = agreement(TEACHER, student, sample=120)
    assert part == agreement(TEACHER, student, sample=120)
    assert part["items"] == 120
    assert part["similarity_pearson"] == pytest.approx(agreement(TEACHER, student)["similarity_pearson"], abs=0.05)


@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_layer_as_map(bias: bool) -> None:
    layer = torch.nn.Linear(5, 7, bias=bias)
    vectors = RNG.normal(size=(4, 5)).astype(np.float32)
    with torch.no_grad():
        expected = layer(torch.from_numpy(vectors)).numpy()
    assert apply_map(vectors, linear_map(layer)) == pytest.approx(expected, abs=1e-5)


def test_the_ridge_map_is_sklearns() -> None:
    from sklearn.linear_model import Ridge

    source = RNG.normal(size=(50, 6))
    strength = 1e-2 * np.trace(source.T @ source) / 6
    target = source @ RNG.normal(size=(6, 4)) + RNG.normal(size=(50, 4))
    expected = Ridge(alpha=strength, fit_intercept=False).fit(source, target).coef_.T
    assert ridge_map(source, target) == pytest.approx(expected, abs=1e-5)


def test_unusable_vectors_are_refused() -> None:
    with pytest.raises(DataError, match="200 teacher vectors and 100 student vectors"):
        agreement(TEACHER, TEACHER[:100])
    with pytest.raises(DataError, match="NaN"):
        agreement(TEACHER, np.where(TEACHER > 3, np.nan, TEACHER))
    with pytest.raises(DataError, match="width 10 cannot share a space of width 24"):
        agreement(TEACHER, TEACHER[:, :10], shared_space=True)
    with pytest.raises(DistilvecError, match="does not fit"):
        agreement(TEACHER, TEACHER, np.zeros((3, 24)))
    with pytest.raises(DataError, match="at least two"):
        collapse(TEACHER[:1])


def test_a_healthy_space_raises_no_alarm() -> None:
    found = collapse(RNG.normal(size=(500, 32)))
    assert found["alarms"] == []
    assert found["mean_cosine"] == pytest.approx(0, abs=0.01)
    assert 30 < found["effective_rank"] <= 32
    assert found["rank_share"] == found["effective_rank"] / 32


def _equal(n: int, d: int) -> np.ndarray:
    return np.ones((n, d))


def _narrow(n: int, d: int) -> np.ndarray:
    return 10 + np.random.default_rng(0).normal(size=(n, d))


def _line(n: int, d: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 1)) * rng.normal(size=(1, d)) + 1e-3 * rng.normal(size=(n, d))


@pytest.mark.parametrize(
    ("space", "sentence"),
    [
        (_equal, "mean cosine"),
        (_equal, "effective rank"),
        (_narrow, "mean cosine"),
        (_line, "effective rank"),
    ],
)
def test_collapsed_spaces_raise_alarms(space: Callable[[int, int], np.ndarray], sentence: str) -> None:
    found = collapse(space(300, 64))
    assert any(sentence in alarm for alarm in found["alarms"])
    assert all(np.isfinite(value) for key, value in found.items() if key != "alarms")


def test_collapse_figures_by_their_definition() -> None:
    vectors = RNG.normal(size=(60, 8)) + 0.5
    found = collapse(vectors, neighbours=3)
    points = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = points @ points.T
    assert found["mean_cosine"] == pytest.approx(cosine[np.triu_indices(60, 1)].mean(), abs=1e-6)
    singular = np.linalg.svd(points - points.mean(axis=0), compute_uv=False)
    assert found["effective_rank"] == pytest.approx(np.exp(stats.entropy(singular)), abs=1e-4)
    np.fill_diagonal(cosine, -np.inf)
    counts = np.bincount(np.argsort(-cosine, axis=1)[:, :3].ravel(), minlength=60)
    assert found["hubness"] == pytest.approx(stats.skew(counts), abs=1e-6)


def test_a_hub_is_seen() -> None:
    """Points far apart on many axes, and one in the middle of all: it is everyone's neighbour."""
    vectors = np.vstack([np.eye(400) + 0.01 * RNG.normal(size=(400, 400)), np.ones((1, 400))])
    found = collapse(vectors, neighbours=1)
    assert found["hubness"] > 10
    assert any("near everything" in alarm for alarm in found["alarms"])
