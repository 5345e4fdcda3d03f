"""Tasks from descriptions: a mapping, a YAML or JSON file, or a registered name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from distilvec import plain_yaml
from distilvec.errors import DistilvecError
from distilvec.files import home, read_small
from distilvec.judging.benchmarks import benchmark_tasks, is_benchmark, mteb_task
from distilvec.judging.talas_sets import TALAS_SETS, talas_file, talas_spec
from distilvec.judging.tasks import JudgingTask, unique
from distilvec.validation import refusal

_LARGEST_YAML, _LARGEST_JSON = 1 << 20, 1 << 26


def load_task(spec: str | Path | Mapping[str, Any], folder: str | Path | None = None) -> JudgingTask:
    """One task.

    Args:
        spec: a mapping with the keys of `TaskSpec`; a .yaml, .yml or .json file with such a mapping (its
            files are relative to it); the short name of one of TALAS's nine sets, read from `folder`; or the
            name of a benchmark that MTEB registers.
        folder: where relative files and the nine sets are; the environment variable DISTILVEC_DATA where not
            given (for the sets), the working folder (for files).

    Raises:
        DistilvecError: an unknown name or key, or keys that do not go together.
        DataError: a file that is missing or broken, with line and column.
        EnvironmentProblem: a benchmark's name without MTEB installed.
    """
    if isinstance(spec, Mapping):
        return _build(spec, Path(folder or ""))
    if not isinstance(spec, str | Path):
        raise DistilvecError(
            f"a task is a name, a file or a mapping, not {type(spec).__name__}",
            where="judging.tasks",
            remedy="See the page on judging.",
        )
    if (file := _task_file(spec)) is None:
        return _registered(home(str(spec)), Path(folder) if folder else None)
    if not isinstance(content := _content(file), Mapping):
        raise DistilvecError("a task file holds one mapping with name, kind, test ...", where=str(file))
    return _build(content, file.parent)


def load_tasks(specs: Sequence[str | Path | Mapping[str, Any]], folder: str | Path | None = None) -> list[JudgingTask]:
    """Several tasks; their names have to differ.

    Raises:
        DistilvecError: as `load_task`, or two tasks of one name.
    """
    tasks = [task for spec in specs for task in expand(spec, folder)]
    unique(tasks)
    return tasks


def read_tasks(tasks: Any) -> list[Any]:
    """Tasks from a name, a description, a file with one or several descriptions, or a list of these."""
    loaded: list[Any] = []
    for spec in tasks if isinstance(tasks, list | tuple) else [tasks]:
        if hasattr(spec, "score") and hasattr(spec, "texts"):
            loaded.append(spec)
            continue
        file = _task_file(spec)
        listed = None if file is None else _content(file)
        if file is not None and isinstance(listed, list):
            loaded += [task for each in listed for task in _listed(each, file.parent)]
        else:
            loaded += expand(spec)
    unique(loaded)
    return loaded


def talas_tasks(
    folder: str | Path,
    *,
    max_train: int | None = None,
    exclude: Iterable[str] = (),
    protocol: str = "talas",
    split: str = "test",
    names: Iterable[str] | None = None,
) -> list[JudgingTask]:
    """The nine tasks of TALAS's protocol, in-domain first.

    Args:
        folder: has `<set>.<split>.jsonl.gz` (or another readable suffix).
        max_train: cap on the probes' training rows, a seeded sample.
        exclude: test items that have one of these texts (case-folded) are left out: the training corpus, to
            score without the overlap. `JudgingTask.without` does the same to a score already made, without encoding
            again.
        protocol: of the probes, "talas" or "tuned".
        split: "test", or "validation" for choosing settings; sets without it are left out then.
        names: some of the nine, all by default.

    Raises:
        DistilvecError: an unknown name.
        DataError: a file is missing or broken.
    """
    from distilvec.judging.spec import READ_BY

    wanted = list(TALAS_SETS) if names is None else list(names)
    if split != "test":
        wanted = [name for name in wanted if name not in TALAS_SETS or talas_file(Path(folder), name, split)]
    options = {"max_train": max_train, "exclude": frozenset(exclude), "protocol": protocol}

    def read_by(name: str) -> dict[str, Any]:
        keys = READ_BY[TALAS_SETS[name]["kind"]] if name in TALAS_SETS else ()
        return {key: value for key, value in options.items() if key in keys}

    return [load_task(talas_spec(name, folder, split=split, **read_by(name)), folder) for name in wanted]


def _listed(spec: Any, beside: Path) -> list[Any]:
    """The tasks of an entry of a file's list: a description, or the name of a task or of a file beside that one."""
    if not isinstance(spec, str):
        return [load_task(spec, beside)]
    return expand(str(beside / spec) if (beside / spec).is_file() else spec)


def expand(spec: Any, folder: str | Path | None = None) -> list[JudgingTask]:
    """The tasks of a benchmark that MTEB registers, by its name or the object itself; of anything else, `load_task`."""
    if is_benchmark(spec):
        return list(benchmark_tasks(spec) or ())
    name = home(spec) if isinstance(spec, str) else None
    if name is None or name in TALAS_SETS or _task_file(name) is not None or Path(name).exists():
        return [load_task(spec, folder)]
    registered = benchmark_tasks(name)
    return [load_task(name, folder)] if registered is None else list(registered)


def data_folder() -> Path | None:
    """The folder of evaluation sets named by DISTILVEC_DATA (or its subfolder data), None where not set."""
    named = os.environ.get("DISTILVEC_DATA")
    if not named:
        return None
    return Path(named) / "data" if (Path(named) / "data").is_dir() else Path(named)


def _registered(name: str, folder: Path | None) -> JudgingTask:
    if name in TALAS_SETS:
        place = folder or data_folder()
        if place is None:
            raise DistilvecError(
                f'the files of "{name}" are needed',
                remedy="Set DISTILVEC_DATA to the folder of evaluation sets.",
            )
        return load_task(talas_spec(name, place), place)
    if Path(name).exists():
        raise DistilvecError(
            f'"{name}" is a file of data, and a task also says what is done with it',
            where="judging.tasks",
            remedy=f"Describe it, for example {{name: topics, kind: classification, train: train.jsonl, test: {name}, "
            "text: text, label: label}.",
        )
    return mteb_task(name)


def _task_file(spec: Any) -> Path | None:
    file = Path(home(str(spec))) if isinstance(spec, str | Path) else None
    return file if file is not None and file.suffix in (".yaml", ".yml", ".json") else None


def _content(file: Path) -> Any:
    """Return what a file of tasks holds; rows of a task may stand in one of JSON, which is read at once."""
    as_json = file.suffix == ".json"
    try:
        text = read_small(file, _LARGEST_JSON if as_json else _LARGEST_YAML)
        return json.loads(text) if as_json else plain_yaml.read(text)
    except FileNotFoundError as error:
        raise DistilvecError("there is no such file", where=str(file)) from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise DistilvecError(f"the task file cannot be read ({error})", where=str(file)) from error


def _build(data: Mapping[str, Any], folder: Path) -> JudgingTask:
    from distilvec.judging.spec import TaskSpec

    try:
        spec = TaskSpec.model_validate(dict(data))
    except ValidationError as error:
        raise refusal(error, TaskSpec, f"task {data.get('name', '?')}") from error
    from distilvec.judging.building import build_judging_task

    return build_judging_task(spec, folder)
