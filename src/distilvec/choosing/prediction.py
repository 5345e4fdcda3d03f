"""What a candidate will keep of its teacher once it is trained: a floor, a guess and a ceiling.

Before training, a candidate keeps r of the teacher's score: as it is, or behind the ridge map into the teacher's space
(the free baseline), whichever is more. Training then closes a share s of the gap that is left:

    kept = r + s (1 - r)

How large s is follows from committed runs (`RUNS`: three students of all-MiniLM-L6-v2 with seven methods for two
epochs, one for six, and three static students): their least, median and largest s give the two ends and the middle of
the prediction. The residuals of that relation, each student predicted from the others, are in `residuals()`. The runs
are few and of one teacher; the interval is their whole range, and no probability is claimed for it.

A short training of the candidate itself (`probe`) counts more: what it has reached is a floor for all three.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class KnownRun:
    """A committed run: what the student kept of the teacher's average before and after training, as fractions.

    Attributes:
        student: which one; runs of one student are not independent.
        start: the larger of untrained student and free baseline.
        kept: mean over seeds.
    """

    student: str
    method: str
    epochs: float
    start: float
    kept: float

    @property
    def share(self) -> float:
        """Of the gap to the teacher that training closed."""
        return (self.kept - self.start) / (1 - self.start)


def _runs(student: str, start: float, epochs: float, kept: Mapping[str, float]) -> list[KnownRun]:
    return [KnownRun(student, method, epochs, start, value) for method, value in kept.items()]


#: From experiments/results: talas_table (average over nine sets, main methods with their defaults), headline (six
#: epochs) and, for static students, compression (their start is the untrained table). A test compares them with files.
RUNS: tuple[KnownRun, ...] = (
    *_runs(
        "bpe",
        0.7045,
        2,
        {
            "cosine": 0.8027,
            "distilcse": 0.8462,
            "distillcse": 0.7672,
            "jasper_stella": 0.7345,
            "leaf": 0.7882,
            "mse": 0.8075,
            "talas": 0.8234,
        },
    ),
    *_runs(
        "cut", 0.8892, 2, {"cosine": 0.9261, "distilcse": 0.9315, "distillcse": 0.9178, "leaf": 0.9217, "talas": 0.9285}
    ),
    *_runs("cut3", 0.9238, 2, {"talas": 0.9286}),
    *_runs("cut", 0.8892, 6, {"cosine": 0.9509, "distilcse": 0.949}),
    *_runs("static, 256 numbers, all pieces", 0.8904, 2, {"cosine": 0.9519}),
    *_runs("static, 256 numbers, 21,500 pieces", 0.8882, 2, {"cosine": 0.9512}),
    *_runs("static, 384 numbers, 5,000 pieces", 0.8451, 2, {"cosine": 0.8957}),
)


@dataclass(frozen=True)
class Prediction:
    """Fractions of the teacher's score."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.middle:.0f} % ({100 * self.low:.0f}–{100 * self.high:.0f})"


def shares(runs: Sequence[KnownRun] = RUNS) -> tuple[float, float, float]:
    """Least, median and largest share of the gap that training closed.

    >>> [round(share, 2) for share in shares()]
    [0.06, 0.34, 0.56]
    """
    found = [run.share for run in runs]
    return min(found), float(np.median(found)), max(found)


def predict(start: float, probe: float | None = None, *, runs: Sequence[KnownRun] = RUNS) -> Prediction:
    """What training will make of a candidate.

    Args:
        start: the larger of what the untrained candidate and the free baseline keep, as a fraction.
        probe: what a short training has reached.
        runs: the relation is taken from these.

    >>> print(predict(0.889))
    93 % (90–95)
    >>> print(predict(0.889, probe=0.94))
    94 % (94–96)
    """
    gap = max(0.0, 1 - start)
    closed = shares(runs)
    low, middle, high = (start + share * gap for share in closed)
    if probe is not None:
        further = probe + closed[1] * max(0.0, 1 - probe)
        low, middle, high = max(low, probe), max(middle, probe), max(high, further)
    return Prediction(low, middle, high)


def worst(predictions: Sequence[Prediction]) -> Prediction:
    """The one that promises least: a candidate has to keep retrieval as well as the average."""
    return min(predictions, key=lambda each: each.middle)


def residuals(runs: Sequence[KnownRun] = RUNS) -> dict[str, float]:
    """Student -> largest miss (kept - predicted, in points) over its runs, predicted from the other students' runs.

    >>> {name: round(miss, 1) for name, miss in residuals().items() if not name.startswith("static")}
    {'bpe': -7.5, 'cut': 2.5, 'cut3': -2.2}
    """
    own: dict[str, list[KnownRun]] = defaultdict(list)
    for run in runs:
        own[run.student].append(run)
    found = {}
    for student, mine in own.items():
        others = [run for run in runs if run.student != student]
        misses = [100 * (run.kept - predict(run.start, runs=others).middle) for run in mine]
        found[student] = max(misses, key=abs)
    return found
