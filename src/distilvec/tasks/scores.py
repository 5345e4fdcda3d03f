"""Scores of a supervised model's answers."""

from __future__ import annotations

import numpy as np


def classification_scores(truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Accuracy, and macro means over the classes that occur (true or predicted), all in [0, 1].

    Args:
        truth, predicted: int [n] class codes, n >= 1. A class that is never predicted has precision 0, one that never
            occurs recall 0.

    >>> scores = classification_scores(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]))
    >>> [round(scores[name], 3) for name in ("accuracy", "macro_precision", "macro_recall", "macro_f1")]
    [0.75, 0.833, 0.75, 0.733]
    """
    from sklearn.metrics import precision_recall_fscore_support

    precision, recall, f1, _ = precision_recall_fscore_support(truth, predicted, average="macro", zero_division=0)
    return {
        "accuracy": float(np.mean(truth == predicted)),
        "macro_f1": float(f1),
        "macro_precision": float(precision),
        "macro_recall": float(recall),
    }


def regression_scores(truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Spearman's (mid-ranks for ties) and Pearson's correlation, in [-1, 1]; 0 where one side is constant.

    Args:
        truth, predicted: [n] numbers, n >= 1.

    >>> regression_scores(np.array([1.0, 2, 3]), np.array([1.0, 10, 100]))["spearman"]
    1.0
    >>> regression_scores(np.array([1.0, 2, 3]), np.zeros(3))
    {'spearman': 0.0, 'pearson': 0.0}
    """
    from scipy.stats import rankdata

    truth, predicted = np.asarray(truth, np.float64), np.asarray(predicted, np.float64)
    return {
        "spearman": _correlation(rankdata(truth), rankdata(predicted)),
        "pearson": _correlation(truth, predicted),
    }


def metric_names(kind: str) -> list[str]:
    scores = regression_scores if kind == "similarity" else classification_scores
    return list(scores(np.arange(2), np.arange(2)))


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    # What centring leaves of a constant side is rounding error: no order, so no correlation.
    if any(np.ptp(side) <= 1e-12 * np.abs(side).max(initial=1.0) for side in (x, y)):
        return 0.0
    return float(np.clip(np.corrcoef(x, y)[0, 1], -1.0, 1.0))
