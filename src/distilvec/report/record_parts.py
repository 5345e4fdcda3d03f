"""The parts of a record: scores, models, what went in, what it cost, and the data behind the figures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from distilvec.errors import printable
from distilvec.judging.scores import SEARCHES, searches

MAP_POINTS = 400
MAP_TEXT = 200
#: Averages in the order they are shown. Retrieval is never mixed into the others.
GROUPS = ("in", "out", "all", "retrieval")
#: Beside the averages, of no task: the share of the teacher's nearest neighbours among held-out items that are found.
NEIGHBOURS = "neighbours"
Role = Literal["teacher", "untrained", "free", "student", "other"]


class Part(BaseModel):
    """Base of the record's parts: unknown keys are refused, numpy values become Python values."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings", validate_assignment=True)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, given: Any) -> Any:
        return plain(given)


class ScoreEntry(Part):
    """A score as a fraction (0.84, not 84), with its 95 % interval where there is one.

    `dataset` is the hub id of the data set that it was measured on, where it has one; `items` names the test items
    where several tasks are asked about the same.
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


class ModelRow(Part):
    """One model of the main table.

    Attributes:
        role: what the model is in this run; "other" for anybody's model.
        scores: task -> score.
        averages: group of tasks (`GROUPS`) -> mean; made from the scores where not given. `NEIGHBOURS` too.
        size_bytes: of the folder on disk.
        texts_per_second, latency_p50_ms, latency_p95_ms: on the record's machine; latency is of one text.
    """

    name: str
    role: Role = "other"
    scores: dict[str, ScoreEntry] = Field(default_factory=dict)
    averages: dict[str, ScoreEntry] = Field(default_factory=dict)
    parameters: int | None = None
    width: int | None = None
    size_bytes: int | None = None
    texts_per_second: float | None = None
    latency_p50_ms: float | None = None
    latency_p95_ms: float | None = None
    note: str = ""

    @model_validator(mode="after")
    def _fill_averages(self) -> ModelRow:
        made = {name: average(scores) for name, scores in grouped(self.scores).items()}
        self.__dict__["averages"] = {**made, **self.averages}
        return self


class ScoreDifference(Part):
    """`value` = how much better a is than b on a task or group (fractions), with its paired 95 % interval."""

    a: str
    b: str
    group: str = "all"
    value: float
    low: float
    high: float

    @property
    def verdict(self) -> Literal["better", "worse", "open"]:
        """Better or worse only where the interval leaves out zero."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "open"


class Machine(Part):
    """What the times were measured on. Never a path, a user or a host name."""

    device: str = "cpu"
    name: str = ""
    cores: int | None = None
    threads: int | None = None
    system: str = ""


class CorpusFacts(Part):
    """What went into the training. Shares are fractions of the kept texts, overlaps numbers of texts.

    Of the kept ones `made` were made of others.
    """

    source: str = ""
    modality: Literal["text", "image", "molecule"] = "text"
    read: int | None = None
    kept: int | None = None
    made: int | None = None
    trained_on: int | None = None
    held_out: int | None = None
    rejected: dict[str, int] = Field(default_factory=dict)
    duplicates: int | None = None
    truncated_teacher: float | None = None
    truncated_student: float | None = None
    overlap: dict[str, int] = Field(default_factory=dict)
    fingerprint: str = ""

    @field_validator("source")
    @classmethod
    def _no_path(cls, source: str) -> str:
        return short_source(source)


class TeacherFacts(Part):
    """A teacher's card, the prompt really used, examples of what it reads, and warnings."""

    model_config = ConfigDict(extra="ignore", ser_json_inf_nan="strings")

    name: str
    kind: str = "model"
    source: str = ""
    licence: str | None = None
    prompt: str | None = None
    width: int | None = None
    layers: int | None = None
    pooling: str | None = None
    max_length: int | None = None
    normalized: bool | None = None
    dtype: str | None = None
    parameters: int | None = None
    size_bytes: int | None = None
    fingerprint: str | None = None
    storage: str | None = None
    token_states: str | None = None
    examples: list[str] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)

    @field_validator("source")
    @classmethod
    def _no_path(cls, source: str) -> str:
        return short_source(source)


class ScorerFacts(Part):
    """A scorer's card, and how many pairs it judged."""

    model_config = ConfigDict(extra="ignore", ser_json_inf_nan="strings")

    name: str
    source: str = ""
    licence: str | None = None
    parameters: int | None = None
    max_length: int | None = None
    fingerprint: str | None = None
    pairs: int | None = None
    absent: int | None = None

    @field_validator("source")
    @classmethod
    def _no_path(cls, source: str) -> str:
        return short_source(source)


class StudentFacts(Part):
    """What was built: sizes, and where its weights and vocabulary come from.

    `writes`: whether it is a causal language model. `derived`: whether it was made from a model that is none of the
    teachers; `base` is that model's hub id, `licence` its licence as far as known.
    """

    provenance: str = ""
    parameters: int | None = None
    size_bytes: int | None = None
    layers: int | None = None
    width: int | None = None
    vocabulary: int | None = None
    max_length: int | None = None
    space: Literal["own", "teacher"] = "own"
    remote_code: bool = False
    writes: bool = False
    base: str | None = None
    licence: str | None = None
    derived: bool = False


