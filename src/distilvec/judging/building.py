"""Tasks made of their descriptions."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from distilvec.corpus.keys import folded
from distilvec.errors import DataError, DistilvecError, nearest
from distilvec.files import home
from distilvec.judging.beir import beir_task, present_column
from distilvec.judging.clustering import ClusteringTask
from distilvec.judging.generation import GenerationTask
from distilvec.judging.neighbours import NeighbourTask
from distilvec.judging.perceptron import IMAGES, MOLECULES, PerceptronTask
from distilvec.judging.probe_items import ProbeItems, image_table
from distilvec.judging.probes import ClassificationTask, Columns, RegressionTask
from distilvec.judging.retrieval import RetrievalTask
from distilvec.judging.similarity import PairTask, SimilarityTask
from distilvec.judging.spec import TaskSpec
from distilvec.judging.tables import TaskTable, read_table
from distilvec.judging.tasks import JudgingTask, folded_parts
from distilvec.tasks.labels import plain_label

logger = logging.getLogger(__name__)
#: Neither a path of an image nor most molecules.
_ID = re.compile(r"(?=.*\d)[\w:#-]{1,40}", re.ASCII)
#: Share of the documents.
_NEARLY_ALL = 0.95
_WITH_IDS = "Where documents have ids, or a query several: give queries, corpus and qrels in place of test."


def build_judging_task(spec: TaskSpec, folder: Path) -> JudgingTask:
    return _BUILDERS[spec.kind](spec, _Files(spec, folder))


class _Files:
    """Reads a description's files, with paths relative to one folder."""

    def __init__(self, spec: TaskSpec, folder: Path) -> None:
        self._spec, self.folder = spec, folder
        self._excluded = folded_parts(spec.exclude)

    def table(self, key: str) -> TaskTable:
        source = getattr(self._spec, key)
        if source is None:
            where = f"task {self._spec.name}"
            raise DistilvecError(f'the key "{key}" is missing, {self._spec.kind} needs it', where=where)
        return read_table(self.folder / home(source) if isinstance(source, str) else source)

    def items(self, key: str) -> tuple[TaskTable, str, str]:
        """A table of labelled images or molecules, and its columns of items and answers."""
        spec, source = self._spec, getattr(self._spec, key)
        images = spec.probe == "images"
        answer = spec.score if spec.target == "regression" else spec.label
        text = "image" if images and "text" not in spec.model_fields_set else spec.text
        pictures = image_table(self.folder / home(source), text, answer) if images and isinstance(source, str) else None
        if pictures and key == "test" and spec.exclude:
            raise DistilvecError("exclude is for tables: leave the images out of the folder", where=f"task {spec.name}")
        table = pictures or self.table(key)
        return table, text if pictures or table.has(text) else spec.text, answer

    def test(self, *columns: str) -> TaskTable:
        """The test table, less the items that have an excluded text in one of the columns."""
        table = self.table("test")
        if not self._excluded:
            return table
        texts = zip(*(table.texts(column) for column in columns), strict=True)
        kept = [i for i, item in enumerate(texts) if not any(folded(text) in self._excluded for text in item)]
        if not kept:
            what = f"all {len(table.rows)} test items are excluded"
            raise DataError(what, where=table.source, remedy="See its exclude.")
        return table.take(kept)


def _probe(spec: TaskSpec, files: _Files) -> JudgingTask:
    regression = spec.kind == "regression"

    def columns(table: TaskTable) -> Columns:
        return table.texts(spec.text), table.numbers(spec.score) if regression else table.labels(spec.label)

    validation = columns(files.table("validation")) if spec.validation is not None else None
    splits = columns(files.table("train")), columns(files.test(spec.text)), validation
    kind = RegressionTask if regression else ClassificationTask
    return kind(spec.name, *splits, **_options(spec, "protocol", "max_train"))


def _perceptron(spec: TaskSpec, files: _Files) -> JudgingTask:
    items = ProbeItems(spec.name, spec.probe == "images")

    def columns(key: str) -> Columns:
        table, text, answer = files.items(key)
        read = TaskTable.numbers if spec.target == "regression" else TaskTable.labels
        excluded = spec.exclude if key == "test" else ()
        return items.columns(table, text, answer, lambda rows: read(rows, answer), files.folder, excluded)

    task = PerceptronTask(
        spec.name,
        columns("train"),
        None if spec.test is None else columns("test"),
        None if spec.validation is None else columns("validation"),
        seeds=range(spec.seeds),
        settings=IMAGES if spec.probe == "images" else MOLECULES,
        rejected=items.rejected,
        contents=items.contents,
        identities=items.identities,
        **_options(spec, "target", "log"),
    )
    items.tell()
    return task


