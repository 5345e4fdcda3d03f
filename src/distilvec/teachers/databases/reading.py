"""The vectors of a database and their texts, in an order that follows from the content.

Databases keep no order: a row that is written again may move to the end. So rows are sorted by their text here, and a
teacher's fingerprint, which covers them in order, is the same for as long as texts and vectors are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from hashlib import blake2b
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.corpus.readers import read_file
from distilvec.corpus.rows import Row, excerpt
from distilvec.errors import DataError, DistilvecError
from distilvec.files import scratch
from distilvec.teachers.databases.address import TableAddress
from distilvec.teachers.databases.opening import PAGE, opened
from distilvec.teachers.vector_tables import (
    LONGEST,
    LOOKED_AT,
    Spool,
    Vector,
    checked_text,
    place,
    text_column,
    vector_column,
)

logger = logging.getLogger(__name__)
_BY_ID = "With the ids of the database, they are in a file with the columns id and text."
TextOf = Callable[[Mapping[str, Any], int], str | None]


def read_database(address: TableAddress, texts: Any) -> tuple[Vector, list[str]]:
    """The vectors float32 [n, D] of a table, on disk, NaN where a row has none, and their texts, both sorted.

    Args:
        texts: name of the column of the texts, None = "text"; or a file with "id" and "text", whose ids are those of
            the database. Rows without a text are left out.
    """
    if not (texts is None or isinstance(texts, str | Path)):
        raise DistilvecError(
            "rows of a database have no order, so texts cannot belong to them in turn",
            where=address.where,
            remedy=f"Set texts to the column of the texts. {_BY_ID}",
        )
    where = address.where
    with opened(address) as rows:
        with closing(rows(None)) as all_columns:
            start = [Row(where, number, row) for number, row in enumerate(islice(all_columns, LOOKED_AT), 1)]
        if not start:
            raise DataError("there are no rows", where=where, remedy="Is it the right table?")
        text = text_column(start, str(texts) if isinstance(texts, Path) else texts, where)
        spool = Spool(where, vector_column(start, address.column, text, where))
        has_ids = any("id" in row.value for row in start)
        if text is None and not has_ids:
            raise DataError('there is no column "id"', where=where, remedy=f"Set texts to a column. {_BY_ID}")
        text_of = _from_column(text, where) if text is not None else _from_file(Path(str(texts)).expanduser())
        columns = dict.fromkeys([spool.column, *([] if text is None else [text]), *(["id"] if has_ids else [])])
        found = _read(spool, rows(list(columns)), text_of, where)
    return _sorted(spool.vectors(), found, where)


def _read(spool: Spool, rows: Iterable[Mapping[str, Any]], text_of: TextOf, where: str) -> list[str | None]:
    """Put all vectors into the spool; the text of each, None where it has none."""
    texts = []
    for number, row in enumerate(rows, 1):
        spool.add_cell(row.get(spool.column), f"{where}, id {row['id']}" if "id" in row else f"{where}, row {number}")
        texts.append(text_of(row, number))
    without = texts.count(None)
    if without == len(texts):
        raise DataError(
            f"none of the {without} rows has a text", where=where, remedy="Are the column or the ids right?"
        )
    if without:
        logger.info("%s: %d of %d rows have no text and are left out", where, without, len(texts))
    return texts


def _from_column(column: str, where: str) -> TextOf:
    def text_of(row: Mapping[str, Any], number: int) -> str | None:
        text = row.get(column)
        return None if text is None else checked_text(text, where, number)

    return text_of


def _from_file(file: Path) -> TextOf:
    """The texts of a file by their id, a number or a string in either place."""
    texts: dict[str, str] = {}
    for row in read_file(file, None, LONGEST):
        if row.fault == "empty":
            continue
        fields = row.value if row.fault is None and isinstance(row.value, Mapping) else {}
        identity, text = fields.get("id"), fields.get("text")
        if identity is None or not isinstance(text, str):
            raise DataError("this row has not both an id and a text", where=place(row), remedy=_BY_ID)
        if texts.setdefault(str(identity), text) != text:
            raise DataError(f'the id "{identity}" comes twice, with different texts', where=place(row))
    return lambda row, number: texts.get(str(row.get("id")))


def _sorted(vectors: Vector, texts: list[str | None], where: str) -> tuple[Vector, list[str]]:
    """Rows with a text in the order of the texts, those of one text in an order of their vectors."""

    def digest(row: int) -> bytes:
        return blake2b(vectors[row].tobytes(), digest_size=16).digest()

    there = {row: text for row, text in enumerate(texts) if text is not None}
    runs = groupby(sorted(there, key=there.__getitem__), key=there.__getitem__)
    order = list(chain.from_iterable(sorted(run, key=digest) for _, run in runs))
    width = vectors.shape[1]
    result = scratch(len(order) * width, np.float32).reshape(len(order), width)
    for start in range(0, len(order), PAGE):
        rows = order[start : start + PAGE]
        part = result[start : start + PAGE] = vectors[rows]
        wrong = np.flatnonzero(~np.isfinite(part).all(axis=1) & ~np.isnan(part).all(axis=1))
        if len(wrong):
            raise DataError(
                f'the vector of "{excerpt(there[rows[wrong[0]]])}" has values that are not finite, or too large for '
                "float32",
                where=where,
                remedy="Where there is no vector, let it be null.",
            )
    return result, [there[row] for row in order]
