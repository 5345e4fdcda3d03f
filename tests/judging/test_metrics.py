"""Every metric against scikit-learn or scipy: plain, and on a sample with repeated items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from distilvec.judging.metrics import METRICS, measure

N = 120


def _macro_f1(truth: Any, predicted: Any) -> float:
    return float(reference.f1_score(truth, predicted, average="macro"))


def _spearman(truth: Any, predicted: Any) -> float:
    return float(stats.spearmanr(truth, predicted).statistic)


def _pearson(truth: Any, predicted: Any) -> float:
    return float(stats.pearsonr(truth, predicted).statistic)


REFERENCES: dict[str, tuple[str, Callable[[Any, Any], float]]] = {
    "macro_f1": ("codes", _macro_f1),
    "accuracy": ("codes", reference.accuracy_score),
    "v_measure": ("codes", reference.v_measure_score),
    "r2": ("numbers", reference.r2_score),
    "spearman": ("numbers", _spearman),
    "pearson": ("numbers", _pearson),
    "average_precision": ("binary", reference.average_precision_score),
    "auroc": ("binary", reference.roc_auc_score),
    "ndcg@10": ("numbers", lambda truth, predicted: float(np.mean(predicted))),
    "mean": ("numbers", lambda truth, predicted: float(np.mean(predicted))),
    "rouge_l": ("numbers", lambda truth, predicted: float(np.mean(predicted))),
}


def _data(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    if kind == "codes":  # class 6 is only ever predicted, class 5 only ever true
        truth = rng.integers(0, 6, N)
        return truth, np.where(rng.random(N) < 0.6, truth % 5, rng.integers(0, 7, N)).astype(np.int64)
    numbers = np.round(rng.normal(size=N), 1)  # rounding makes ties
    noisy = np.round(numbers + rng.normal(size=N), 1)
    return ((numbers > 0) if kind == "binary" else numbers), noisy


def test_every_metric_has_a_reference() -> None:
    assert set(REFERENCES) == set(METRICS)


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("seed", range(3))
def test_plain_value(name: str, seed: int) -> None:
    kind, expected = REFERENCES[name]
    truth, predicted = _data(kind, seed)
    assert measure(name, truth, predicted) == pytest.approx(expected(truth, predicted), abs=1e-9)


@pytest.mark.parametrize("name", REFERENCES)
def test_weights_are_repetitions(name: str) -> None:
    kind, expected = REFERENCES[name]
    truth, predicted = _data(kind, 7)
    rng = np.random.default_rng(1)
    drawn = rng.integers(0, N, size=(20, N))
    counts = np.stack([np.bincount(row, minlength=N) for row in drawn]).astype(float)
    values = METRICS[name][0](truth, predicted, counts)
    assert values.shape == (20,)
    assert values == pytest.approx([expected(truth[row], predicted[row]) for row in drawn], abs=1e-9)


def test_repetitions_are_averaged() -> None:
    truth, first = _data("codes", 0)
    second = np.random.default_rng(5).integers(0, 4, N)
    both = measure("v_measure", truth, np.stack([first, second]))
    assert both == pytest.approx((measure("v_measure", truth, first) + measure("v_measure", truth, second)) / 2)


@pytest.mark.parametrize("name", ["spearman", "pearson"])
@pytest.mark.parametrize("constant", [0.0, 0.1, 1e8])
def test_no_order_no_correlation(name: str, constant: float) -> None:
    truth, _ = _data("numbers", 0)
    assert measure(name, truth, np.full(N, constant)) == 0.0


def test_no_positive_item_is_not_a_number() -> None:
    assert np.isnan(measure("average_precision", np.zeros(4, dtype=bool), np.arange(4.0)))


def test_one_cluster_has_no_v_measure() -> None:
    truth = np.array([0, 0, 1, 1])
    assert measure("v_measure", truth, np.zeros(4, dtype=int)) == 0.0
    assert measure("v_measure", np.zeros(4, dtype=int), np.zeros(4, dtype=int)) == 1.0


def test_r2_far_from_zero() -> None:
    rng = np.random.default_rng(0)
    truth = 1e6 + rng.normal(size=N)
    predicted = truth + rng.normal(size=N) * 0.5
    assert measure("r2", truth, predicted) == pytest.approx(reference.r2_score(truth, predicted), abs=1e-6)
