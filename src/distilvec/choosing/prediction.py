"""What a candidate will keep of its teacher once it is trained: a low end, a middle and a high end.

Before training, a candidate keeps r of the teacher's score: as it is, or behind the ridge map into the teacher's space
(the free baseline), whichever is more. Training then closes a share s of the gap that is left:

    kept = r + s (1 - r)

How large s is follows from committed runs (`RUNS`) of the candidate's kind (static or not) that read about as many
texts while training (`like`): their least, median and largest s give the two ends and the middle. A short training on
few texts may end below where it began, so s may be negative. The residuals of that relation, each student predicted
from the others, are in `residuals()`. The runs are few and of one teacher; the interval is their whole range, and no
probability is claimed for it.

A short training of the candidate itself (`probe`) counts more: what it has reached is a floor for all three.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

#: Texts that a training reads, repetitions counted: below it a training is a short one. The committed ones read 27
#: thousand, or half a million and more.
LONG = 200_000
#: Students that a range needs; with fewer, the ends are those of all lengths.
FEWEST = 3


@dataclass(frozen=True)
class KnownRun:
    """A committed run: what the student kept of the teacher's average before and after training, as fractions.

    Attributes:
        student: which one; runs of one student are not independent. The name of a table begins with "static".
        read: texts that the training read, repetitions counted.
        start: the larger of untrained student and free baseline.
        kept: mean over seeds.
    """

    student: str
    method: str
    read: int
    start: float
    kept: float

    @property
    def static(self) -> bool:
        return self.student.startswith("static")

    @property
    def share(self) -> float:
        """Of the gap to the teacher that training closed."""
        return (self.kept - self.start) / (1 - self.start)


def _runs(student: str, start: float, read: int, kept: Mapping[str, float]) -> list[KnownRun]:
    return [KnownRun(student, method, read, start, value) for method, value in kept.items()]


_TALAS, _HEADLINE, _STATIC, _CHOOSING = 27_000, 1_670_000, 556_000, 26_000

#: From experiments/results: talas_table (average over nine sets, main methods with their defaults), headline,
#: compression (static students on the headline's pool) and choosing (eight sets). A test compares them with the files.
RUNS: tuple[KnownRun, ...] = (
    *_runs(
        "bpe",
        0.7045,
        _TALAS,
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
        "cut",
        0.8892,
        _TALAS,
        {"cosine": 0.9261, "distilcse": 0.9315, "distillcse": 0.9178, "leaf": 0.9217, "talas": 0.9285},
    ),
    *_runs("cut3", 0.9238, _TALAS, {"talas": 0.9286}),
    *_runs("cut", 0.8892, _HEADLINE, {"cosine": 0.9509, "distilcse": 0.949}),
    *_runs("static, 256 numbers, all pieces", 0.8904, _STATIC, {"cosine": 0.9519}),
    *_runs("static, 256 numbers, 21,500 pieces", 0.8882, _STATIC, {"cosine": 0.9512}),
    *_runs("static, 384 numbers, 5,000 pieces", 0.8451, _STATIC, {"cosine": 0.8957}),
    # CHOOSING
)


@dataclass(frozen=True)
class Prediction:
    """Fractions of the teacher's score."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.middle:.0f} % ({100 * self.low:.0f}–{100 * self.high:.0f})"


def like(read: int, static: bool, runs: Sequence[KnownRun] = RUNS) -> list[KnownRun]:
    """The runs of a kind of student that are as long as a training of `read` texts."""
    return [run for run in runs if run.static == static and (run.read < LONG) == (read < LONG)]


def shares(read: int, static: bool, runs: Sequence[KnownRun] = RUNS) -> tuple[float, float, float]:
    """Least, median and largest share of the gap that such a training closed.

    The ends are those of runs of every length where too few students were trained for as long; where none was, the
    middle is, too.
    """
    near, kind = like(read, static, runs), [run for run in runs if run.static == static]
    near = near or kind
    wide = near if len({run.student for run in near}) >= FEWEST else kind
    ends = [run.share for run in wide]
    return min(ends), float(np.median([run.share for run in near])), max(ends)


def predict(
    start: float, read: int, static: bool = False, probe: float | None = None, *, runs: Sequence[KnownRun] = RUNS
) -> Prediction:
    """What training will make of a candidate.

    Args:
        start: the larger of what the untrained candidate and the free baseline keep, as a fraction.
        read: texts that the training will read, repetitions counted.
        static: whether it is a table of word vectors.
        probe: what a short training has reached.
        runs: the relation is taken from these.

    >>> print(predict(0.889, 30_000))
    >>> print(predict(0.889, 30_000, probe=0.94))
    >>> print(predict(0.889, 1_000_000, static=True))
    """
    gap = max(0.0, 1 - start)
    closed = shares(read, static, runs)
    low, middle, high = (start + share * gap for share in closed)
    if probe is not None:
        further = probe + max(0.0, closed[1]) * max(0.0, 1 - probe)
        low, middle, high = max(low, probe), max(middle, probe), max(high, further)
    return Prediction(low, middle, high)


def worst(predictions: Sequence[Prediction]) -> Prediction:
    """The one that promises least: a candidate has to keep retrieval as well as the average."""
    return min(predictions, key=lambda each: each.middle)


def residuals(runs: Sequence[KnownRun] = RUNS) -> dict[str, float]:
    """Student -> largest miss (kept - predicted, in points) over its runs, predicted from the other students' runs."""
    own: dict[str, list[KnownRun]] = defaultdict(list)
    for run in runs:
        own[run.student].append(run)
    found = {}
    for student, mine in own.items():
        others = [run for run in runs if run.student != student]
        misses = [100 * (run.kept - predict(run.start, run.read, run.static, runs=others).middle) for run in mine]
        found[student] = max(misses, key=abs)
    return found
