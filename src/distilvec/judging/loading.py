"""Tasks from descriptions: a mapping, a YAML or JSON file, or a registered name."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from distilvec.corpus.folders import IMAGE_SUFFIXES
from distilvec.errors import DataError, DistilvecError, nearest
from distilvec.judging.clustering import ClusteringTask
from distilvec.judging.perceptron import IMAGES, MOLECULES, PerceptronTask, Target
from distilvec.judging.probes import ClassificationTask, Columns, RegressionTask
from distilvec.judging.retrieval import RetrievalTask
from distilvec.judging.similarity import PairTask, SimilarityTask
from distilvec.judging.tables import Table, read_table
from distilvec.judging.tasks import Task

Source = str | list[dict[str, Any]]


class TaskSpec(BaseModel):
    """A description of one task; files are .jsonl, .json, .csv, .tsv (also .gz, .zst) and .parquet.

    Which keys a kind reads: classification and regression `train`, `test`, `validation`, `text` and `label`
    or `score`; pairs and similarity `test`, `text1`, `text2` and `label` or `score`; clustering `test`,
    `text`, `label`; retrieval `queries`, `corpus`, `qrels`, or `test` with the columns `query` and
    `document`; perceptron (images, molecules) `train`, `text` and `label` or `score`, and `test` and
    `validation` where the split is not to be drawn.
    """

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1)
    kind: Literal["classification", "regression", "pairs", "similarity", "clustering", "retrieval", "perceptron"]
    domain: Literal["in", "out"] | None = None
    train: Source | None = None
    validation: Source | None = None
    test: Source | None = None
    queries: Source | None = None
    corpus: Source | None = None
    qrels: Source | None = None
    text: str = "text"
    text1: str = "text1"
    text2: str = "text2"
    label: str = "label"
    score: str = "score"
    query: str = "query"
    document: str = "document"
    positive: str | int | bool | None = Field(None, description="pairs: the label that means alike")
    protocol: Literal["talas", "tuned"] = "talas"
    max_train: int | None = Field(None, gt=1, description="probes: cap on training rows, a seeded sample")
    max_items: int | None = Field(None, gt=1, description="clustering: cap on items, a seeded sample")
    target: Target = Field("classification", description="perceptron: what is predicted")
    probe: Literal["molecules", "images"] = Field("molecules", description="perceptron: the paper's settings for these")
    log: bool = Field(False, description="perceptron: regression on logarithms")
    seeds: int = Field(5, ge=1, description="perceptron: number of splits and start weights")
    seed: int = Field(0, ge=0)
    exclude: frozenset[str] = Field(frozenset(), description="test items with one of these texts are left out")


def load_task(spec: str | Path | Mapping[str, Any], folder: str | Path | None = None) -> Task:
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
        return _build(spec, Path(folder) if folder else Path())
    if Path(spec).suffix in (".yaml", ".yml", ".json"):
        return _build(_read_spec(Path(spec)), Path(spec).parent)
    return _registered(str(spec), Path(folder) if folder else None)


def load_tasks(specs: Sequence[str | Path | Mapping[str, Any]], folder: str | Path | None = None) -> list[Task]:
    """Several tasks; their names have to differ.

    Raises:
        DistilvecError: as `load_task`, or two tasks of one name.
    """
    tasks = [load_task(spec, folder) for spec in specs]
    unique(tasks)
    return tasks


def unique(tasks: Sequence[Task]) -> None:
    """Refuse two tasks of one name: scores are kept by name.

    Raises:
        DistilvecError: two tasks have the same name.
    """
    names = [task.name for task in tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DistilvecError(f"two tasks have the same name: {', '.join(twice)}", remedy="Give each its own name.")


def data_folder() -> Path | None:
    """The folder of evaluation sets named by DISTILVEC_DATA (or its subfolder data), None where not set."""
    named = os.environ.get("DISTILVEC_DATA")
    if not named:
        return None
    return Path(named) / "data" if (Path(named) / "data").is_dir() else Path(named)


def _registered(name: str, folder: Path | None) -> Task:
    from distilvec.judging.benchmarks import mteb_task
    from distilvec.judging.talas import TALAS_SETS, talas_task

    if name in TALAS_SETS:
        place = folder or data_folder()
        if place is None:
            raise DistilvecError(
                f'the files of "{name}" are needed',
                remedy="Set DISTILVEC_DATA to the folder of evaluation sets.",
            )
        return talas_task(name, place)
    return mteb_task(name)


def _read_spec(path: Path) -> Mapping[str, Any]:
    try:
        content = path.read_text(encoding="utf-8")
        data = json.loads(content) if path.suffix == ".json" else yaml.safe_load(content)
    except FileNotFoundError as error:
        raise DistilvecError("there is no such file", where=str(path)) from error
    except (OSError, UnicodeDecodeError, ValueError, yaml.YAMLError) as error:
        raise DistilvecError(f"the task cannot be read ({error})", where=str(path)) from error
    if not isinstance(data, Mapping):
        raise DistilvecError("a task file holds one mapping with name, kind, test ...", where=str(path))
    return data


def _build(data: Mapping[str, Any], folder: Path) -> Task:
    place = f"task {data.get('name', '?')}"
    try:
        spec = TaskSpec.model_validate(dict(data))
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else "task"
        if first["type"] == "extra_forbidden":
            remedy = nearest(key, TaskSpec.model_fields)
            raise DistilvecError(f'unknown key "{key}"', where=place, remedy=remedy) from error
        if first["type"] == "missing":
            raise DistilvecError(f'the key "{key}" is missing', where=place) from error
        raise DistilvecError(f"{first['msg']} (got {first.get('input')!r})", where=f"{place}, {key}") from error
    return _BUILDERS[spec.kind](spec, _Files(spec, folder))


class _Files:
    """Reads a description's files, with paths relative to one folder."""

    def __init__(self, spec: TaskSpec, folder: Path) -> None:
        self._spec, self._folder = spec, folder
        self._excluded = {text.casefold() for text in spec.exclude}

    def table(self, key: str) -> Table:
        source = getattr(self._spec, key)
        if source is None:
            where = f"task {self._spec.name}"
            raise DistilvecError(f'the key "{key}" is missing, {self._spec.kind} needs it', where=where)
        return read_table(self._folder / source if isinstance(source, str) else source)

    def item(self, text: str) -> str:
        """A text as it is, and the path of an image relative to the folder as an absolute one."""
        path = self._folder / text
        return str(path.absolute()) if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file() else text

    def test(self, *columns: str) -> Table:
        """The test table, less the items that have an excluded text in one of the columns."""
        table = self.table("test")
        if not self._excluded:
            return table
        texts = zip(*(table.texts(column) for column in columns), strict=True)
        kept = [i for i, item in enumerate(texts) if not any(text.casefold() in self._excluded for text in item)]
        if not kept:
            raise DataError("every test item is excluded", where=table.source)
        return Table(table.source, [table.rows[i] for i in kept], [table.lines[i] for i in kept], table.unit)


