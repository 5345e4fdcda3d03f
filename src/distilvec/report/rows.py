"""Models with their scores and differences, and how tables and sentences name them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from distilvec.judging.scores import grouped
from distilvec.report.data import RecordPart
from distilvec.report.grid import Cell
from distilvec.words import ABSENT, comparison, milliseconds, points

if TYPE_CHECKING:
    from distilvec.judging import Difference, Score

#: Averages in the order they are shown. Retrieval is never mixed into the others.
GROUPS = ("in", "out", "all", "retrieval")
#: An average of no task: the share of the teacher's nearest neighbours among held-out items that a model finds.
NEIGHBOURS = "neighbours"
GROUP_NAMES = {
    "in": "in-domain",
    "out": "out-of-domain",
    "all": "average",
    "retrieval": "retrieval",
    NEIGHBOURS: "neighbours",
}
METRIC_NAMES = {
    "macro_f1": "macro F1",
    "accuracy": "accuracy",
    "auroc": "AUROC",
    "r2": "R²",
    "average_precision": "average precision",
    "spearman": "Spearman",
    "pearson": "Pearson",
    "v_measure": "V-measure",
    "ndcg@10": "nDCG@10",
    "rouge_l": "ROUGE-L",
}
Role = Literal["teacher", "untrained", "free", "student", "other"]


class ScoreEntry(RecordPart):
    """A score as a fraction (0.84, not 84), with its 95 % interval if there is one.

    `dataset` is the hub id of the data set, if it has one; `items` names the test items if several tasks ask about the
    same.
    """

    metric: str = ""
    value: float
    low: float | None = None
    high: float | None = None
    kind: str = ""
    domain: str | None = None
    dataset: str | None = None
    items: str = ""

    @model_validator(mode="after")
    def _both_edges(self) -> ScoreEntry:
        if (self.low is None) != (self.high is None):
            raise ValueError(f"an interval has both edges, not low {self.low} and high {self.high}")
        return self

    @property
    def metric_name(self) -> str:
        return METRIC_NAMES.get(self.metric, self.metric)


class ModelRow(RecordPart):
    """One model of the main table.

    Attributes:
        role: what the model is in this run; "other" for any other model.
        averages: group of tasks (`GROUPS`) -> mean, made from the scores if it is not given; and `NEIGHBOURS`.
        size_bytes: size of the folder on disk.
        texts_per_second, latency_p50_ms, latency_p95_ms: measured on the record's machine; latency is of one text.
    """

    name: str
    role: Role = "other"
    scores: dict[str, ScoreEntry] = Field(default_factory=dict)
    averages: dict[str, ScoreEntry] = Field(default_factory=dict)
    parameters: int | None = None
    size_bytes: int | None = None
    texts_per_second: float | None = None
    latency_p50_ms: float | None = None
    latency_p95_ms: float | None = None

    @model_validator(mode="after")
    def _fill_averages(self) -> ModelRow:
        made = {name: average(scores) for name, scores in grouped(self.scores.values()).items()}
        self.__dict__["averages"] = {**made, **self.averages}
        return self

    @property
    def latency(self) -> str:
        """Median and 95th percentile, "8.1 / 9.9"."""
        if self.latency_p50_ms is None:
            return ABSENT
        tail = ABSENT if self.latency_p95_ms is None else milliseconds(self.latency_p95_ms)
        return f"{milliseconds(self.latency_p50_ms)} / {tail}"


class ScoreDifference(RecordPart):
    """`value` = how much better a is than b on a task or group (fractions), with its paired 95 % interval."""

    a: str
    b: str
    group: str = "all"
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, a: str, b: str, group: str, gap: Difference) -> ScoreDifference:
        """A difference of `judging` as the record keeps it."""
        return cls(a=a, b=b, group=group, value=gap.value, low=gap.interval[0], high=gap.interval[1])

    @property
    def verdict(self) -> Literal["better", "worse", "open"]:
        return "better" if self.low > 0 else "worse" if self.high < 0 else "open"

    def statement(self) -> str:
        """Say the comparison in words; a winner is named only if the interval supports it."""
        average_of = {"in": "the in-domain average", "out": "the out-of-domain average", "all": "the average"}
        where = (average_of | {NEIGHBOURS: "the teacher's nearest neighbours"}).get(self.group, self.group)
        return comparison(where, self.a, self.b, self.value, (self.low, self.high))


def average(scores: Iterable[ScoreEntry]) -> ScoreEntry:
    """The plain mean. Half-widths of its interval add in squares, as for tasks whose test items are drawn
    independently; those of tasks about the same items add up.

    >>> average([ScoreEntry(value=0.5, low=0.4, high=0.6), ScoreEntry(value=0.7, low=0.7, high=0.7)]).low
    0.55
    """
    entries = list(scores)
    if len(entries) == 1:
        return entries[0].model_copy()
    value = sum(score.value for score in entries) / len(entries)
    below = [score.value - score.low for score in entries if score.low is not None]
    above = [score.high - score.value for score in entries if score.high is not None]
    if len(below) < len(entries):
        return ScoreEntry(metric="mean", value=value)
    low, high = (_together(entries, widths) / len(entries) for widths in (below, above))
    return ScoreEntry(metric="mean", value=value, low=value - low, high=value + high)


def _together(entries: Sequence[ScoreEntry], widths: Sequence[float]) -> float:
    """The half-width of a sum."""
    same: dict[Any, float] = {}
    for number, (entry, width) in enumerate(zip(entries, widths, strict=True)):
        name = entry.items or number
        same[name] = same.get(name, 0.0) + width
    return math.hypot(*same.values())


def shown_groups(models: Sequence[ModelRow]) -> list[str]:
    """The averages worth a column: in- and out-of-domain only if there are both."""
    present = {name for row in models for name in row.averages}
    both = {"in", "out"} <= present
    return [name for name in GROUP_NAMES if name in present and (both or name not in ("in", "out"))]


def is_its_own_answer(scores: Mapping[str, ScoreEntry], group: str) -> bool:
    """Tell whether a model has 100 on a group by definition, because its own search says which answers are right."""
    members = grouped(scores.values()).get(group, [])
    return bool(members) and all(each.kind == "neighbours" and each.value > 1 - 1e-9 for each in members)


def span(score: ScoreEntry | None) -> str:
    """The interval of a score, "77.2–79.0"; empty without one."""
    if score is None or score.low is None or score.high is None:
        return ""
    joint = "–" if score.low >= 0 else " to "
    return f"{points(score.low)}{joint}{points(score.high)}"


def score_cell(score: ScoreEntry | None) -> Cell:
    """A score with its interval, in points of a hundred."""
    return Cell(points(score.value if score else None), span(score))


def entries_of(scores: Mapping[str, Score]) -> dict[str, ScoreEntry]:
    """Task -> score, as the record keeps them."""
    return {task: entry_of(score) for task, score in scores.items()}


def entry_of(score: Score) -> ScoreEntry:
    """A score of `judging` as the record keeps it."""
    low, high = score.interval if score.interval else (None, None)
    return ScoreEntry(
        metric=score.metric,
        value=score.value,
        low=low,
        high=high,
        kind=score.kind,
        domain=score.domain,
        dataset=score.details.get("dataset"),
        items=score.items,
    )
