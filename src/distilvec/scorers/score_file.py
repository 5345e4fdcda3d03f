"""Scores made elsewhere, such as click logs or a large model's judgements, found by query and document."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.corpus.parquet import parquet_rows
from distilvec.errors import DataError
from distilvec.judging.tables import TaskTable, read_table
from distilvec.scorers.base import Scorer, parted, text_pair_keys
from distilvec.teachers.base import Capabilities
from distilvec.teachers.cards import TeacherCard, fingerprint

COLUMNS = ("query", "document", "score")
#: Rows of a parquet file that are read at once.
_PART = 65_536


class TableScorer(Scorer):
    """Scores of a table with the columns query, document and score; NaN for all other pairs.

    Args:
        scores: .parquet, .jsonl, .json, .csv or .tsv (also .gz, .zst), or rows.
        name: in messages.

    Attributes:
        card: who it is. Its fingerprint covers all rows.

    Raises:
        DataError: a column is missing, a value is no text or no finite number, or a pair has two different scores;
            naming the row.
    """

    can = Capabilities(made=True, gaps=True)

    def __init__(self, scores: str | Path | Sequence[Any], *, name: str = "scorer") -> None:
        by_key, digest, source = dict[bytes, float](), hashlib.blake2b(digest_size=16), ""
        for table in _tables(scores):
            source = table.source
            keys, values = _columns(table)
            digest.update(keys.tobytes() + values.tobytes())
            for row, (key, value) in enumerate(zip((each.tobytes() for each in keys), values.tolist(), strict=True)):
                before = by_key.setdefault(key, value)
                if before != value:
                    raise DataError(
                        f"this query and document have the score {before:g} above, and {value:g} here",
                        where=table.where(row, COLUMNS[2]),
                        remedy="Keep one of them, or their mean.",
                    )
        # Keys in one sorted array take an eighth of what a dictionary takes.
        words = np.frombuffer(b"".join(by_key), "V16")
        order = np.argsort(words)
        self._keys, self._scores = words[order], np.fromiter(by_key.values(), np.float32, len(by_key))[order]
        self.scores = len(order)
        self.card = TeacherCard(
            name=name, kind="scorer", source=source, fingerprint=fingerprint(digest.hexdigest()), width=1
        )

    def stream(self, texts: Sequence[str]) -> Generator[tuple[np.ndarray, np.ndarray]]:
        """Joint texts -> (positions int64 [n], float32 [n, 1]), NaN where the table has none."""
        place, known = self._find(text_pair_keys(parted(texts)))
        scores = np.where(known, self._scores[place], np.float32(np.nan))
        yield np.arange(len(texts)), scores.astype(np.float32)[:, None]

    def knows(self, keys: np.ndarray) -> np.ndarray:
        return self._find(keys)[1]

    def _find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places int64 [n] among its own of keys uint8 [n, 16], and whether they are there: bool [n]."""
        wanted = np.ascontiguousarray(keys).view("V16")[:, 0]
        place = np.searchsorted(self._keys, wanted).clip(max=len(self._keys) - 1)
        return place, self._keys[place] == wanted


def _columns(table: TaskTable) -> tuple[np.ndarray, np.ndarray]:
    """Keys uint8 [n, 16] and scores float32 [n] of a table's rows."""
    queries, documents = table.texts(COLUMNS[0]), table.texts(COLUMNS[1])
    with np.errstate(over="ignore"):
        values = np.asarray(table.numbers(COLUMNS[2]), np.float32)
    too_large = np.flatnonzero(~np.isfinite(values))
    if len(too_large):
        raise DataError("this is too large for a score", where=table.where(int(too_large[0]), COLUMNS[2]))
    return text_pair_keys(list(zip(queries, documents, strict=True))), values


def _tables(scores: str | Path | Sequence[Any]) -> Iterator[TaskTable]:
    """The rows, those of a parquet file in parts: logs are long.

    Raises:
        DataError: there is no such file, it cannot be read, or it has no rows.
    """
    if not isinstance(scores, str | Path) or Path(scores).suffix != ".parquet":
        yield read_table(scores)
        return
    source, rows = str(scores), parquet_rows(Path(scores), None)
    found = False
    while part := list(islice(rows, _PART)):
        found = True
        yield TaskTable(source, [row.value for row in part], [row.line for row in part], "row")
    if not found:
        raise DataError("there are no rows", where=source)
