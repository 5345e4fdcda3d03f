"""How results are kept: one file of records per experiment, each beside the settings that made it.

A file `results.jsonl` has one record a line:

    name     what was run, with its seed at the end: "bpe/talas+asam-0"
    key      16 hex digits: a hash of the options, the code of the row's function and the version of the package; null
             of records that are older than the keys
    options  everything that could have been set otherwise
    made     when, and with which versions or from which commit
    result   what came out

Committed records stand in `experiments/results/<experiment>/`. A run never reads these. It keeps its own in the work
folder, where it finds a row again by its key alone: another seed, another learning rate or another row function is
another key. Of records with one name the last one in the file counts.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import os
import platform
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from distilvec import __version__
from distilvec.files import locked

#: Name -> what came out.
Rows = Mapping[str, dict[str, Any]]
Record = dict[str, Any]

RESULTS = Path(__file__).parent.parent / "results"
#: Where new results go, with what they are made from (stores, corpora, checkpoints).
WORK = Path(os.environ.get("DISTILVEC_WORK", Path(__file__).parent.parent.parent / "out-experiments"))
FILE = "results.jsonl"
#: Of a record's provenance.
PACKAGES = ("torch", "transformers", "sentence-transformers", "numpy")


def read_records(file: Path) -> list[Record]:
    """All records of a file, in its order; a last line that was cut short is left out."""
    if not file.exists():
        return []
    *lines, _ = file.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines]


def write_records(file: Path, records: Iterable[Record]) -> None:
    """Write a file anew: one line a record, sorted by name, as it is committed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    lines = [_line(record) for record in sorted(records, key=lambda record: record["name"])]
    partial.write_text("".join(lines), encoding="utf-8")
    partial.replace(file)


def _line(record: Record) -> str:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n"


def rows_of(records: Iterable[Record]) -> dict[str, dict[str, Any]]:
    """Name -> result; of several with one name the last."""
    return {record["name"]: record["result"] for record in records}


