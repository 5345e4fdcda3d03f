"""Scores made elsewhere, such as click logs or a large model's judgements, found by query and document."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.corpus.keys import content_keys, join_pair
from distilvec.errors import DataError
from distilvec.judging.tables import read_table
from distilvec.teachers.cards import TeacherCard, fingerprint

COLUMNS = ("query", "document", "score")


class TableScorer:
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

    gaps = True

    def __init__(self, scores: str | Path | Sequence[Any], *, name: str = "scorer") -> None:
        table = read_table(scores)
        queries, documents = table.texts(COLUMNS[0]), table.texts(COLUMNS[1])
        values = np.asarray(table.numbers(COLUMNS[2]), np.float32)
        keys = content_keys([join_pair(*pair) for pair in zip(queries, documents, strict=True)])
        self._scores: dict[bytes, float] = {}
        for row, (key, value) in enumerate(zip(map(bytes, keys), values.tolist(), strict=True)):
            before = self._scores.setdefault(key, value)
            if before != value:
                raise DataError(
                    f"this query and document have the score {before:g} above, and {value:g} here",
                    where=table.where(row, COLUMNS[2]),
                    remedy="Keep one of them, or their mean.",
                )
        digest = hashlib.blake2b(keys.tobytes() + values.tobytes(), digest_size=16).hexdigest()
        self.card = TeacherCard(
            name=name, kind="scorer", source=table.source, fingerprint=fingerprint(digest), width=1, licence=None
        )

    def stream(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Joint texts -> (positions int64 [n], float32 [n, 1]), NaN where the table has none."""
        found = [self._scores.get(bytes(key), np.nan) for key in content_keys(texts)]
        yield np.arange(len(texts)), np.asarray(found, np.float32).reshape(-1, 1)
