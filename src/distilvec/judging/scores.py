"""The score of a model on a task, with the per-item results that pair two models, and the difference of two."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from distilvec.errors import DataError
from distilvec.words import comparison

#: Items of a task below which two models are not compared: of five nobody knows the scatter, and one has no interval.
FEWEST_PAIRED = 6
#: A teacher's score that is next to nothing.
_LEAST = 0.01
#: Share of the teacher's neighbours beyond which an untrained student is the teacher itself; a store rounds.
THE_SAME = 0.99
#: Kinds of tasks whose scores make the group "retrieval", and are in no other.
SEARCHES = ("retrieval", "neighbours")


def can_be_kept(teacher: float, low: float | None = None) -> bool:
    """Tell whether a teacher's score, with its interval's low end if given, is large enough for percentages of it."""
    return teacher > _LEAST and (low is None or low > _LEAST)


@dataclass(frozen=True)
class Outputs:
    """Per-item results, enough to compute the metric again on any sample of the items.

    Attributes:
        metric: name in `metrics.METRICS`.
        truth: [n] class codes (int32), 0/1 or scores (float32).
        predicted: [n] codes, cosines or per-item values; [S, n] where the task has S repetitions.
    """

    metric: str
    truth: npt.NDArray[Any]
    predicted: npt.NDArray[Any]

    def __len__(self) -> int:
        return len(self.truth)

    def take(self, rows: npt.NDArray[Any]) -> Outputs:
        """The same for some of the items (rows: bool [n] or positions)."""
        return Outputs(self.metric, self.truth[rows], self.predicted[..., rows])

    def to_dict(self) -> dict[str, Any]:
        """JSON values; arrays as compressed base64."""
        return {"metric": self.metric, "truth": _pack(self.truth), "predicted": _pack(self.predicted)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Outputs:
        return cls(data["metric"], _unpack(data["truth"]), _unpack(data["predicted"]))


class _Kinded(Protocol):
    kind: str
    domain: str | None


ScoreT = TypeVar("ScoreT", bound=_Kinded)


def grouped(scores: Iterable[ScoreT]) -> dict[str, list[ScoreT]]:
    """Sort scores into groups, without empty groups. Searches are in no other group than retrieval.

    That group has the searches whose right answers somebody judged; where there are none, those whose right answers are
    what the teacher finds. The teacher has 100 there, which would flatter it, and not the student, in a mean of both.
    """
    every = list(scores)
    rest = [score for score in every if score.kind not in SEARCHES]
    judged, found = ([score for score in every if score.kind == kind] for kind in SEARCHES)
    groups = {
        "in": [score for score in rest if score.domain == "in"],
        "out": [score for score in rest if score.domain == "out"],
        "all": rest,
        "retrieval": judged or found,
    }
    return {name: members for name, members in groups.items() if members}


@dataclass
class Score:
    """One model's result on one task.

    Attributes:
        value: the metric, as a fraction (0.84, not 84).
        interval: 95 % bootstrap interval over the test items; None where the task cannot give one.
        details: further metrics and facts, JSON values.
        outputs: per-item results for `paired_bootstrap`; None where the task keeps none.
        items: name of the test items, where several tasks are asked about the same; else empty.
    """

    task: str
    kind: str
    metric: str
    value: float
    interval: tuple[float, float] | None
    n: int
    details: dict[str, Any] = field(default_factory=dict)
    domain: str | None = None
    outputs: Outputs | None = field(default=None, repr=False, compare=False)
    items: str = ""

    @property
    def pairable(self) -> bool:
        """Tell whether its items say how sure a difference to another model's score is."""
        return self.outputs is not None and len(self.outputs) >= FEWEST_PAIRED

    def to_dict(self, outputs: bool = False) -> dict[str, Any]:
        """JSON values; with the per-item results where asked (about 5 bytes an item)."""
        data = asdict(self) | {"outputs": None}
        data["interval"] = list(self.interval) if self.interval else None
        if outputs and self.outputs is not None:
            data["outputs"] = self.outputs.to_dict()
        else:
            del data["outputs"]
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Score:
        """The inverse of `to_dict`.

        Raises:
            DataError: a field is missing or not known.
        """
        values = dict(data)
        try:
            if values.get("interval"):
                low, high = values["interval"]
                values["interval"] = (float(low), float(high))
            if values.get("outputs"):
                values["outputs"] = Outputs.from_dict(values["outputs"])
            return cls(**values)
        except (TypeError, KeyError, ValueError, OverflowError, zlib.error) as error:
            raise DataError(f"this is not a score ({error})") from error


def is_the_teachers(scores: Sequence[Score]) -> bool:
    """Tell whether a search is the one that said which answers are right, so that any other can only lose."""
    return bool(scores) and all(score.kind == "neighbours" and score.value > THE_SAME for score in scores)


@dataclass(frozen=True)
class Difference:
    """The difference of the scores of a and b (positive = a is better), with its paired interval."""

    value: float
    interval: tuple[float, float]
    tasks: tuple[str, ...]
    n: int

    @property
    def supported(self) -> bool:
        """True where the interval leaves out zero; only then may one call a winner."""
        return self.interval[0] > 0 or self.interval[1] < 0


def alarm(named: str, student: str, reference: str, gap: float, interval: tuple[float, float] | None) -> list[str]:
    """A sentence, the report's own, if the student is not better than what it has to beat; [] if it is.

    Args:
        named: what on, as in "On the average".
        gap: how much better the student is, a fraction.
        interval: of the gap, where there is one.
    """
    low, _ = interval or (gap, gap)
    # A score that is not a number is an alarm, too.
    return [] if low > 0 else [comparison(named, student, reference, gap, interval)]


def _pack(array: npt.NDArray[Any]) -> dict[str, Any]:
    data = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 6)).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def _unpack(packed: dict[str, Any]) -> npt.NDArray[Any]:
    raw = zlib.decompress(base64.b64decode(packed["data"]))
    return np.frombuffer(raw, dtype=np.dtype(packed["dtype"])).reshape(packed["shape"])
