"""Queries with a truth: what a search on the old index should find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.errors import DataError, DistilvecError
from distilvec.indexes.rows import top
from distilvec.judging.tables import read_table
from distilvec.judging.tasks import overlap
from distilvec.teachers.vector_files import read_vectors

DEPTH = 10


@dataclass(frozen=True)
class Queries:
    """Queries and their truth.

    Attributes:
        texts: distinct.
        relevant: the right documents of each, each as the rows of the index that hold its text; empty where no document
            was given.
        vectors: [q, D], the old model's; None where they are not known.
        first: [n], of each row of the index the first that has its text.
    """

    texts: list[str]
    relevant: list[list[set[int]]]
    vectors: npt.NDArray[np.floating] | None
    first: npt.NDArray[np.int64]

    def scores(self, asked: npt.NDArray[np.floating], index: npt.NDArray[np.floating]) -> dict[str, float | int]:
        """Return what a search with these vectors finds.

        Args:
            asked: [q, D], of the queries.
            index: [n, D].

        Returns:
            `queries`; where documents are given `recall`, the mean share of a query's documents among the first ten,
            and `old_recall`, the same of the old model's vectors; where those are given `overlap`, the mean share of
            the old model's first ten that are found. Copies of a text are one document: whoever finds one of them has
            found it.
        """
        found = top(asked, index, DEPTH)
        scores: dict[str, float | int] = {"queries": len(self.texts)}
        old = None if self.vectors is None else top(self.vectors, index, DEPTH)
        if any(self.relevant):
            scores["recall"] = self._recall(found)
            if old is not None:
                scores["old_recall"] = self._recall(old)
        if old is not None:
            scores["overlap"] = overlap(self.first[old], self.first[found])
        return scores

    def _recall(self, found: npt.NDArray[np.int64]) -> float:
        pairs = zip(found.tolist(), self.relevant, strict=True)
        shares = [np.mean([not right.isdisjoint(rows) for right in rights]) for rows, rights in pairs if rights]
        return float(np.mean(shares))


def read_queries(
    queries: str | Path | Sequence[Mapping[str, Any]],
    vectors: str | Path | npt.NDArray[np.floating] | None,
    texts: Sequence[str],
    width: int,
) -> Queries:
    """Read queries, and look their documents up in the index.

    Args:
        queries: file (.jsonl, .csv, .tsv, .parquet) or rows with `query` and, where it is known, `document`: the text
            of a row of the index. A query with several documents has several rows.
        vectors: the old model's vectors of the rows of `queries`, [r, D]; None where they are not known.
        texts: of the index.
        width: D.

    Raises:
        DataError: the file cannot be read, there are no queries, a document that is not in the index, or vectors of
            another number or width.
        DistilvecError: neither documents nor vectors say what is right.
    """
    file = Path(queries).expanduser() if isinstance(queries, str | Path) else None
    if file is not None and file.is_dir():
        raise DataError("this is a folder, and a file of queries is needed", where=str(file), remedy="Name the file.")
    table = read_table(queries if file is None else file, "queries")  # type: ignore[arg-type]
    asked = table.texts("query")
    places: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        places.setdefault(text, []).append(place)
    relevant: dict[str, dict[str, set[int]]] = {query: {} for query in asked}
    for row, query in enumerate(asked):
        document = table.rows[row].get("document")
        if document is None or document == "":  # a .csv has no other way to leave it out
            continue
        if not isinstance(document, str) or document not in places:
            raise DataError(
                f"the document {repr(document)[:80]} is not a text of the index",
                where=table.where(row, "document"),
                remedy="Give it as it stands in the index, letter by letter.",
            )
        relevant[query][document] = set(places[document])
    if vectors is None and not any(relevant.values()):
        raise DistilvecError(
            "nothing says what these queries should find",
            where=table.source,
            remedy='Give each its "document", or the old model\'s vectors of the queries (--query-vectors).',
        )
    rights = [list(each.values()) for each in relevant.values()]
    copies = np.fromiter((places[text][0] for text in texts), np.int64, len(texts))
    known = None
    if vectors is not None:
        first = {query: row for row, query in reversed([*enumerate(asked)])}
        known = _vectors_of(vectors, asked, width)[[first[query] for query in relevant]]
    return Queries(list(relevant), rights, known, copies)


def _vectors_of(
    vectors: str | Path | npt.NDArray[np.floating], queries: Sequence[str], width: int
) -> npt.NDArray[np.float32]:
    """The old model's vectors of the queries, float32 [r, D]."""
    known, _ = read_vectors(vectors, queries, name="query_vectors")
    if known.shape[1] != width or not np.isfinite(known).all():
        raise DataError(
            f"the queries' vectors have {known.shape[1]} numbers, which have to be finite, and as many as the index's, "
            f"{width}",
            where=str(vectors) if isinstance(vectors, str | Path) else "query_vectors",
            remedy="Give what the old model made of the same rows.",
        )
    return np.asarray(known, np.float32)
