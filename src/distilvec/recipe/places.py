"""The places of the files that a recipe names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distilvec.corpus.readers import table_and_column
from distilvec.errors import DistilvecError
from distilvec.files import home
from distilvec.teachers.databases.address import folder_in
from distilvec.teachers.sections import TeacherSection, models_of
from distilvec.teachers.table import sections

TASK_FILES = ("train", "validation", "test", "queries", "corpus", "qrels", "teacher")


def is_url(path: str) -> bool:
    """Tell whether a path names a file system, as s3://bucket/folder does."""
    return "://" in path


@contextmanager
def or_a_teacher(name: str, teachers: Iterable[TeacherSection]) -> Iterator[None]:
    """While the block opens what a student is made of: an error about a name that is nobody's says which teachers the
    recipe has, because one of them may have been meant.
    """
    names = sorted(models_of(teachers))
    try:
        yield
    except DistilvecError as error:
        if not names or name in names or Path(name).expanduser().exists():
            raise
        known = f"Teachers of this recipe: {', '.join(names)}."
        remedy = known if error.remedy is None else f"{error.remedy} {known}"
        raise type(error)(error.what, where=error.where, remedy=remedy) from error


def sources_of(corpus: Any) -> list[Any]:
    """A corpus' section, which may name a path, and its parts, which may be all that it is."""
    parts = corpus.get("parts") if isinstance(corpus, dict) else corpus
    return [corpus, *(parts if isinstance(parts, list) else [])]


def _absolute(value: Any, folder: Path) -> Any:
    """A path, or the paths of a list, made absolute where they exist."""
    if isinstance(value, list):
        from distilvec.corpus.tables import are_files

        named = [_absolute(each, folder) for each in value]
        return named if are_files(named) else value  # texts, of which one may be called as a file is, stay
    if not isinstance(value, str) or not value:
        return value
    if database := folder_in(value):
        return f"{database[0]}{_absolute(database[1], folder)}{database[2]}"
    value = home(value)
    if Path(value).is_absolute():
        return value
    # os.path.exists, because Path.exists raises over names that are too long; who opens it says what is wrong
    name, column = table_and_column(value) or (value, "")
    column = f":{column}" if column else ""
    return next((f"{p.absolute()}{column}" for p in (folder / name, Path(name)) if os.path.exists(p)), value)


def _is_column(teacher: Any, key: str) -> bool:
    """Tell whether a key names a column: `texts` does, unless it is written as a file, whatever is called so."""
    named = teacher.get(key) if isinstance(teacher, dict) and key == "texts" else None
    return isinstance(named, str) and not Path(named).suffix and os.sep not in named


def find_files(data: dict[str, Any], folder: Path) -> None:
    """Make the paths of a recipe absolute where they exist, so that a saved recipe runs from anywhere."""

    def found(value: Any) -> Any:
        return _absolute(value, folder)

    def replace(section: Any, keys: Sequence[str]) -> None:
        if isinstance(section, dict):
            section.update({key: found(section[key]) for key in keys if key in section})

    def listed(section: Any) -> list[Any]:
        return section if isinstance(section, list) else []

    for source in sources_of(data.get("corpus")):
        replace(source, ("path",))
    for teacher in listed(data.get("teachers")):
        of_teachers = [key for kind in sections().values() for key in kind.paths]
        replace(teacher, [key for key in of_teachers if not _is_column(teacher, key)])
        if isinstance(teacher, dict) and isinstance(teacher.get("adapters"), list):
            teacher["adapters"] = [found(each) for each in teacher["adapters"]]
    for scorer in listed(data.get("scorers")):
        replace(scorer, ("model", "scores"))
    mining = data.get("mining")
    if isinstance(mining, dict):
        replace(mining, ("documents",))
        for source in sources_of(mining.get("documents")):
            replace(source, ("path",))
    student, judging = data.get("student"), data.get("judging")
    replace(student, ("model",))
    replace(data.get("task"), ("validation", "test"))
    if isinstance(student, dict):
        named = [each.get("name", "teacher") for each in listed(data.get("teachers")) if isinstance(each, dict)]
        for part, key in (
            ("shrink", "of"),
            ("auto", "of"),
            ("static", "of"),
            ("fresh", "embeddings_from"),
            ("fresh", "tokenizer"),
        ):
            section = student.get(part)
            if isinstance(section, dict) and section.get(key) not in named:
                replace(section, (key,))
    if isinstance(judging, dict) and isinstance(judging.get("tasks"), list):
        for task in judging["tasks"]:
            replace(task, TASK_FILES)
        suffixes = (".yaml", ".yml", ".json")
        judging["tasks"] = [
            found(task) if isinstance(task, str) and task.endswith(suffixes) else task for task in judging["tasks"]
        ]
