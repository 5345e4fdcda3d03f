"""Metrics as functions of item weights, so that a score and its bootstrap come from the same code.

Every metric takes `truth` [n], `predicted` [n] (or [S, n]: S repetitions, averaged) and `weights` [R, n], and
returns [R] values: one per row of weights. Whole-number weights are how often an item was drawn, and the
result is exactly the metric of the drawn sample. All ones give the plain metric. Nothing here loops over
resamples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from distilvec.errors import DistilvecError

Floats = npt.NDArray[np.float64]
Array = npt.NDArray[Any]


def spearman(truth: Array, predicted: Array, weights: Floats) -> Floats:
    """Spearman's rank correlation with mid-ranks for ties, in [-1, 1]; 0 where one side is constant."""
    return _correlation(_ranks(truth, weights), _ranks(predicted, weights), weights)


def pearson(truth: Array, predicted: Array, weights: Floats) -> Floats:
    """Pearson's correlation, in [-1, 1]; 0 where one side is constant."""
    shape = weights.shape
    return _correlation(np.broadcast_to(truth, shape), np.broadcast_to(predicted, shape), weights)


def average_precision(truth: Array, predicted: Array, weights: Floats) -> Floats:
    """Area under the step-wise precision-recall curve, ties in the score taken together, in [0, 1].

    NaN for a resample without a positive item.
    """
    order, starts, _ = _groups(-np.asarray(predicted, dtype=np.float64))
    drawn = weights[:, order]
    mass = np.add.reduceat(drawn, starts, axis=1)
    hits = np.add.reduceat(drawn * np.asarray(truth, dtype=bool)[order], starts, axis=1)
    seen = np.cumsum(mass, axis=1)
    precision = np.divide(np.cumsum(hits, axis=1), seen, out=np.zeros_like(seen), where=seen > 0)
    positives = hits.sum(axis=1)
    area = (precision * hits).sum(axis=1)
    return np.asarray(np.divide(area, positives, out=np.full_like(area, np.nan), where=positives > 0))


def macro_f1(truth: Array, predicted: Array, weights: Floats) -> Floats:
    """Mean over the classes that occur (true or predicted) of F1, in [0, 1]; class codes are 0, 1, 2, ..."""
    classes = int(max(truth.max(), predicted.max())) + 1
    right = _per_group(weights * (truth == predicted), truth, classes)
    total = _per_group(weights, truth, classes) + _per_group(weights, predicted, classes)
    f1 = np.divide(2 * right, total, out=np.zeros_like(right), where=total > 0)
    present: Floats = (total > 0).sum(axis=1).astype(np.float64)
    return np.asarray(f1.sum(axis=1) / present)


def accuracy(truth: Array, predicted: Array, weights: Floats) -> Floats:
    """Share of equal codes, in [0, 1]."""
    return mean(truth, (truth == predicted).astype(np.float64), weights)


def r2(truth: Array, predicted: Array, weights: Floats) -> Floats:
    """Coefficient of determination, at most 1; NaN where the truth is constant."""
    y = np.asarray(truth, dtype=np.float64)
    y = y - y.mean()  # the sum of squares below would cancel for values far from zero
    error = np.square(y - (np.asarray(predicted, dtype=np.float64) - np.mean(truth, dtype=np.float64)))
    squares = weights @ np.square(y)
    total = squares - np.square(weights @ y) / weights.sum(axis=1)
    # What is left of the squares of a draw of equal numbers is rounding error: it has no variance, so no value.
    varied = total > 1e-12 * squares
    return np.asarray(1 - np.divide(weights @ error, total, out=np.full_like(total, np.nan), where=varied))


def auroc(truth: Array, predicted: Array, weights: Floats) -> Floats:
    """Area under the ROC curve: how often a positive item is above a negative one (ties half), in [0, 1].

    NaN for a resample of one class.
    """
    order, starts, _ = _groups(np.asarray(predicted, dtype=np.float64))
    positive = np.asarray(truth, dtype=bool)[order]
    above = np.add.reduceat(weights[:, order] * positive, starts, axis=1)
    below = np.add.reduceat(weights[:, order] * ~positive, starts, axis=1)
    won = (above * (np.cumsum(below, axis=1) - below / 2)).sum(axis=1)
    pairs = above.sum(axis=1) * below.sum(axis=1)
    return np.asarray(np.divide(won, pairs, out=np.full_like(won, np.nan), where=pairs > 0))


def v_measure(truth: Array, predicted: Array, weights: Floats) -> Floats:
    """Harmonic mean of homogeneity and completeness (Rosenberg & Hirschberg 2007), in [0, 1]."""
    return np.asarray(np.mean([_v_measure(truth, row, weights) for row in np.atleast_2d(predicted)], axis=0))


def mean(truth: Array, predicted: Array, weights: Floats) -> Floats:
    """Weighted mean of per-item values; the truth is not used."""
    return np.asarray((weights @ np.asarray(predicted, dtype=np.float64)) / weights.sum(axis=1))


Metric = Callable[[Array, Array, Floats], Floats]


