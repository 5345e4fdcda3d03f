"""A recipe from what Python gives.

A run from Python leaves the same recipe.yaml as one from the command line: paths are whole, and values that YAML cannot
hold become files: texts, rows, data sets and arrays are written below `output/given/` and the recipe names those files.
A function is named as module:function, a method's class as module:Class; such a recipe runs again where that can be
imported. What has no such name (an object, a method of one, a lambda, what another function holds) is named with a "<",
and the recipe is refused when it is run again: only from Python can it be given once more.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from distilvec.arrays import as_vectors
from distilvec.corpus.tables import chosen_split, given_rows, is_dataset, is_table
from distilvec.errors import DataError, DistilvecError, nearest
from distilvec.files import alone_in, home, temporary
from distilvec.folders import claim, reserve
from distilvec.kinds.base import Kind, find_kind
from distilvec.recipe.places import TASK_FILES, find_files
from distilvec.recipe.recipe import Recipe
from distilvec.system_errors import disk_problems
from distilvec.teachers.sections import NAME

GIVEN = "given"


def recipe_of(
    teacher: Any,
    student: Any,
    corpus: Any,
    method: str | type | Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    output: str | Path,
    **sections: Any,
) -> Recipe:
    """The recipe that these values mean, None for what it does not name; what YAML cannot hold is written below
    `output/given/`.
    """
    output = home(str(output))
    given = Path(output) / GIVEN
    if teacher is not None:
        _check_names("teachers", teacher)
    teachers = [] if teacher is None else list(teacher) if isinstance(teacher, list | tuple) else [teacher]
    names = ["teacher"] if len(teachers) == 1 else [f"teacher{number}" for number in range(1, len(teachers) + 1)]
    if isinstance(task := sections.get("task"), Mapping):
        files = {key: task[key] for key in ("validation", "test") if task.get(key) is not None}
        sections["task"] = {**task, **{key: _filed(given / f"{key}.jsonl", each) for key, each in files.items()}}
    if isinstance(sections.get("judging"), Mapping):
        sections["judging"] = _judging_section(sections["judging"], given)
    if isinstance(sections.get("scorers"), list | tuple):
        sections["scorers"] = [_scorer_section(each, given) for each in sections["scorers"]]
    read = corpus_section(corpus, given)
    kind = find_kind(str(read.get("modality") or "text"))
    data = {
        "corpus": read,
        "teachers": [_teacher_section(each, name, given, kind) for each, name in zip(teachers, names, strict=True)],
        "student": None if student is None else _student_section(student),
        "method": method if method is None or isinstance(method, Mapping | list | tuple) else {"name": method},
        "output": output,
        **{name: str(value) if isinstance(value, Path) else value for name, value in sections.items()},
    }
    data = {name: value for name, value in data.items() if value is not None}
    find_files(data, Path())
    return Recipe.build(data)


def _check_names(key: str, named: Any) -> None:
    """Names become names of files before the recipe is validated, so that they are looked at first."""
    for each in named if isinstance(named, list | tuple) else [named]:
        if not isinstance(each, Mapping) or "name" not in each:
            continue
        name = each["name"]
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            raise DistilvecError(
                f"{str(name)[:80]!r} is no name for a teacher or scorer",
                where=f"{key}.name",
                remedy="Use letters, digits, dots, hyphens and underscores, and begin with a letter or digit.",
            )


def _student_section(student: Any) -> dict[str, Any]:
    if isinstance(student, Mapping):
        return {key: dict(value) if isinstance(value, Mapping) else value for key, value in student.items()}
    if not isinstance(student, str | Path):
        raise _unnamed(student, "student", "Give its folder or hub id, or a recipe's section as a dictionary.")
    return {"auto": {}} if str(student) == "auto" else {"model": str(student)}


def corpus_section(corpus: Any, given: Path, name: str = "corpus.jsonl") -> dict[str, Any]:
    """The corpus section that a value means; rows are written into a file of this name."""
    section = dict(corpus) if isinstance(corpus, Mapping) and {"path", "parts"} & set(corpus) else {"path": corpus}
    if isinstance(parts := section.get("parts"), list | tuple):
        shared = {key: section[key] for key in ("text", "modality") if key in section}
        section["parts"] = [_part(each, given / f"part-{number}.jsonl", shared) for number, each in enumerate(parts, 1)]
    source = section.get("path")
    if "parts" in section and source is None:
        return section
    if isinstance(source, str | Path):
        section["path"] = str(source)
        return section
    kind, limit = find_kind(str(section.get("modality") or "text")), section.get("limit")
    text = section.get("text") or kind.column
    columns = [text] if isinstance(text, str) else [each for each in text if isinstance(each, str)]
    limit = limit if isinstance(limit, int) and limit > 0 else None  # what else it may be, the recipe refuses
    if is_dataset(source):
        source = kind.dataset(chosen_split(source))
    if kind.tokenized and (is_dataset(source) or is_table(source)):
        _need_columns(columns, chosen_split(source) if is_dataset(source) else source)
    first = source[0] if isinstance(source, list) and source else None
    if kind.tokenized and isinstance(first, Mapping) and "path" in first and columns[0] not in first:
        raise DistilvecError(
            "a list from Python is rows, and these look like several corpora",
            where="corpus",
            remedy='Write corpus={"parts": [...]}.',
        )
    section["path"] = str(_write_rows(given / name, source, columns or ["text"], limit, kind))
    return section


def _part(part: Any, file: Path, shared: Mapping[str, Any]) -> Any:
    """A part of several: a path, a mapping, or rows, which are written into the file.

    Args:
        shared: the keys of the whole corpus that say what its rows are.
    """
    section = dict(part) if isinstance(part, Mapping) else {"path": part}
    if "path" not in section:
        return section
    read = corpus_section({**shared, **section}, file.parent, file.name)
    return {key: value for key, value in read.items() if key in section}


def _need_columns(wanted: Sequence[str], source: Any) -> None:
    """Refuse a frame or data set without the columns of the texts, here, where it can be said how to name them."""
    named = getattr(source, "column_names", None) or getattr(source, "columns", None)
    names = [name for name in named if isinstance(name, str)] if isinstance(named, Iterable) else []
    missing = [name for name in wanted if name not in names]
    if names and missing:
        listed = ", ".join(f'"{name}"' for name in names[:20])
        near = f"{found} " if (found := nearest(missing[0], names)).startswith("Did") else ""
        raise DataError(
            f'there is no column "{missing[0]}", but {listed}',
            where="corpus",
            remedy=f'{near}Name the one with the texts: corpus={{"path": ..., "text": "its name"}}.',
        )


def _judging_section(judging: Mapping[str, Any], given: Path) -> dict[str, Any]:
    """Frames and data sets of its tasks become files; lists of rows stand in the recipe itself."""

    def saved(task: Any, number: int) -> Any:
        if not isinstance(task, Mapping):
            return task
        tables = {key: task[key] for key in TASK_FILES if is_dataset(task.get(key)) or is_table(task.get(key))}
        names = {key: given / f"task{number}-{key}.jsonl" for key in tables}
        return {**task, **{key: str(_write_rows(names[key], tables[key], ["text"])) for key in tables}}

    tasks = judging.get("tasks")
    if not isinstance(tasks, list | tuple):
        return dict(judging)
    return {**judging, "tasks": [saved(task, number) for number, task in enumerate(tasks, start=1)]}


def _scorer_section(scorer: Any, given: Path) -> dict[str, Any]:
    if isinstance(scorer, str | Path):
        return {"model": str(scorer)}
    if callable(scorer):
        return {"call": scorer}
    if not isinstance(scorer, Mapping):
        raise DistilvecError(f"a {type(scorer).__name__} is no scorer", where="scorers")
    section = dict(scorer)
    _check_names("scorers", section)
    if section.get("scores") is not None:
        name = f"{section.get('name', 'scorer')}-scores.jsonl"
        section["scores"] = _filed(given / name, section["scores"], ["query"])
    return {key: str(value) if isinstance(value, Path) else value for key, value in section.items()}


def _teacher_section(value: Any, name: str, given: Path, kind: Kind) -> dict[str, Any]:
    if isinstance(value, str | Path):
        return {"name": name, "model": str(value)}
    if hasattr(value, "encode") and not isinstance(value, Mapping):
        raise _unnamed(value, name, "Give its folder or hub id, or a function that calls its encode.")
    if callable(value):
        return {"name": name, "call": value}
    if not isinstance(value, Mapping):
        raise DistilvecError(
            f"a {type(value).__name__} is no teacher",
            where=name,
            remedy="Give a folder, a hub id or a function; of vectors that are there already, "
            '{"vectors": vectors, "texts": texts}.',
        )
    section = {"name": name, **value}
    called = section["name"]
    vectors, texts = section.get("vectors"), section.get("texts")
    if vectors is not None and not isinstance(vectors, str | Path):
        section["vectors"] = str(_write_vectors(given / f"{called}-vectors.npy", vectors, called))
    if texts is not None and not isinstance(texts, str | Path):
        texts = list(texts) if isinstance(texts, Iterable) else texts  # of an array or a frame's column
        section["texts"] = str(_write_rows(given / f"{called}-texts.jsonl", texts, ["text"], kind=kind))
    return {key: str(value) if isinstance(value, Path) else value for key, value in section.items()}


def _unnamed(value: Any, where: str, remedy: str) -> DistilvecError:
    return DistilvecError(f"a {type(value).__name__} object cannot be named in a recipe", where=where, remedy=remedy)


def _write_vectors(file: Path, vectors: Any, name: str) -> Path:
    """Arrays, lists and tensors as a .npy file."""
    array = vectors if isinstance(vectors, np.ndarray) else as_vectors(vectors, name)
    if array.ndim != 2 or array.dtype.kind != "f":
        raise DistilvecError(f"vectors are numbers [n, D], found {array.dtype} {list(array.shape)}", where=name)
    return _written(file, lambda out: np.save(out, array, allow_pickle=False))


def _filed(file: Path, source: Any, columns: Sequence[str] = ("text",)) -> str:
    """A file that is given, or the one that rows are written into."""
    return str(source if isinstance(source, str | Path) else _write_rows(file, source, columns))


def _write_rows(
    file: Path, source: Any, columns: Sequence[str], limit: int | None = None, kind: Kind | None = None
) -> Path:
    """Texts or dictionaries as JSON lines; equal rows give equal bytes.

    Args:
        columns: of rows that are no dictionaries: the first, or all where a row is a tuple of as many.
        kind: of the items in these columns.
    """
    rows = given_rows(source, limit)
    lines = (json.dumps(_row(row, columns, kind or find_kind(None)), default=_not_json) + "\n" for row in rows)
    return _written(file, lambda out: out.writelines(line.encode() for line in lines))


def _written(file: Path, write: Callable[[BinaryIO], None]) -> Path:
    claim(file.parent.parent)
    # Rows that are read as they are asked for may raise what they like.
    with disk_problems("what was given cannot be written", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary(file.parent) as partial:
            with partial.open("wb") as out:
                write(out)
            return _settled(file, partial)


def _settled(file: Path, partial: Path) -> Path:
    """Put what was written in its place, and say where that is.

    An equal file is left alone: its date is part of the prepared corpus' fingerprint. One of a run that left a student
    stays as well, since that run's recipe names it; what is written now has its digest in its name.
    """
    out = file.parent.parent
    reserve(file.parent, "given", [file.name], more=True)
    if not file.is_file():
        partial.replace(file)
    elif not filecmp.cmp(file, partial, shallow=False):
        if (out / "student").exists() or (out / "before-1").exists():
            with partial.open("rb") as written:
                digest = hashlib.file_digest(written, lambda: hashlib.blake2b(digest_size=4)).hexdigest()
            file = file.with_name(f"{file.stem}-{digest}{file.suffix}")
            reserve(file.parent, "given", [file.name], more=True)
        if not file.is_file() or not filecmp.cmp(file, partial, shallow=False):
            with alone_in(out):  # the texts of a run that is at work are not replaced
                partial.replace(file)
    return file


def _row(row: Any, columns: Sequence[str], kind: Kind) -> dict[str, Any]:
    """A row as a mapping; an image may be a dictionary itself, as data sets have it."""
    alone = kind.binary and isinstance(row, Mapping) and columns[0] not in row and bool({"bytes", "path"} & row.keys())
    if isinstance(row, Mapping) and not alone:
        value = {str(name): each for name, each in row.items()}
    elif isinstance(row, tuple) and len(row) == len(columns) > 1:
        value = dict(zip(columns, row, strict=True))
    else:
        value = {columns[0]: row}
    return value | {name: kind.portable(value[name]) for name in columns if name in value}


def _not_json(value: Any) -> Any:
    """Numbers of numpy stay numbers; anything else becomes something the corpus' audit rejects as no text."""
    if isinstance(value, np.generic):
        return value.item()
    return {"not a text": type(value).__name__}


def opened_recipe(recipe: Recipe | str | Path, output: str | Path | None = None) -> Recipe:
    """A recipe, or that of a file, with another output where one is given."""
    if isinstance(recipe, Recipe):
        return recipe if output is None else recipe.model_copy(update={"output": home(str(output))})
    if not isinstance(recipe, str | Path):
        raise DistilvecError(
            f"a {type(recipe).__name__} is no recipe",
            where="recipe",
            remedy="Give the path of its file, or distilvec.Recipe.build({...}).",
        )
    return Recipe.load(recipe, output=output)


def sized(student: Any, parameters: float | str | None) -> Any:
    """The student's section; `parameters` are those of a student cut out of the teacher."""
    if parameters is None:
        return student
    if student is not None:
        raise DistilvecError(
            "parameters is the size of a student that is cut out of the teacher, and another student is named",
            where="parameters",
            remedy='Leave one of the two out, or give student={"shrink": {"of": ..., "parameters": ...}}.',
        )
    return {"shrink": {"parameters": parameters}}