class CostFacts(Part):
    """What the run cost. `teacher_texts_per_second` is the rate of teaching, without training."""

    teaching_seconds: float | None = None
    texts_taught: int | None = None
    teacher_texts_per_second: float | None = None
    training_seconds: float | None = None
    steps: int | None = None
    judging_seconds: float | None = None
    peak_memory_bytes: int | None = None
    store_bytes: int | None = None


class SpaceMap(Part):
    """The same texts in both spaces, in the plane. At most `MAP_POINTS` are kept, evenly spaced."""

    teacher: list[tuple[float, float]]
    student: list[tuple[float, float]]
    texts: list[str]
    groups: list[str] | None = None
    projection: str = ""

    @model_validator(mode="after")
    def _same_length(self) -> SpaceMap:
        columns: list[list[Any]] = [self.teacher, self.student, self.texts, *([self.groups] if self.groups else [])]
        if len({len(column) for column in columns}) != 1:
            raise ValueError(f"columns of different length: {[len(column) for column in columns]}")
        count = len(self.texts)
        many = min(count, MAP_POINTS)
        rows = [round(i * (count - 1) / max(many - 1, 1)) for i in range(many)]
        for name in ("teacher", "student", "texts", "groups"):
            column = getattr(self, name)
            self.__dict__[name] = [column[row] for row in rows] if column else column
        self.__dict__["texts"] = [clip(text, MAP_TEXT) for text in self.texts]
        return self


class AlignedText(Part):
    """One text as both tokenizers cut it; the fields are those of `distilvec.alignment.drawing.DrawnText`.

    Of several teachers, `name` says which one it is.
    """

    name: str = "the teacher"
    mode: str
    student: list[str]
    teacher: list[str]
    path: list[tuple[int, int]]
    pairs: list[tuple[int, int]]
    equal: list[tuple[int, int]]


class TokenMaps(Part):
    """maps[i][j][k]: how much token j of one text has to do with token k, for several models.

    `measure` says what the numbers are, `tokens[i]` how model i cuts the text.
    """

    measure: str
    names: list[str]
    tokens: list[list[str]]
    maps: list[list[list[float]]]


class ExpertMap(Part):
    """points[k][n]: what expert k makes of text n, on the two main axes of all experts' unit vectors."""

    names: list[str]
    points: list[list[tuple[float, float]]]


class HardText(Part):
    """A held-out item whose neighbours student and teacher see differently.

    Attributes:
        overlap: share of the nearest neighbours that both have.
        teacher, student: the item that each of them finds nearest.
    """

    text: str
    overlap: float
    teacher: str
    student: str


class LayerSimilarity(Part):
    """values[i][j]: how alike layer i of the student and column j are, in [0, 1].

    A column is a layer of the teacher, or another thing that `columns` names.
    """

    values: list[list[float]]
    student_layers: list[str]
    teacher_layers: list[str]
    measure: str = "linear CKA"
    columns: str = "teacher's layer"

    @model_validator(mode="after")
    def _fits(self) -> LayerSimilarity:
        shape = {len(row) for row in self.values}
        if len(self.values) != len(self.student_layers) or shape != {len(self.teacher_layers)}:
            size = f"{len(self.values)} rows of {sorted(shape)} values"
            named = f"{len(self.student_layers)} layers of the student and {len(self.teacher_layers)} of the teacher"
            raise ValueError(f"the matrix has {size}, and there are {named}")
        return self


def grouped(scores: dict[str, ScoreEntry]) -> dict[str, list[ScoreEntry]]:
    """Group -> its scores; groups without any are left out. Searches are in no other group than retrieval."""
    rest = [score for score in scores.values() if score.kind not in SEARCHES]
    groups = {
        "in": [score for score in rest if score.domain == "in"],
        "out": [score for score in rest if score.domain == "out"],
        "all": rest,
        "retrieval": searches(scores.values()),
    }
    return {name: members for name, members in groups.items() if members}


def average(scores: Iterable[ScoreEntry]) -> ScoreEntry:
    """The plain mean. Its interval: half-widths add in squares, as for tasks whose test items are drawn independently;
    those of tasks about the same items add up.

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


def scores_of(row: ModelRow) -> dict[str, ScoreEntry]:
    """Scores by task, and averages by group; where a task is named like a group, the group's average stands."""
    return {**row.scores, **row.averages}


def plain(value: Any) -> Any:
    """Numpy scalars and arrays as Python values, inside mappings and lists too; paths as strings.

    What names and texts of others would do to a terminal or a page is neutralised here, for every form of a report.
    """
    if isinstance(value, str | Path):
        return printable(str(value))
    if isinstance(value, dict):
        return {plain(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, BaseModel) else value


def clip(text: str, length: int) -> str:
    """At most `length` characters, with an ellipsis where something was cut."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def short_source(source: str) -> str:
    """A hub id as it is; of a file or folder elsewhere the last two parts only, so that no report shows where
    somebody keeps things.

    >>> short_source("/home/ann/models/bge/v2"), short_source("BAAI/bge-m3"), short_source("texts.txt")
    ('bge/v2', 'BAAI/bge-m3', 'texts.txt')
    """
    if not re.match(r"(/|~|\.{1,2}[/\\]|[A-Za-z]:[/\\]|\\\\)", source):
        return source
    return "/".join([part for part in re.split(r"[/\\]+", source) if part and part not in ("~", ".", "..")][-2:])
