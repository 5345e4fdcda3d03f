"""Extrapolation of a student's agreement from the error that was left after short trainings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from distilvec.choosing.prediction import Prediction

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
    """Return what a training of so many steps reaches.

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
