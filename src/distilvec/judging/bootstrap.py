"""Intervals by drawing test items with replacement, for one model and for the difference of two.

The draws depend on the seed, the name of the items and their number only, so that two models are always scored on the
same draws: differences are paired without further book-keeping. The items' name is the task's, but for tasks that are
asked about the same items, whose average is no surer than one of them. Draws are centred on the plain value: the
entropy behind the V-measure and F1 over many classes are biased on samples with repeated items. Of few items nobody
knows the scatter well, so deviations are those of Student's t. Items are taken as independent; in pair sets whose
sentences recur (SICK) intervals are somewhat too narrow.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtrit

from distilvec.errors import DataError, DistilvecError
from distilvec.judging.metrics import METRICS, Floats, measure
from distilvec.judging.scores import Difference, Outputs, Score

RESAMPLES = 1_000
LEVEL = 0.95
#: With more items, draws are made from a seeded part of this size and their deviations scaled by sqrt(part /
#: n).
ITEM_CAP = 20_000


def make_score(
    *,
    task: str,
    kind: str,
    domain: str | None,
    outputs: Outputs,
    details: dict[str, Any] | None = None,
    seed: int = 0,
    items: str = "",
) -> Score:
    """The metric on all items and its bootstrap interval; `items` names what several tasks are asked about."""
    value = measure(outputs.metric, outputs.truth, outputs.predicted)
    _, low, high = METRICS[outputs.metric]
    interval = None
    if len(outputs) > 1 and np.isfinite(value):
        edges = np.clip(_quantiles(draws(outputs, items or task, seed=seed)), low, high)
        interval = (float(edges[0]), float(edges[1]))
        if edges[0] == edges[1] and edges[0] in (low, high) and np.isfinite(high - low):
            interval = all_alike(value, len(outputs), low, high)
    facts = dict(details or {})
    if len(outputs) > ITEM_CAP:
        facts["interval_items"] = ITEM_CAP
    return Score(task, kind, outputs.metric, value, interval, len(outputs), facts, domain, outputs, items)


def all_alike(value: float, n: int, low: float, high: float) -> tuple[float, float]:
    """Return where every item has the best value, or every one the worst: Clopper and Pearson's interval of n of n."""
    part = (high - low) * ((1 - LEVEL) / 2) ** (1 / n)
    return (low + part, value) if value == high else (value, high - part)


def draws(outputs: Outputs, items: str, resamples: int = RESAMPLES, seed: int = 0) -> Floats:
    """[resamples] values of the metric on samples of the items, centred on its value on all items."""
    value = measure(outputs.metric, outputs.truth, outputs.predicted)
    metric = METRICS[outputs.metric][0]
    rng = np.random.default_rng([seed, len(outputs), zlib.crc32(items.encode())])
    scale = _student(len(outputs))
    if len(outputs) > ITEM_CAP:
        scale *= float(np.sqrt(ITEM_CAP / len(outputs)))
        outputs = outputs.take(np.sort(rng.choice(len(outputs), ITEM_CAP, replace=False)))
    values = np.concatenate(
        [metric(outputs.truth, outputs.predicted, counts) for counts in _counts(len(outputs), resamples, rng)]
    )
    values = np.where(np.isfinite(values), values, value)  # a draw without any positive item says nothing
    return np.asarray(value + (values - values.mean()) * scale)


def paired_bootstrap(
    a: Score | Sequence[Score],
    b: Score | Sequence[Score],
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
    runs: Sequence[Sequence[float]] = (),
) -> Difference:
    """Difference of two models (a - b) on the same task, or of their means over the same list of tasks.

    Several scores of one task (training seeds) may be in the lists: they share the draws of that task's
    items. The interval is over test items, and over training seeds where `runs` says how these differ.

    Args:
        a, b: scores with outputs, in the same order of tasks.
        runs: values of training seeds, in groups that were drawn apart and whose means add up to a - b: one group
            of the differences where a and b have the same seeds, else those of a and those of -b. The mean of each
            scatters by Student's t with n - 1 degrees of freedom, times the standard error: of two or three seeds
            nobody knows the deviation well, and drawing them again says much too little.

    Raises:
        DistilvecError: the lists do not match.
        DataError: a score without per-item results, or two scores of different test items.
    """
    left = [a] if isinstance(a, Score) else list(a)
    right = [b] if isinstance(b, Score) else list(b)
    if not left or [s.task for s in left] != [s.task for s in right]:
        raise DistilvecError(
            f"scores of different tasks: {[s.task for s in left]} and {[s.task for s in right]}",
            remedy="Give the scores of the same tasks in the same order.",
        )
    pairs = [(_outputs(one), _outputs(other), one.items or one.task) for one, other in zip(left, right, strict=True)]
    for (one, other, _), task in zip(pairs, [score.task for score in left], strict=True):
        if one.metric != other.metric or not np.array_equal(one.truth, other.truth):
            about = f"{one.metric} of {len(one)} items and {other.metric} of {len(other)}"
            raise DataError(f"the two scores are not about the same test items ({about})", where=f"task {task}")
    gaps = [draws(one, items, resamples, seed) - draws(other, items, resamples, seed) for one, other, items in pairs]
    drawn = np.mean(gaps, axis=0)
    for place, group in enumerate(each for each in runs if len(each) > 1):
        rng = np.random.default_rng([seed, len(group), place])
        error = float(np.std(group, ddof=1)) / np.sqrt(len(group))
        drawn = drawn + rng.standard_t(len(group) - 1, resamples) * error
    low, high = _quantiles(drawn)
    value = float(np.mean([one.value - other.value for one, other in zip(left, right, strict=True)]))
    tasks = tuple(dict.fromkeys(score.task for score in left))
    return Difference(value, (float(low), float(high)), tasks, sum(len(one) for one, _, _ in pairs))


def _student(n: int) -> float:
    """Return the factor that widens deviations drawn from n items: sqrt(n / (n - 1)) for their bias, times t's quantile
    with n - 1 degrees of freedom over the normal one.
    """
    if n < 2:
        return 1.0
    edge = (1 + LEVEL) / 2
    return float(np.sqrt(n / (n - 1)) * stdtrit(n - 1, edge) / ndtri(edge))


def _outputs(score: Score) -> Outputs:
    if score.outputs is None:
        raise DataError(
            "this score has outputs=None, no per-item results, and cannot be paired", where=f"task {score.task}"
        )
    return score.outputs


def _counts(n: int, resamples: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield how often each of n items was drawn, [chunk, n] at a time (about 16 MB)."""
    chunk = max(1, 2_000_000 // n)
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        drawn = rng.integers(n, size=(rows, n)) + np.arange(rows)[:, None] * n
        yield np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n).astype(np.float64)


def _quantiles(values: Floats) -> Floats:
    return np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