def _options(spec: TaskSpec, *names: str) -> dict[str, Any]:
    """All that a description says under these keys, and under those of every kind."""
    return {name: getattr(spec, name) for name in (*names, "domain", "seed")}


def _similarity(spec: TaskSpec, files: _Files) -> JudgingTask:
    table = files.test(spec.text1, spec.text2)
    columns = table.texts(spec.text1), table.texts(spec.text2), table.numbers(spec.score)
    return SimilarityTask(spec.name, *columns, **_options(spec))


def _pairs(spec: TaskSpec, files: _Files) -> JudgingTask:
    table = files.test(spec.text1, spec.text2)
    alike = _alike(spec, table)
    return PairTask(spec.name, table.texts(spec.text1), table.texts(spec.text2), alike, **_options(spec))


def _alike(spec: TaskSpec, table: TaskTable) -> list[bool]:
    labels = [plain_label(label) for label in table.labels(spec.label)]
    if spec.positive is not None:
        positive = plain_label(spec.positive)
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


def _clustering(spec: TaskSpec, files: _Files) -> JudgingTask:
    table = files.test(spec.text)
    columns = table.texts(spec.text), table.labels(spec.label)
    return ClusteringTask(spec.name, *columns, **_options(spec, "max_items"))


def _retrieval(spec: TaskSpec, files: _Files) -> JudgingTask:
    if spec.test is not None:
        table = files.test(spec.query, spec.document)
        pairs = table.texts(spec.query), _documents(spec, table)
        return RetrievalTask.from_pairs(spec.name, *pairs, **_options(spec))
    queries, corpus, qrels = (files.table(key) for key in ("queries", "corpus", "qrels"))
    return beir_task(spec, queries, corpus, qrels, **_options(spec))


def _documents(spec: TaskSpec, table: TaskTable) -> list[str]:
    """Return the texts of the right documents; ids in their place would be embedded as texts, and give a score."""
    given = table.rows[0].get(spec.document)
    if isinstance(given, list):
        what = f"the text of a document was expected, not the list {given!r}"[:200]
        raise DataError(what, where=table.where(0, spec.document), remedy=_WITH_IDS)
    documents = table.texts(spec.document)
    ids = sum(_ID.fullmatch(text) is not None for text in documents)
    if ids >= _NEARLY_ALL * len(documents):
        told = '%s: the documents in column %s look like ids ("%s"), but are read as texts. %s'
        logger.warning(told, table.source, spec.document, documents[0], _WITH_IDS)
    return documents


def _neighbours_texts(spec: TaskSpec, table: TaskTable) -> list[str]:
    """Return the texts of the corpus; where the column is missing, say which key names it."""
    if not table.has(spec.text):
        columns = ", ".join(f'"{column}"' for column in [*table.rows[0]][:20])
        raise DataError(
            f'there is no column "{spec.text}", but {columns}',
            where=table.source,
            remedy="Name the one with the texts by the key text of the task (retrieval calls it document).",
        )
    return table.texts(spec.text)


def _neighbours(spec: TaskSpec, files: _Files) -> JudgingTask:
    queries = None
    if spec.queries is not None:
        table = files.table("queries")
        queries = table.texts(present_column(table, spec.query, spec.text))
    options = _options(spec, "teacher", "depth", "max_items", "max_queries")
    return NeighbourTask(spec.name, _neighbours_texts(spec, files.table("corpus")), queries, **options)


def _generation(spec: TaskSpec, files: _Files) -> JudgingTask:
    table = files.test(spec.prompt, spec.answer)
    options = _options(spec, "separator", "longest", "samples")
    return GenerationTask(spec.name, table.texts(spec.prompt), table.texts(spec.answer), **options)


_BUILDERS = {
    "generation": _generation,
    "classification": _probe,
    "regression": _probe,
    "pairs": _pairs,
    "similarity": _similarity,
    "clustering": _clustering,
    "retrieval": _retrieval,
    "neighbours": _neighbours,
    "perceptron": _perceptron,
}