def _probe_columns(spec: TaskSpec, files: _Files) -> tuple[Columns, Columns, Columns | None]:
    def columns(table: Table) -> Columns:
        if spec.kind == "regression":
            return table.texts(spec.text), table.numbers(spec.score)
        return table.texts(spec.text), table.labels(spec.label)

    validation = columns(files.table("validation")) if spec.validation is not None else None
    return columns(files.table("train")), columns(files.test(spec.text)), validation


def _classification(spec: TaskSpec, files: _Files) -> Task:
    return ClassificationTask(spec.name, *_probe_columns(spec, files), **_probe_options(spec))


def _regression(spec: TaskSpec, files: _Files) -> Task:
    return RegressionTask(spec.name, *_probe_columns(spec, files), **_probe_options(spec))


def _probe_options(spec: TaskSpec) -> dict[str, Any]:
    return {"protocol": spec.protocol, "max_train": spec.max_train, **_common(spec)}


def _perceptron(spec: TaskSpec, files: _Files) -> Task:
    def columns(table: Table) -> Columns:
        answers = table.numbers(spec.score) if spec.target == "regression" else table.labels(spec.label)
        return [files.item(text) for text in table.texts(spec.text)], answers

    if spec.exclude and spec.test is None:
        raise DistilvecError("exclude is for a split that is given: name the test file", where=f"task {spec.name}")
    return PerceptronTask(
        spec.name,
        columns(files.table("train")),
        None if spec.test is None else columns(files.test(spec.text)),
        None if spec.validation is None else columns(files.table("validation")),
        target=spec.target,
        log=spec.log,
        seeds=range(spec.seeds),
        settings=IMAGES if spec.probe == "images" else MOLECULES,
        **_common(spec),
    )


