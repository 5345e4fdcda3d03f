"""Every JSON type in every field of what others write: settings, manifests, records, answers, requests, rows."""

from __future__ import annotations

import functools
import json
import math
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacking import doors

VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "negative": -1,
    "huge": 10**400,
    "infinity": math.inf,
    "nan": math.nan,
    "word": "x",
    "long": "x" * 20_000,
    "list": [[], None, "x", 1],
    "object": {"a": {"b": [{}]}},
}
#: Folders among the inputs -> what is done with them, the most fields of a file that are tried (what takes seconds is
#: tried less often), and which of their files are left out.
FOLDERS: dict[str, tuple[Callable[[random.Random, Path, Path], int | None], int, tuple[str, ...]]] = {
    "full": (doors.model, 80, ()),
    "adapters": (doors.adapted, 80, ()),
    "table": (doors.table, 20, ()),
    "finished": (doors.finished, 9, ("student", "checkpoints")),
    "unfinished": (doors.unfinished, 14, (".partial",)),
    "compared": (doors.compared, 4, ("student", "stores", "corpus", "checkpoint", "start")),
    "planned": (doors.planned, 4, ("student", "stores", "corpus", "checkpoint")),
    "finetuned": (doors.finetuned, 14, ("checkpoint", "report", "tokenizer.json")),
    "exported": (doors.exported, 40, ("tokenizer.json",)),
    "mined": (doors.mined, 9, ("stores",)),
}
#: Other JSON than files of a folder: an example, and what is done with it once a field is replaced.
LOOSE: dict[str, tuple[Any, Callable[[random.Random, Path, Path, Any, tuple[Any, ...]], int | None]]] = {
    "answer": (doors.ANSWER, doors.answered),
    "failure": (doors.FAILURE, doors.failed),
    "request": (doors.REQUEST, doors.asked),
    "corpus row": (doors.ROW, doors.corpus_row),
    "label row": (doors.ROW, doors.label_row),
    "pair row": (doors.PAIR_ROW, doors.pair_row),
    "score row": (doors.SCORE_ROW, doors.score_row),
    "vector row": (doors.VECTOR_ROW, doors.vector_row),
}
#: What is done with a whole input, which has to be accepted: otherwise the doors would refuse for another reason.
UNCHANGED = "unchanged"
#: Of an object with more entries, which may be a vocabulary, three are tried.
MOST_ENTRIES = 100


@dataclass(frozen=True)
class Case:
    """A value in a field.

    Attributes:
        source: of `FOLDERS` or `LOOSE`.
        file: within the folder; None of `LOOSE`, and where nothing is changed.
        field: keys that lead there; () = all of it.
        value: of `VALUES`.
    """

    source: str
    file: str | None
    field: tuple[Any, ...]
    value: str

    def __str__(self) -> str:
        return f"{self.source} {self.file or ''}: {'.'.join(map(str, self.field)) or 'all'} is {self.value}"


@functools.cache
def cases(inputs: Path) -> list[Case]:
    """All of them, in an order that mixes files and values."""
    found = []
    for name, (_, most, left_out) in FOLDERS.items():
        found += [Case(name, None, (), UNCHANGED)] * 3
        for file in sorted((inputs / name).rglob("*.json")):
            inner = file.relative_to(inputs / name).as_posix()
            if not any(part in inner for part in left_out):
                found += _of(name, inner, json.loads(file.read_text(encoding="utf-8")), most)
    for name, (example, _) in LOOSE.items():
        found += [Case(name, None, (), UNCHANGED)] * (name != "failure")
        found += _of(name, None, example, 80)
    random.Random("typed").shuffle(found)
    return found


def _of(source: str, file: str | None, content: Any, most: int) -> Iterator[Case]:
    every = list(fields(content))
    if len(every) > most:
        every = [(), *random.Random(f"{source}/{file}").sample(every[1:], most - 1)]
    for field in every:
        for value in VALUES:
            yield Case(source, file, field, value)


def fields(content: Any, field: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield field
    if isinstance(content, dict):
        keys = list(content)[: MOST_ENTRIES if len(content) <= MOST_ENTRIES else 3]
    else:
        keys = sorted({0, len(content) - 1}) if isinstance(content, list) and content else []
    for key in keys:
        yield from fields(content[key], (*field, key))


def replaced(content: Any, field: tuple[Any, ...], value: Any) -> Any:
    """Put another value into a field."""
    if not field:
        return value
    first, rest = field[0], field[1:]
    if isinstance(content, dict):
        return content | {first: replaced(content[first], rest, value)}
    return [replaced(each, rest, value) if place == first else each for place, each in enumerate(content)]


def typed(rng: Any, inputs: Path, folder: Path, mark: Path) -> Callable[[], int | None]:
    """The case of this number."""
    every = cases(inputs)
    case = every[rng.number % len(every)]
    rng.told = str(case)
    whole = case.value == UNCHANGED
    if case.source in LOOSE:
        example, loose = LOOSE[case.source]
        content = example if whole else replaced(example, case.field, VALUES[case.value])
        return _taken(lambda: loose(rng, inputs, folder, content, case.field), whole)
    door = FOLDERS[case.source][0]
    shutil.copytree(inputs / case.source, folder / "out")
    if case.file is not None:
        file = folder / "out" / case.file
        content = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps(replaced(content, case.field, VALUES[case.value])))
    return _taken(lambda: door(rng, inputs, folder), whole)


def _taken(act: Callable[[], int | None], whole: bool) -> Callable[[], int | None]:
    """The act; what is whole has to be accepted."""
    from distilvec.errors import DistilvecError

    def checked() -> int | None:
        try:
            code = act()
        except DistilvecError as error:
            raise AssertionError("refused, and nothing was changed") from error
        if code:
            raise AssertionError("refused, and nothing was changed")
        return code

    return checked if whole else act
