"""The kinds of teachers."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from distilvec.corpus.keys import Components
from distilvec.teachers.base import Teacher
from distilvec.teachers.sections import (
    CallSection,
    ModelSection,
    Reading,
    ServiceSection,
    TeacherSection,
    VectorsSection,
)
from distilvec.validation import chosen


class TeacherKind(NamedTuple):
    """A kind of teacher.

    Attributes:
        section: of the recipe.
        opener: "module:function" from a section and a `Reading` to the teacher, imported when one is opened.
    """

    section: type[TeacherSection]
    opener: str


#: By the key that names the kind in a recipe.
KINDS = {
    "model": TeacherKind(ModelSection, "distilvec.teachers.models:open_teacher"),
    "call": TeacherKind(CallSection, "distilvec.teachers.callable:CallTeacher"),
    "api": TeacherKind(ServiceSection, "distilvec.teachers.batch:open_service"),
    "vectors": TeacherKind(VectorsSection, "distilvec.teachers.vectors:open_vectors"),
}


def sections() -> dict[str, type[TeacherSection]]:
    """The section of each kind."""
    return {key: kind.section for key, kind in KINDS.items()}


def open_teacher(section: TeacherSection, reading: Reading) -> Teacher:
    """The teacher of a section; errors as of `load_teacher`."""
    opener = next(kind.opener for kind in KINDS.values() if kind.section is type(section))
    module, _, name = opener.partition(":")
    opened: Teacher = getattr(import_module(module), name)(section, reading)
    return opened


def load_teacher(
    *,
    modality: str = "text",
    components: Components = "largest",
    separator: str | None = None,
    device: str | None = None,
    **section: Any,
) -> Teacher:
    """Open a teacher from the keys that a recipe's section has: `load_teacher(model="BAAI/bge-m3", prompt="")`.

    Args:
        modality, components, separator, device: what it is opened for, as in `Reading`.

    Raises:
        DistilvecError: not exactly one kind, a key that it does not have, no such model or function, pickled weights,
            code of the model's own without `trust_remote_code`, or a value that the model cannot take.
        DataError: damaged weights, or vectors that do not fit their texts.
        EnvironmentProblem: the hub or a service cannot be reached.
    """
    found = chosen(sections(), section, str(section.get("name", "teacher")))
    return open_teacher(found, Reading(modality, components, separator, device))
