"""Prediction of what a candidate keeps of its teacher once it is trained: a low end, a middle and a high end.

Before training, a candidate keeps r of the teacher's score: as it is, or behind the ridge map into the teacher's space
(the free baseline), whichever is more. Training then closes a share s of the gap that is left:

    kept = r + s (1 - r)

How large s is follows from committed runs (`RUNS`) of the candidate's kind (`KINDS`) that read about as many texts
while training (`like`): their least, median and largest s give the two ends and the middle. A short training may end
below where it began, so s may be negative. The residuals of that relation, each student predicted from the others, are
in `residuals()`. The runs are few and of one teacher; the interval is their whole range, and no probability is claimed
for it.

A short training of the candidate itself (`probe`) counts more: what it has reached is a floor for all three. Two of
different lengths say how its error falls, and that is extrapolated (`extrapolate`).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

#: Texts that a training reads, repetitions counted: below it a training is a short one. Most of the committed ones
#: read 27 thousand, or half a million and more.
LONG = 200_000
#: Fewer texts than this share of the shortest committed training: no run says what such a training does.
COVERED = 0.5
#: Students that a range needs; with fewer, the ends are those of all lengths, or of related kinds.
FEWEST = 3
#: Steps of training -> agreement with the teacher in [0, 1]; step 0 is the start.
Curve = Mapping[int, float]
#: How much of a student's own power is that of all who came furthest. Two short trainings tell a power badly; students
#: within one budget differ little.
SHARED = 0.75
#: Powers fall as training goes on: from 386 to 1,548 steps they were 0.9 times those from 193 to 386 at a twentieth of
#: a model, 1.0 times at an eighth (experiments/budgets). Between the two.
LATER = 0.95
#: The ends: so much more and less of the power.
ROOM = 0.25
_LEAST = 1e-6

Kind = Literal["static", "one block", "all pieces", "fewer pieces", "narrower", "other"]
#: A table of word vectors; the teacher cut to one block; to some of its blocks, with all of its word pieces or with
#: fewer; to some with a narrower table, fewer inner units or fewer numbers throughout; anything else: blocks of its
#: own, or a tokenizer of its own.
KINDS: tuple[Kind, ...] = get_args(Kind)
#: Kinds whose runs say nothing about others, nor others' about them.
APART = {"static", "narrower"}


@dataclass(frozen=True)
class KnownRun:
    """A committed run: what the student kept of the teacher's average before and after training, as fractions.

    Attributes:
        student: which one; runs of one student are not independent.
        kind: see `KINDS`.
        read: texts that the training read, repetitions counted.
        start: the larger of untrained student and free baseline; of the narrower ones the former, the latter was not
            judged.
        kept: mean over seeds.
    """

    student: str
    kind: Kind
    method: str
    read: int
    start: float
    kept: float

    @property
    def share(self) -> float:
        """The share of the gap to the teacher that training closed."""
        return (self.kept - self.start) / (1 - self.start)


#: Committed runs; each row of the file names the experiment that it comes from. A test compares them with its results.
RUNS = tuple(
    KnownRun(**{name: value for name, value in row.items() if name != "source"})
    for row in json.loads((Path(__file__).parent / "known_runs.json").read_text(encoding="utf-8"))["runs"]
)


@dataclass(frozen=True)
class Prediction:
    """Fractions of the teacher's score."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.middle:.0f} % ({100 * self.low:.0f}–{100 * self.high:.0f})"


def kind_of(section: Mapping[str, Any]) -> Kind:
    """The kind of the student that a recipe's student section makes.

    >>> kind_of({"shrink": {"of": "bge", "layers": 2}})
    'all pieces'
    """
    cut = section.get("shrink")
    if section.get("static"):
        return "static"
    if not cut or section.get("upcycle") or cut.get("heads"):
        return "other"
    narrower = any(cut.get(key) for key in ("embedding", "inner", "width"))
    if cut.get("layers") == 1 or (isinstance(cut.get("layers"), list) and len(cut["layers"]) == 1):
        return "other" if narrower else "one block"
    if narrower:
        return "narrower"
    return "fewer pieces" if cut.get("vocabulary") else "all pieces"


def like(read: int, kind: Kind, runs: Sequence[KnownRun] = RUNS) -> list[KnownRun]:
    """The runs of a kind of student that are as long as a training of `read` texts."""
    return [run for run in runs if run.kind == kind and (run.read < LONG) == (read < LONG)]


