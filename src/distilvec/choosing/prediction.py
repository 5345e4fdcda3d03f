"""What a candidate will keep of its teacher once it is trained: a low end, a middle and a high end.

Before training, a candidate keeps r of the teacher's score: as it is, or behind the ridge map into the teacher's space
(the free baseline), whichever is more. Training then closes a share s of the gap that is left:

    kept = r + s (1 - r)

How large s is follows from committed runs (`RUNS`) of the candidate's kind (`KINDS`) that read about as many texts
while training (`like`): their least, median and largest s give the two ends and the middle. A short training may end
below where it began, so s may be negative. The residuals of that relation, each student predicted from the others, are
in `residuals()`. The runs are few and of one teacher; the interval is their whole range, and no probability is claimed
for it.

A short training of the candidate itself (`probe`) counts more: what it has reached is a floor for all three.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

#: Texts that a training reads, repetitions counted: below it a training is a short one. Most of the committed ones
#: read 27 thousand, or half a million and more.
LONG = 200_000
#: Fewer texts than this share of the shortest committed training: no run says what such a training does.
COVERED = 0.5
#: Students that a range needs; with fewer, the ends are those of all lengths, or of related kinds.
FEWEST = 3

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
        """Of the gap to the teacher that training closed."""
        return (self.kept - self.start) / (1 - self.start)


def _runs(student: str, kind: Kind, start: float, read: int, kept: Mapping[str, float]) -> list[KnownRun]:
    return [KnownRun(student, kind, method, read, start, value) for method, value in kept.items()]


_TALAS, _HEADLINE, _STATIC, _CHOOSING = 27_000, 1_670_000, 556_000, 26_000

#: From experiments/results: talas (average over nine sets, main methods with their defaults), headline,
#: compression (static students on the headline's pool), choosing (eight sets) and quarter (nine sets; token states
#: beside cosine). A test compares them with the files.
RUNS: tuple[KnownRun, ...] = (
    *_runs(
        "bpe",
        "other",
        0.7045,
        _TALAS,
        {
            "cosine": 0.8027,
            "distilcse": 0.8462,
            "distillcse": 0.7672,
            "jasper_stella": 0.7373,
            "leaf": 0.7882,
            "mse": 0.8075,
            "talas": 0.8234,
        },
    ),
    *_runs(
        "cut",
        "fewer pieces",
        0.8892,
        _TALAS,
        {"cosine": 0.9261, "distilcse": 0.9315, "distillcse": 0.9178, "leaf": 0.9217, "talas": 0.9285},
    ),
    *_runs("cut3", "fewer pieces", 0.9238, _TALAS, {"talas": 0.9286}),
    *_runs("cut", "fewer pieces", 0.8892, _HEADLINE, {"cosine": 0.9509, "distilcse": 0.949}),
    *_runs("static, 256 numbers, all pieces", "static", 0.8904, _STATIC, {"cosine": 0.9519}),
    *_runs("static, 256 numbers, 21,500 pieces", "static", 0.8882, _STATIC, {"cosine": 0.9512}),
    *_runs("static, 384 numbers, 5,000 pieces", "static", 0.8451, _STATIC, {"cosine": 0.8957}),
    *_runs("static, 256 dimensions, 5,000 pieces", "static", 0.8698, _CHOOSING, {"cosine": 0.9106}),
    *_runs("static, all dimensions, 5,000 pieces", "static", 0.8737, _CHOOSING, {"cosine": 0.9106}),
    *_runs("fresh, 2 layers of 192", "other", 0.7945, _CHOOSING, {"cosine": 0.8098}),
    *_runs("1 layer, 5,000 pieces", "one block", 0.8453, _CHOOSING, {"cosine": 0.8405}),
    *_runs("cut", "fewer pieces", 0.8810, _CHOOSING, {"cosine": 0.9237}),
    *_runs("cut3", "fewer pieces", 0.9173, _CHOOSING, {"cosine": 0.9261}),
    *_runs("static, 256 dimensions, all pieces", "static", 0.8967, _CHOOSING, {"cosine": 0.9251}),
    *_runs("4 layers, 5,000 pieces", "fewer pieces", 0.9344, _CHOOSING, {"cosine": 0.9395}),
    *_runs("static, all dimensions, all pieces", "static", 0.8998, _CHOOSING, {"cosine": 0.9245}),
    *_runs("1 layer, all pieces", "one block", 0.8807, _CHOOSING, {"cosine": 0.8674}),
    *_runs("2 layers, all pieces", "all pieces", 0.9186, _CHOOSING, {"cosine": 0.9701}),
    *_runs("3 layers, all pieces", "all pieces", 0.9522, _CHOOSING, {"cosine": 0.9808}),
    *_runs("4 layers, all pieces", "all pieces", 0.9703, _CHOOSING, {"cosine": 0.9940}),
    *_runs("quarter", "narrower", 0.9327, 40_600, {"cosine": 0.9799}),
    *_runs("quarter", "narrower", 0.9327, 162_000, {"cosine": 0.9870}),
    *_runs("quarter", "narrower", 0.9325, 381_000, {"cosine": 0.9923}),
    *_runs("quarter", "narrower", 0.9327, 778_000, {"cosine": 0.9946}),
    *_runs("quarter", "narrower", 0.9294, 2_350_000, {"cosine": 0.9976}),
    *_runs("quarter, 26,000 pieces", "narrower", 0.9321, 2_320_000, {"cosine": 0.9981}),
    *_runs("eighth", "narrower", 0.8949, 1_620_000, {"cosine": 0.9770}),
    *_runs("twentieth", "narrower", 0.8685, 793_000, {"cosine": 0.9407}),
    *_runs("twentieth", "narrower", 0.8578, 1_620_000, {"cosine": 0.9267}),
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


def covered(read: int, runs: Sequence[KnownRun] = RUNS) -> bool:
    """Whether there are runs that read about as few texts."""
    return read >= COVERED * min(run.read for run in runs)


def shares(read: int, kind: Kind, runs: Sequence[KnownRun] = RUNS) -> tuple[float, float, float]:
    """Least, median and largest share of the gap that such a training closed.

    Where too few students of the kind were trained for as long, the ends are those of its runs of every length, or of
    all kinds that are not `APART`; the middle stays that of the nearest runs that there are.
    """
    near, same = like(read, kind, runs), [run for run in runs if run.kind == kind]
    related = [run for run in runs if run.kind == kind or not {run.kind, kind} & APART]
    wide = next((each for each in (near, same) if len({run.student for run in each}) >= FEWEST), related)
    ends = [run.share for run in wide]
    return min(ends), float(np.median([run.share for run in near or same or related])), max(ends)


def predict(
    start: float, read: int, kind: Kind, probe: float | None = None, *, runs: Sequence[KnownRun] = RUNS
) -> Prediction:
    """What training will make of a candidate.

    Args:
        start: the larger of what the untrained candidate and the free baseline keep, as a fraction.
        read: texts that the training will read, repetitions counted.
        kind: of student, see `kind_of`.
        probe: what a short training has reached.
        runs: the relation is taken from these.

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
    """What the least of them promise, end by end: a candidate has to keep retrieval as well as the average."""
    return Prediction(*(min(getattr(each, end) for each in predictions) for end in ("low", "middle", "high")))


def residuals(runs: Sequence[KnownRun] = RUNS) -> dict[str, float]:
    """Student -> largest miss (kept - predicted, in points) over its runs, predicted from the other students' runs."""
    own: dict[str, list[KnownRun]] = defaultdict(list)
    for run in runs:
        own[run.student].append(run)
    largest = {}
    for student, mine in own.items():
        others = [run for run in runs if run.student != student]
        misses = [100 * (run.kept - predict(run.start, run.read, run.kind, runs=others).middle) for run in mine]
        largest[student] = max(misses, key=abs)
    return largest