def committed(experiment: str, results: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Name -> result of what is committed of an experiment; empty where nothing is."""
    return rows_of(read_records(results / experiment / FILE))


def seeds(rows: Rows, name: str) -> dict[int, dict[str, Any]]:
    """Seed -> result of the rows called `name-SEED`, in the order of the seeds."""
    found = {}
    for row, result in rows.items():
        start, _, seed = row.rpartition("-")
        if start == name and seed.isdigit():
            found[int(seed)] = result
    return dict(sorted(found.items()))


def pairs_of_seeds(first: Iterable[int | None], second: Iterable[int | None]) -> list[tuple[int | None, int | None]]:
    """Runs to compare: those of one seed; a model that is not trained here (None) goes with every seed."""
    second = list(second)
    return [(one, other) for one in first for other in second if one == other or None in (one, other)]


def below(rows: Rows, folder: str) -> dict[str, dict[str, Any]]:
    """The rows whose names begin with `folder/`, without it."""
    return {name.removeprefix(f"{folder}/"): row for name, row in rows.items() if name.startswith(f"{folder}/")}


def folders(rows: Rows) -> list[str]:
    """First parts of the names that have several, sorted."""
    return sorted({name.partition("/")[0] for name in rows if "/" in name})


class Results:
    """The rows of one experiment under one set of settings, in the work folder.

    Args:
        experiment: its name, that of a folder under `experiments/results`.
        settings: what holds for all rows of this run and could be set otherwise (epochs, learning rate, sizes).
        work: folder of this experiment's results; below `WORK` where None.
    """

    def __init__(self, experiment: str, settings: Mapping[str, Any] | None = None, *, work: Path | None = None) -> None:
        self.experiment = experiment
        self.settings = plain(settings or {})
        self.work = work or WORK / experiment
        self.home = self.work / "results"
        self.file = self.home / FILE

    def records(self) -> list[Record]:
        """What was made under these settings."""
        return [
            record
            for record in read_records(self.file)
            if all(record["options"].get(name) == value for name, value in self.settings.items())
        ]

    def rows(self) -> dict[str, dict[str, Any]]:
        """Name -> result of what was made under these settings."""
        return rows_of(self.records())

    def run(self, name: str, make: Callable[[], dict[str, Any]], **options: Any) -> dict[str, Any]:
        """Run `make` and keep its result under the key of all options; a result with this key is read instead.

        Args:
            name: of the row, with its seed at the end.
            make: a function or a `functools.partial` of one, no lambda: its source is part of the key.
            options: of this row, beside the settings of the run.
        """
        chosen = {**self.settings, **short(plain(options))}
        key = key_of(name, chosen, make)
        there = [record for record in read_records(self.file) if record["name"] == name]
        for record in reversed(there):
            if record["key"] == key:
                if record is not there[-1]:  # so that it is the one that counts again
                    self._append(record)
                result: dict[str, Any] = record["result"]
                return result
        start = time.time()
        result = plain(make())
        result["seconds"] = round(time.time() - start, 1)
        self._append({"name": name, "key": key, "options": chosen, "made": provenance(), "result": result})
        return result

    def _append(self, record: Record) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.file.with_suffix(".lock"), wait=True):  # trainings run beside each other
            if self.file.exists():  # what a stopped run left of a line goes
                whole = self.file.read_bytes().rpartition(b"\n")
                os.truncate(self.file, len(whole[0]) + len(whole[1]))
            with self.file.open("a", encoding="utf-8") as file:
                file.write(_line(record))

    def record(self, results: Path = RESULTS) -> list[str]:
        """Write these rows over the committed ones of the same names; returns their names."""
        file = results / self.experiment / FILE
        new = {record["name"]: record for record in self.records()}
        kept = {record["name"]: record for record in read_records(file)}
        if new:
            write_records(file, {**kept, **new}.values())
        return sorted(new)


def key_of(name: str, options: Mapping[str, Any], make: Callable[..., Any]) -> str:
    """16 hex digits of what a row is made of: its name, all options, its function's code, the package's version."""
    about = {"name": name, "options": plain(options), "code": code_of(make), "distilvec": __version__}
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def code_of(make: Callable[..., Any]) -> str:
    """A function's source without comments and layout, as a hash.

    Raises:
        TypeError: of a lambda, whose source is that of a whole statement.
    """
    while isinstance(make, functools.partial):
        make = make.func
    if getattr(make, "__name__", "") == "<lambda>":
        raise TypeError("a row is made by a named function: its source is part of the key")
    tree = ast.parse(textwrap.dedent(inspect.getsource(make)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    # 3.12 adds a field that is empty nearly always, 3.13 leaves out what is empty: one key whatever Python reads it
    shown = ast.dump(tree, **({"show_empty": True} if sys.version_info >= (3, 13) else {}))
    return hashlib.sha256(shown.replace(", type_params=[]", "").encode()).hexdigest()[:16]


def digest(made: Any) -> str:
    """12 hex digits of what something is made of, for the name of its folder."""
    settings = json.dumps(made, sort_keys=True, default=lambda each: each.__qualname__)
    return hashlib.sha256(settings.encode()).hexdigest()[:12]


def plain(value: Any) -> Any:
    """What JSON makes of it: tuples are lists, keys are words, paths their last part."""
    return json.loads(json.dumps(value, default=_word))


def short(value: Any) -> Any:
    """Absolute paths as their last part: a record says nothing of the machine's folders."""
    if isinstance(value, dict):
        return {key: short(each) for key, each in value.items()}
    if isinstance(value, list):
        return [short(each) for each in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def _word(value: Any) -> Any:
    if isinstance(value, Path):
        return value.name
    raise TypeError(f"{value!r} cannot be kept as JSON")


def provenance() -> dict[str, Any]:
    """When and with which versions."""
    found = {name: _version(name) for name in PACKAGES}
    return {"at": time.strftime("%Y-%m-%d"), "python": platform.python_version(), "distilvec": __version__, **found}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