def _common(spec: TaskSpec) -> dict[str, Any]:
    return {"domain": spec.domain, "seed": spec.seed}


def _similarity(spec: TaskSpec, files: _Files) -> Task:
    table = files.test(spec.text1, spec.text2)
    columns = table.texts(spec.text1), table.texts(spec.text2), table.numbers(spec.score)
    return SimilarityTask(spec.name, *columns, **_common(spec))


def _pairs(spec: TaskSpec, files: _Files) -> Task:
    table = files.test(spec.text1, spec.text2)
    alike = _alike(spec, table)
    return PairTask(spec.name, table.texts(spec.text1), table.texts(spec.text2), alike, **_common(spec))


def _alike(spec: TaskSpec, table: Table) -> list[bool]:
    labels = table.labels(spec.label)
    if spec.positive is not None:
        positive = str(int(spec.positive)) if isinstance(spec.positive, bool) else str(spec.positive)
        if positive not in labels:
            raise DataError(
                f'no row has the label "{positive}"',
                where=f"{table.source}, column {spec.label}",
                remedy=nearest(positive, set(labels)),
            )
        return [label == positive for label in labels]
    meaning = {"1": True, "0": False, "true": True, "false": False}
    for row, label in enumerate(labels):
        if label.lower() not in meaning:
            remedy = "Say which label means alike with the key positive."
            raise DataError(f'0 or 1 was expected, not "{label}"', where=table.where(row, spec.label), remedy=remedy)
    return [meaning[label.lower()] for label in labels]


def _clustering(spec: TaskSpec, files: _Files) -> Task:
    table = files.test(spec.text)
    columns = table.texts(spec.text), table.labels(spec.label)
    return ClusteringTask(spec.name, *columns, max_items=spec.max_items, **_common(spec))


def _retrieval(spec: TaskSpec, files: _Files) -> Task:
    if spec.test is not None:
        table = files.test(spec.query, spec.document)
        pairs = table.texts(spec.query), table.texts(spec.document)
        return RetrievalTask.from_pairs(spec.name, *pairs, **_common(spec))
    queries, corpus, qrels = (files.table(key) for key in ("queries", "corpus", "qrels"))
    query_row = _rows_by_id(queries)
    document_row = _rows_by_id(corpus)
    relevance: dict[int, dict[int, float]] = {}
    query_column = _first(qrels, "query_id", "query-id")
    document_column = _first(qrels, "doc_id", "corpus_id", "corpus-id")
    grade_column = _first(qrels, "relevance", "score")
    judged = zip(qrels.labels(query_column), qrels.labels(document_column), qrels.numbers(grade_column), strict=True)
    for row, (query, document, grade) in enumerate(judged):
        for name, known, column in (
            (query, query_row, query_column),
            (document, document_row, document_column),
        ):
            if name not in known:
                raise DataError(f'there is no item with the id "{name}"', where=qrels.where(row, column))
        relevance.setdefault(query_row[query], {})[document_row[document]] = grade
    documents = corpus.texts(spec.text)
    if corpus.has("title"):
        documents = [
            f"{row.get('title') or ''} {text}".strip() for row, text in zip(corpus.rows, documents, strict=True)
        ]
    return RetrievalTask(spec.name, queries.texts(spec.text), documents, relevance, **_common(spec))


def _first(table: Table, *names: str) -> str:
    found = next((name for name in names if table.has(name)), None)
    if found is None:
        raise DataError(f"one of the columns {', '.join(names)} is needed", where=table.source)
    return found


def _rows_by_id(table: Table) -> dict[str, int]:
    column = _first(table, "_id", "id")
    rows: dict[str, int] = {}
    for row, name in enumerate(table.labels(column)):
        if name in rows:
            raise DataError(f'the id "{name}" is there twice', where=table.where(row, column))
        rows[name] = row
    return rows


_BUILDERS = {
    "classification": _classification,
    "regression": _regression,
    "pairs": _pairs,
    "similarity": _similarity,
    "clustering": _clustering,
    "retrieval": _retrieval,
    "perceptron": _perceptron,
}
