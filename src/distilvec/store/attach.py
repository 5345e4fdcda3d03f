"""Row numbers of a store as a column of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from distilvec.corpus.keys import content_keys
from distilvec.errors import DataError, DistilvecError, nearest

_CHUNK = 10_000


def attach_rows(rows_of: Callable[[np.ndarray], np.ndarray], dataset: Any, text: str) -> Any:
    """Return what `SignalStore.attach` does; `rows_of` is the store's `rows`.

    Raises:
        DistilvecError: no dataset, no such column, or a column "label" already.
        DataError: naming the first text that the store has nothing for.
    """
    columns = getattr(dataset, "column_names", None)
    if not columns or not hasattr(dataset, "add_column") or not hasattr(dataset, "__len__"):
        raise DistilvecError(f"expected a datasets.Dataset with columns, found {type(dataset).__name__}")
    if text not in columns:
        raise DistilvecError(f'the dataset has no column "{text}"', remedy=nearest(text, columns))
    if "label" in columns:
        raise DistilvecError(
            'the dataset has a column "label" already',
            remedy='Rename or remove it: sentence-transformers hands the column "label" to the loss.',
        )
    rows = np.empty(len(dataset), dtype=np.int64)
    for start in range(0, len(dataset), _CHUNK):
        texts = dataset[start : start + _CHUNK][text]
        empty = next((row for row, each in enumerate(texts) if not isinstance(each, str)), None)
        if empty is not None:
            raise DataError(
                f"this is {type(texts[empty]).__name__}, not a text",
                where=f"row {start + empty} of the dataset",
                remedy="Leave the row out.",
            )
        chunk_rows = rows_of(content_keys(texts))
        if (chunk_rows < 0).any():
            first = int(np.flatnonzero(chunk_rows < 0)[0])
            raise DataError(
                f"the store has no vector for the text {texts[first][:120]!r}",
                where=f"row {start + first} of the dataset",
                remedy="Teach it first: distilvec teach, or distilvec.store.fill.",
            )
        rows[start : start + len(texts)] = chunk_rows
    return dataset.add_column("label", rows)