def over_repetitions(metric: Metric) -> Metric:
    """The mean of a metric over the rows of `predicted` [S, n], each on the items it has (NaN = not its item).

    A repetition that has no value on a resample (one class only) is left out of that resample's mean.
    """

    def averaged(truth: Array, predicted: Array, weights: Floats) -> Floats:
        if predicted.ndim == 1:
            return metric(truth, predicted, weights)
        there = np.isfinite(predicted)
        values = np.stack([metric(truth[own], row[own], weights[:, own]) for row, own in zip(predicted, there)])
        usable = np.isfinite(values)
        count = usable.sum(axis=0)
        total = np.where(usable, values, 0).sum(axis=0)
        return np.asarray(np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0))

    return averaged


#: name -> (metric, lowest, highest)
METRICS: dict[str, tuple[Metric, float, float]] = {
    "macro_f1": (macro_f1, 0.0, 1.0),
    "accuracy": (over_repetitions(accuracy), 0.0, 1.0),
    "r2": (over_repetitions(r2), -np.inf, 1.0),
    "auroc": (over_repetitions(auroc), 0.0, 1.0),
    "average_precision": (average_precision, 0.0, 1.0),
    "spearman": (spearman, -1.0, 1.0),
    "pearson": (pearson, -1.0, 1.0),
    "v_measure": (v_measure, 0.0, 1.0),
    "ndcg@10": (mean, 0.0, 1.0),
    "rouge_l": (mean, 0.0, 1.0),
    "mean": (mean, -np.inf, np.inf),  # of a task's own values
}


def measure(metric: str, truth: Array, predicted: Array) -> float:
    """The plain value of a metric on all items.

    Raises:
        DistilvecError: there is no such metric.
    """
    if metric not in METRICS:
        raise DistilvecError(
            f'there is no metric "{metric}"',
            where="Outputs.metric",
            remedy=f'"mean" is the mean of one value per item; known: {", ".join(sorted(METRICS))}.',
        )
    ones = np.ones((1, len(truth)))
    return float(METRICS[metric][0](truth, predicted, ones)[0])


def _groups(values: Array) -> tuple[Array, Array, Array]:
    """Sorting order, where each run of equal values starts in it, and each item's run number."""
    _, run = np.unique(values, return_inverse=True)
    order = np.argsort(run, kind="stable")
    starts = np.flatnonzero(np.diff(run[order], prepend=-1))
    return order, starts, run


def _ranks(values: Array, weights: Floats) -> Floats:
    """Mid-rank of every item within each weighted sample, [R, n]."""
    order, starts, run = _groups(values)
    mass = np.add.reduceat(weights[:, order], starts, axis=1)
    ranks: Floats = np.cumsum(mass, axis=1) - (mass - 1) / 2
    return ranks[:, run]


def _correlation(x: Floats, y: Floats, weights: Floats) -> Floats:
    total = weights.sum(axis=1, keepdims=True)
    # What centring leaves of a constant side is rounding error: no order, so no correlation.
    least_x, least_y = (total[:, 0] * np.square(1e-12 * np.abs(side).max(initial=0)) for side in (x, y))
    x = x - (weights * x).sum(axis=1, keepdims=True) / total
    y = y - (weights * y).sum(axis=1, keepdims=True) / total
    weighted = weights * x
    top = (weighted * y).sum(axis=1)
    left, right = (weighted * x).sum(axis=1), (weights * np.square(y)).sum(axis=1)
    varied = (left > least_x) & (right > least_y)
    return np.asarray(np.divide(top, np.sqrt(left * right), out=np.zeros_like(top), where=varied))


def _per_group(weights: Floats, codes: Array, groups: int) -> Floats:
    """Sum of the weights of each group, [R, groups]."""
    rows = np.arange(len(codes))
    indicator = sparse.csr_matrix((np.ones(len(codes)), (codes, rows)), shape=(groups, len(codes)))
    return np.asarray((indicator @ weights.T).T)


def _v_measure(truth: Array, clusters: Array, weights: Floats) -> Floats:
    total = weights.sum(axis=1)
    width = int(clusters.max()) + 1
    _, cell = np.unique(truth.astype(np.int64) * width + clusters, return_inverse=True)
    classes = _entropy(_per_group(weights, truth, int(truth.max()) + 1), total)
    groups = _entropy(_per_group(weights, clusters, width), total)
    shared = np.maximum(classes + groups - _entropy(_per_group(weights, cell, int(cell.max()) + 1), total), 0.0)
    homogeneity = np.divide(shared, classes, out=np.ones_like(shared), where=classes > 1e-12)
    completeness = np.divide(shared, groups, out=np.ones_like(shared), where=groups > 1e-12)
    both = homogeneity + completeness
    return np.asarray(np.divide(2 * homogeneity * completeness, both, out=np.zeros_like(both), where=both > 0))


def _entropy(mass: Floats, total: Floats) -> Floats:
    share = mass / total[:, None]
    return np.asarray(-(share * np.log(np.where(share > 0, share, 1.0))).sum(axis=1))
