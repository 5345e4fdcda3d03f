"""What a training will reach, from how a student's error fell in short ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from distilvec.choosing.prediction import Prediction

#: Steps of training -> agreement with the teacher in [0, 1]; step 0 is the start.
Curve = Mapping[int, float]
#: How fast errors fall where no probe tells: by this power of the steps, at least, as a rule, and at most.
USUAL = (0.1, 0.2, 0.3)
_LEAST = 1e-6


def power(curve: Curve) -> float | None:
    """b of error = a steps^-b, from the two longest trainings; None where there are not two."""
    trained = sorted(steps for steps in curve if steps > 0)
    if len(trained) < 2:
        return None
    first, last = trained[-2:]
    errors = [max(1 - curve[steps], _LEAST) for steps in (first, last)]
    return math.log(errors[0] / errors[1]) / math.log(last / first)


def extrapolate(curve: Curve, steps: int, powers: Sequence[float]) -> Prediction:
    """What a training of so many steps reaches.

    The error goes on falling by a power of the steps, the student's own where it is known. Powers get smaller the
    longer one trains, so the ends are those of half the power and of the largest power that a probe had.

    Args:
        curve: of this student, with a training in it.
        steps: of the training that is to come.
        powers: of all students that were probed twice.
    """
    trained = max(curve)
    reached, longer = curve[trained], max(steps / trained, 1.0)
    known = sorted(max(0.0, each) for each in powers) or list(USUAL)
    own = power(curve)
    middle = max(0.0, own) if own is not None else known[len(known) // 2]
    ends = sorted((0.5 * min(middle, known[0]), middle, max(middle, known[-1])))
    low, half, high = (1 - max(1 - reached, _LEAST) * longer**-each for each in ends)
    return Prediction(low, half, high)
