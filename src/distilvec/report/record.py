"""The record of a run: the data of every section under its name, written to `report.json` and read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, SerializeAsAny, ValidationError, create_model, field_validator

from distilvec.errors import DataError, DistilvecError
from distilvec.files import home, read_small
from distilvec.report.blocks import Chapter
from distilvec.report.data import RecordPart
from distilvec.report.outcome import Outcome
from distilvec.report.sections import CHAPTERS, SECTIONS, applies, section
from distilvec.report.sections.base import Data

SCHEMA_VERSION = 2
_LARGEST = 1 << 28
D = TypeVar("D", bound=Data)


@cache
def _of(names: tuple[str, ...]) -> type[RecordPart]:
    """A model with an optional field for each of these sections, to read a record with."""
    fields: dict[str, Any] = {name: (section(name) | None, None) for name in SECTIONS if name in names}
    return create_model("Sections", __base__=RecordPart, **fields)


class Record(RecordPart):
    """All that is known about a run: `record["cost"].steps` is a number of the section "cost".

    Attributes:
        sections: name of the section (see `report.sections.SECTIONS`) -> its data; sections without data are left out.
        alarms: sentences that a reader must not miss.
    """

    schema_version: int = SCHEMA_VERSION
    title: str
    created: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    alarms: list[str] = Field(default_factory=list)
    sections: dict[str, SerializeAsAny[Data]] = Field(default_factory=dict)

    @field_validator("sections", mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {
            name: data
            for name, data in _of(tuple(given) if isinstance(given, Mapping) else ()).model_validate(given)
            if data is not None
        }

    def __getitem__(self, name: str) -> Any:
        """The data of a section; None if the run has none."""
        if name not in SECTIONS:
            raise KeyError(name)
        return self.sections.get(name)

    def find(self, kind: type[D]) -> D | None:
        """The data of this class; None if the run has none."""
        return next((data for data in self.sections.values() if isinstance(data, kind)), None)

    @property
    def items(self) -> str:
        return next((data.items for data in self.sections.values()), "texts")

    def chapters(self) -> list[Chapter]:
        """Return what page and Markdown show, in order; chapters with nothing to say are left out."""
        found = []
        for key, title, names in CHAPTERS:
            shown = [self.sections[name].blocks() for name in names if name in self.sections]
            if blocks := [block for each in shown for block in each]:
                found.append(Chapter(key, title, blocks))
        return found

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
            version = data.get("schema_version") if isinstance(data, dict) else None
            if version != SCHEMA_VERSION:
                what = f"a record of schema version {SCHEMA_VERSION} is expected, not {version}"
                raise DataError(what, where=where, remedy="Open it with the version of distilvec that wrote it.")
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise DataError(first["msg"], where=f"{where}, {key}" if where else key) from error
        except ValueError as error:
            raise DataError(f"this is not JSON ({error})", where=where) from error

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
            return cls.from_json(read_small(file, _LARGEST), where=str(file))
        except (OSError, UnicodeDecodeError) as error:
            told = getattr(error, "strerror", None) or error
            raise DistilvecError(f"the record cannot be read ({told})", where=str(file)) from error


def make_record(outcome: Outcome) -> Record:
    """Measure every section of a finished run."""
    sections: dict[str, Data] = {}
    for name in SECTIONS:
        if not applies(name, outcome):
            continue
        data = section(name).measure(outcome)
        if data is not None:
            sections[name] = data.model_copy(update={"items": outcome.items})
    return Record(title=_title(outcome), alarms=outcome.verdict.alarms, sections=sections)


def _title(outcome: Outcome) -> str:
    from distilvec.methods.table import called
    from distilvec.students import describe_student

    first, *others = (called(entry.name) for entry in outcome.recipe.method.root if entry.weight)
    method = first + (f" with {' and '.join(others)}" if others else "")
    names = [*outcome.teacher_names, *(each.scorer.card.name for each in outcome.scored)]
    count = describe_student(outcome.shipped)["parameters"]
    size = f"{count / 1e6:.1f} M" if count >= 100_000 else f"{count / 1e3:.0f} thousand"
    taught_by = " and ".join(names) if len(names) <= 3 else f"{len(names)} teachers"
    student = f"a student of {size} parameters"
    return f"{method}: " + (f"{taught_by} to {student}" if names else f"{student}, no teacher")
