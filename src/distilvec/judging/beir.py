"""BEIR's three files as one retrieval task, and a word on what contradicts itself in them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from distilvec.corpus.keys import folded, is_blank
from distilvec.errors import DataError
from distilvec.judging.retrieval import RetrievalTask
from distilvec.judging.spec import TaskSpec
from distilvec.judging.tables import TaskTable

logger = logging.getLogger(__name__)
#: What each line of the qrels says, under the names that its columns have.
_QUERY, _DOCUMENT, _GRADE = ("query_id", "query-id"), ("doc_id", "corpus_id", "corpus-id"), ("relevance", "score")


def beir_task(spec: TaskSpec, queries: TaskTable, corpus: TaskTable, qrels: TaskTable, **options: Any) -> RetrievalTask:
    """The task of three files; documents without text are left out.

    Args:
        options: `domain` and `seed`.

    Raises:
        DataError: a column is missing, an id stands twice, or a line of the qrels names what is not there or judges a
            pair again with another degree.
    """
    # "text" is BEIR's; a column that is named goes before it, and one called as in a single file is found without it.
    asked_column, text_column = (
        present_column(table, *((named, spec.text) if key in spec.model_fields_set else (spec.text, named)))
        for table, key, named in ((queries, "query", spec.query), (corpus, "document", spec.document))
    )
    columns = [_first(qrels, *names) for names in (_QUERY, _DOCUMENT, _GRADE)]
    judged = [*zip(qrels.labels(columns[0]), qrels.labels(columns[1]), qrels.numbers(columns[2]), strict=True)]
    corpus, blank = _without_blank(corpus, text_column, {document for _, document, grade in judged if grade > 0})
    asked, documents = queries.texts(asked_column), corpus.texts(text_column, before="title")
    query_row, document_row = _rows_by_id(queries, asked), _rows_by_id(corpus, documents)
    relevance: dict[int, dict[int, float]] = {}
    absent: list[tuple[int, str, str]] = []
    for row, (query, document, grade) in enumerate(judged):
        place, found = _find(query_row, query), _find(document_row, document)
        if place is None or (found is None and document not in blank):
            absent.append((row, *((query, columns[0]) if place is None else (document, columns[1]))))
        elif found is not None:
            before = relevance.setdefault(place, {}).setdefault(found, grade)
            if before != grade:
                raise DataError(
                    f"this query and document have the degree {before:g} above, and {grade:g} here",
                    where=qrels.where(row, columns[2]),
                    remedy="Keep one of them.",
                )
    if absent:
        row, name, column = absent[0]
        raise DataError(
            f'there is no item with the id "{name}"; {len(absent):,} of {len(judged):,} lines name what is not there',
            where=qrels.where(row, column),
            remedy="Give the whole files, or take these lines out; an id has to be spelt in one way.",
        )
    own = _own(asked, documents, relevance, [document_row.get(name, -1) for name in query_row])
    task = RetrievalTask(spec.name, asked, documents, relevance, own=own, **options)
    for remark in task.remarks(task.facts):
        logger.warning("task %s: %s", spec.name, remark)
    return task


def present_column(table: TaskTable, *columns: str) -> str:
    """The first of the columns that the table has; where it has none, the first."""
    return next((column for column in columns if table.has(column)), columns[0])


def _first(table: TaskTable, *names: str) -> str:
    if any(table.has(name) for name in names):
        return present_column(table, *names)
    remedy = f"It has: {', '.join(map(str, table.rows[0]))[:200]}."
    header = " ".join(map(str, table.rows[0])).split()
    if len(header) == 4 and header[1] in ("0", "Q0"):
        remedy = (
            "This is TREC's form, which names no columns: (printf 'query-id\\tcorpus-id\\tscore\\n'; "
            'awk \'{print $1"\\t"$3"\\t"$4}\' FILE) > qrels.tsv'
        )
    raise DataError(f"one of the columns {', '.join(names)} is needed", where=table.source, remedy=remedy)


def _find(rows: Mapping[str, int], name: str) -> int | None:
    """The row of an id; 7.0, as frames with a gap write the number, is 7 where only the other is there."""
    other = name.removesuffix(".0") if name.endswith(".0") else f"{name}.0"
    return rows.get(name, rows.get(other))


def _rows_by_id(table: TaskTable, texts: list[str]) -> dict[str, int]:
    column = _first(table, "_id", "id")
    rows: dict[str, int] = {}
    for row, name in enumerate(table.labels(column)):
        if name in rows:
            first = rows[name]
            other = "the same" if texts[first] == texts[row] else "another"
            raise DataError(
                f'the id "{name}" is there twice, in {table.unit} {table.lines[first]} too, with {other} text',
                where=table.where(row, column),
                remedy="Leave one of them out, or give it an id of its own.",
            )
        rows[name] = row
    return rows


def _without_blank(corpus: TaskTable, text: str, right: set[str]) -> tuple[TaskTable, set[str]]:
    """Leave out documents without a title and a text, which some published sets have, and say their ids.

    Args:
        right: ids of those that are right for a query; such a one is an error, later, if it is blank.
    """
    ids = corpus.labels(_first(corpus, "_id", "id"))
    blank = [
        text in row and all(is_blank(str(row.get(column) or "")) for column in (text, "title")) and name not in right
        for row, name in zip(corpus.rows, ids, strict=True)
    ]
    if not any(blank) or all(blank):
        return corpus, set()
    logger.info("%s: %d documents without text are left out", corpus.source, sum(blank))
    rest = corpus.take(row for row, each in enumerate(blank) if not each)
    return rest, {name for name, each in zip(ids, blank, strict=True) if each}


def _own(
    queries: list[str], documents: list[str], relevance: dict[int, dict[int, float]], same_id: list[int]
) -> list[int] | None:
    """The document that each query is itself: of the same id, and with its text. In many sets both sides are numbered,
    and the same number says nothing.
    """
    own = list(same_id)
    for row, (text, found) in enumerate(zip(queries, same_id, strict=True)):
        judged = found >= 0 and relevance.get(row, {}).get(found, 0.0) > 0
        if judged or (found >= 0 and folded(text) not in folded(documents[found])):
            own[row] = -1
    return own if max(own, default=-1) >= 0 else None
