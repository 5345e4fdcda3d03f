"""The record of a run: everything the report says, as typed data that goes to JSON and back.

Every part but the title may be missing; what is missing does not appear in the report.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from distilvec.errors import DataError, DistilvecError
from distilvec.files import home
from distilvec.judging import Slice
from distilvec.judging.scores import SEARCHES, can_be_kept
from distilvec.report.compressed import Compression
from distilvec.report.mixtures import MixtureFacts
from distilvec.report.record_parts import (
    AlignedText,
    CorpusFacts,
    CostFacts,
    ExpertMap,
    HardText,
    LayerSimilarity,
    Machine,
    ModelRow,
    Part,
    Role,
    ScoreDifference,
    ScoreEntry,
    ScorerFacts,
    SpaceMap,
    StudentFacts,
    TeacherFacts,
    TokenMaps,
    scores_of,
)
from distilvec.report.writing import WritingFacts, WrittenAnswer
from distilvec.validation import refusal

__all__ = [
    "CorpusFacts",
    "CostFacts",
    "HardText",
    "LayerSimilarity",
    "Machine",
    "ModelRow",
    "Record",
    "Role",
    "ScoreDifference",
    "ScoreEntry",
    "ScorerFacts",
    "SpaceMap",
    "StudentFacts",
    "TeacherFacts",
]
SCHEMA_VERSION = 1


class Record(Part):
    """All that is known about a run.

    `agreement` is what `judging.agreement` returns; `collapse` is model -> what `judging.collapse` returns
    (given without a model's name it is the student's); `held_out` is term -> its mean over
    held-out items after training; `supervised` is model -> metric -> value on the task's test
    file; `log` are rows {step, name: value, ...}.
    """

    schema_version: int = SCHEMA_VERSION
    title: str
    created: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    versions: dict[str, str] = Field(default_factory=dict)
    git: str | None = None
    seed: int | None = None
    machine: Machine | None = None
    recipe: dict[str, Any] = Field(default_factory=dict)
    corpus: CorpusFacts | None = None
    teachers: list[TeacherFacts] = Field(default_factory=list)
    scorers: list[ScorerFacts] = Field(default_factory=list)
    student: StudentFacts | None = None
    models: list[ModelRow] = Field(default_factory=list)
    comparisons: list[ScoreDifference] = Field(default_factory=list)
    agreement: dict[str, Any] = Field(default_factory=dict)
    supervised: dict[str, dict[str, float]] = Field(default_factory=dict)
    held_out: dict[str, float] = Field(default_factory=dict)
    collapse: dict[str, dict[str, Any]] = Field(default_factory=dict)
    cost: CostFacts | None = None
    alarms: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    log: list[dict[str, Any]] = Field(default_factory=list)
    spaces: SpaceMap | None = None
    slices: list[Slice] = Field(default_factory=list)
    hardest: list[HardText] = Field(default_factory=list)
    layers: LayerSimilarity | None = None
    alignment: AlignedText | None = None
    token_maps: TokenMaps | None = None
    experts: ExpertMap | None = None
    mixtures: list[MixtureFacts] = Field(default_factory=list)
    compression: Compression | None = None
    writing: list[WritingFacts] = Field(default_factory=list)
    written: list[WrittenAnswer] = Field(default_factory=list)

    @field_validator("collapse", mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        bare = isinstance(given, dict) and given and not all(isinstance(value, dict) for value in given.values())
        return {"student": given} if bare else given

    @property
    def items(self) -> str:
        """What the corpus holds: texts, images or molecules."""
        return f"{self.corpus.modality}s" if self.corpus is not None else "texts"

    def model(self, role: Role) -> ModelRow | None:
        """The first model of this role."""
        return next((row for row in self.models if row.role == role), None)

    def tasks(self) -> list[str]:
        """All tasks: in-domain, out-of-domain, others, retrieval last; otherwise in the order they came."""
        first: dict[str, ScoreEntry] = {}
        for row in self.models:
            for task, score in row.scores.items():
                first.setdefault(task, score)
        rank = {"in": 0, "out": 1}
        return sorted(first, key=lambda t: 3 if first[t].kind in SEARCHES else rank.get(first[t].domain or "", 2))

    def retention(self, row: ModelRow, name: str) -> float | None:
        """A task's or group's score in percent of the teacher's; None where that is next to nothing, or may be."""
        teacher = self.model("teacher")
        if teacher is None:
            return None
        own, other = (scores_of(each).get(name) for each in (row, teacher))
        if own is None or other is None or not math.isfinite(own.value):
            return None
        return 100 * own.value / other.value if can_be_kept(other.value, other.low) else None

    def compared(self, a: str, b: str, group: str = "all") -> ScoreDifference | None:
        """The comparison of two models on a task or group, turned round where it was recorded as b against a."""
        for comparison in self.comparisons:
            if comparison.group == group and (comparison.a, comparison.b) == (a, b):
                return comparison
            if comparison.group == group and (comparison.a, comparison.b) == (b, a):
                return ScoreDifference(
                    a=a, b=b, group=group, value=-comparison.value, low=-comparison.high, high=-comparison.low
                )
        return None

    def to_json(self) -> str:
        """Strict JSON; NaN and infinity as strings."""
        return self.model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, where: str | None = None) -> Record:
        """The inverse of `to_json`.

        Raises:
            DataError: not JSON, another schema version, or not a record; with the key concerned.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise DataError(f"this is not JSON ({error})", where=where) from error
        version = data.get("schema_version") if isinstance(data, dict) else None
        if version != SCHEMA_VERSION:
            raise DataError(
                f"a record of schema version {SCHEMA_VERSION} is expected, not {version}",
                where=where,
                remedy="Open it with the version of distilvec that wrote it.",
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            problem = refusal(error, cls, where)
            raise DataError(problem.what, where=problem.where) from error

    @classmethod
    def load(cls, path: str | Path) -> Record:
        """Read `report.json`, or the one in a run's folder.

        Raises:
            DistilvecError: there is no such file.
            DataError: it is not a record.
        """
        place = Path(home(str(path)))
        file = place / "report.json" if place.is_dir() else place
        try:
            return cls.from_json(file.read_bytes(), where=str(file))
        except OSError as error:
            raise DistilvecError(f"the record cannot be read ({error.strerror})", where=str(file)) from error