def covered(read: int) -> bool:
    """Tell whether there are runs that read about as few texts."""
    return read >= COVERED * min(run.read for run in RUNS)


def shares(read: int, kind: Kind, runs: Sequence[KnownRun] = RUNS) -> tuple[float, float, float]:
    """Least, median and largest share of the gap that such a training closed.

    Where too few students of the kind were trained for as long, the ends are those of its runs of every length, or of
    all kinds that are not `APART`; the middle stays that of the nearest runs that there are.
    """
    near, same = like(read, kind, runs), [run for run in runs if run.kind == kind]
    related = [run for run in runs if run.kind == kind or not {run.kind, kind} & APART]
    wide = next((each for each in (near, same) if len({run.student for run in each}) >= FEWEST), related)
    ends = [run.share for run in wide]
    return min(ends), median([run.share for run in near or same or related]), max(ends)


def predict(
    start: float, read: int, kind: Kind, probe: float | None = None, *, runs: Sequence[KnownRun] = RUNS
) -> Prediction:
    """Return what training will make of a candidate.

    Args:
        start: the larger of what the untrained candidate and the free baseline keep, as a fraction.
        read: texts that the training will read, repetitions counted.
        kind: of student, see `kind_of`.
        probe: what a short training has reached.

    >>> print(predict(0.889, 30_000, "fewer pieces"))
    92 % (90–93)
    >>> print(predict(0.889, 30_000, "fewer pieces", probe=0.94))
    94 % (94–96)
    >>> print(predict(0.889, 1_000_000, "static"))
    95 % (93–95)
    """
    gap = max(0.0, 1 - start)
    closed = shares(read, kind, runs)
    low, middle, high = (start + share * gap for share in closed)
    if probe is not None:
        further = probe + max(0.0, closed[1]) * max(0.0, 1 - probe)
        low, middle, high = max(low, probe), max(middle, probe), max(high, further)
    return Prediction(low, middle, high)


def worst(predictions: Sequence[Prediction]) -> Prediction:
    """Return what the least of them promise, end by end: a candidate has to keep retrieval as well as the average."""
    return Prediction(*(min(getattr(each, end) for each in predictions) for end in ("low", "middle", "high")))


def residuals() -> dict[str, float]:
    """Student -> largest miss (kept - predicted, in points) over its runs, predicted from the other students' runs."""
    own: dict[str, list[KnownRun]] = defaultdict(list)
    for run in RUNS:
        own[run.student].append(run)
    largest = {}
    for student, mine in own.items():
        others = [run for run in RUNS if run.student != student]
        misses = [100 * (run.kept - predict(run.start, run.read, run.kind, runs=others).middle) for run in mine]
        largest[student] = max(misses, key=abs)
    return largest


def power(curve: Curve) -> float | None:
    """b of error = a steps^-b, from the two longest trainings; None where there are not two."""
    trained = sorted(steps for steps in curve if steps > 0)
    if len(trained) < 2:
        return None
    first, last = trained[-2:]
    errors = [max(1 - curve[steps], _LEAST) for steps in (first, last)]
    return math.log(errors[0] / errors[1]) / math.log(last / first)


def powers(curves: Sequence[Curve]) -> list[float]:
    """Those of the students that were trained longest."""
    longest = max(map(max, curves))
    return [each for curve in curves if max(curve) == longest and (each := power(curve)) is not None]


def extrapolate(curve: Curve, steps: int, others: Sequence[float]) -> Prediction:
    """Return what a training of this length reaches.

    The error goes on falling by a power of the steps, a little smaller than it was: in part the student's own, in part
    the median one of those that were trained longest. One that got no better is promised nothing.

    Args:
        curve: of this student, with two trainings in it.
        steps: of the training that is to come.
        others: powers of the students that were trained longest.
    """
    trained, own = max(curve), power(curve)
    assert own is not None
    reached, longer = curve[trained], max(steps / trained, 1.0)
    middle = LATER * (SHARED * max(0.0, median(others)) + (1 - SHARED) * own) if own > 0 else 0.0
    ends = ((1 - ROOM) * middle, middle, (1 + ROOM) * middle)
    low, half, high = (1 - max(1 - reached, _LEAST) * longer**-each for each in ends)
    return Prediction(low, half, high)
