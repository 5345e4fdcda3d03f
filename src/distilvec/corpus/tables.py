"""Corpora given from Python: frames, Arrow tables, data sets and lists as rows; everything else is refused.

Iterating over a frame gives the names of its columns, and over a dictionary of splits their names: both would be
trained on as if they were the texts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain, islice
from pathlib import Path
from typing import Any

from distilvec.corpus.opening import COMPRESSED
from distilvec.corpus.readers import SUFFIXES
from distilvec.corpus.rows import refuse_repeated
from distilvec.errors import DataError, DistilvecError

#: Of a source without a length and without `corpus.limit`: one that never ends would fill the disk.
MOST_UNCOUNTED = 10_000_000
_BATCH = 1000
_LOOKED_AT = 100
_REMEDY = "Give a file, a list of texts or of dictionaries, a frame, an Arrow table, or a datasets.Dataset."


def is_dataset(source: Any) -> bool:
    """Tell whether it is of the library `datasets`."""
    library = sys.modules.get("datasets")
    if library is None:
        return False
    kinds = (library.Dataset, library.IterableDataset, library.DatasetDict, library.IterableDatasetDict)
    return isinstance(source, kinds)


def chosen_split(dataset: Any, name: str = "the data set") -> Any:
    """The split "train" of a dictionary of splits, or its only one; any other data set as it is.

    Raises:
        DataError: several splits, and none is called train.
    """
    if not isinstance(dataset, Mapping):
        return dataset
    splits = list(dataset)
    if "train" not in splits and len(splits) != 1:
        raise DataError(
            f'there are several splits and none is called "train": {", ".join(map(str, splits))}',
            where=name,
            remedy="Give one of them.",
        )
    return dataset["train" if "train" in splits else splits[0]]


def is_table(source: Any) -> bool:
    """Tell whether it has columns: a frame of pandas or polars, or whatever else gives Arrow tables."""
    return _is_pandas(source) or hasattr(source, "__arrow_c_stream__") or hasattr(source, "__arrow_c_array__")


def table_rows(table: Any) -> Iterator[Any]:
    """The rows of a table as dictionaries from column names to values; of a single column without name, its values.

    What pandas takes for missing is None.
    """
    return _pandas_rows(table) if _is_pandas(table) else _arrow_rows(table)


def given_rows(source: Any, limit: int | None = None) -> Iterator[Any]:
    """Rows of whatever Python value a corpus can be made of: texts, or mappings from column to value.

    Args:
        source: list or generator of texts or mappings, frame of pandas or polars, Arrow table, data set.

    Raises:
        DistilvecError: it is nothing of the kind, names of files, or has no end that is known of.
        DataError: there are splits and none is called train; see `table_rows`.
    """
    if is_dataset(source):
        dataset = chosen_split(source)
        rows = iter(dataset.with_format(None))
        counted = hasattr(dataset, "__len__")
    elif is_table(source):
        rows, counted = table_rows(source), isinstance(source, Sized)
    else:
        rows, counted = no_files(check_iterable(source)), isinstance(source, Sized)
    if limit is None and not counted:
        return _ending(rows)
    return islice(rows, limit)


def check_iterable(source: Any) -> Iterable[Any]:
    """Return what is neither data set nor table, if it gives rows when it is iterated over."""
    what = type(source).__name__
    if isinstance(source, Mapping):
        raise DistilvecError(
            "a dictionary of columns is no corpus: going through it gives their names",
            where="corpus",
            remedy="Give rows: a list of dictionaries, or datasets.Dataset.from_dict(...).",
        )
    if isinstance(source, set | frozenset):
        raise DistilvecError(
            f"a {what} has another order in every run, and no run could be repeated",
            where="corpus",
            remedy="Give sorted(...) of it.",
        )
    columns = any(hasattr(type(source), name) for name in ("columns", "column_names"))
    if columns or not isinstance(source, Iterable) or isinstance(source, str | bytes | bytearray | os.PathLike):
        raise DistilvecError(f"a corpus cannot be read from {what}", where="corpus", remedy=_REMEDY)
    return source


def no_files(rows: Iterable[Any]) -> Iterator[Any]:
    """The rows, but for a list of files: what a search for shards gives would be trained on as if names were texts."""
    coming, seen = iter(rows), list[Any]()
    for row in islice(coming, _LOOKED_AT):
        seen.append(row)
        if not _looks_like_a_file(row):  # no more of what may be a generator of large rows
            return chain(seen, coming)
    if are_files(seen):
        raise DistilvecError(
            f"these are files, not texts ({seen[0]})", where="corpus", remedy="Give their folder, or one file."
        )
    return chain(seen, coming)


def are_files(rows: Sequence[Any]) -> bool:
    """Tell whether a list names files: its first hundred have the suffixes of files, and one of them is there.

    Texts that only look like paths are texts; but a list of shards of which one has moved is still one of files.
    """
    seen = rows[:_LOOKED_AT]
    return all(map(_looks_like_a_file, seen)) and any(os.path.isfile(str(row)) for row in seen)


def _looks_like_a_file(row: Any) -> bool:
    if not isinstance(row, str | os.PathLike) or len(name := str(row)) > 1000 or "\n" in name:
        return False
    return Path(name).suffix.lower() in {*SUFFIXES, *COMPRESSED}


def _ending(rows: Iterator[Any]) -> Iterator[Any]:
    yield from islice(rows, MOST_UNCOUNTED)
    if next(rows, rows) is not rows:
        raise DistilvecError(
            f"it goes on after {MOST_UNCOUNTED:,} rows, and may have no end",
            where="corpus",
            remedy="Set corpus.limit, or write the rows into a file.",
        )


def _is_pandas(source: Any) -> bool:
    return all(hasattr(source, name) for name in ("iloc", "columns", "itertuples"))


def _pandas_rows(frame: Any) -> Iterator[dict[str, Any]]:
    names = [str(name) for name in frame.columns]
    refuse_repeated(names, "corpus")
    for start in range(0, len(frame), _BATCH):
        part = frame.iloc[start : start + _BATCH]
        columns = [part.iloc[:, place].astype(object) for place in range(len(names))]
        values = [column.where(column.notna(), None).tolist() for column in columns]
        for row in zip(*values, strict=True):
            yield dict(zip(names, row, strict=True))


def _arrow_rows(source: Any) -> Iterator[Any]:
    import pyarrow as pa

    try:
        for piece in _pieces(source):
            if isinstance(piece, pa.RecordBatch):
                refuse_repeated(piece.schema.names, "corpus")
            for start in range(0, len(piece), _BATCH):
                yield from piece.slice(start, _BATCH).to_pylist()
    except pa.ArrowException as error:
        raise DataError(f"this {type(source).__name__} cannot be read as a table ({error})", where="corpus") from error


def _pieces(source: Any) -> Iterable[Any]:
    """Record batches of a table, or arrays of what is a single column."""
    import pyarrow as pa

    if not hasattr(source, "__arrow_c_stream__"):
        return [pa.array(source)]
    try:
        return pa.RecordBatchReader.from_stream(source)
    except pa.ArrowException:  # a stream of one column, not of rows
        return pa.chunked_array(source).chunks
