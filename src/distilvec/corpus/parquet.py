"""Rows of parquet files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from distilvec.corpus.opening import reading
from distilvec.corpus.rows import Row, refuse_repeated, require_columns

_BATCH = 2048
_IMAGES = 32  # of which each may have megabytes


def parquet_rows(path: Path, columns: Sequence[str] | None, images: bool = False) -> Iterator[Row]:
    """The rows of a parquet file, with all columns where none are named; with `images`, columns of bytes stay bytes."""
    import pyarrow.parquet as pq

    number = 0
    with reading(path), pq.ParquetFile(path, memory_map=True) as file:
        columns = file.schema_arrow.names if columns is None else columns
        require_columns(columns, file.schema_arrow.names, str(path))
        refuse_repeated([name for name in file.schema_arrow.names if name in columns], str(path))
        for batch in file.iter_batches(batch_size=_IMAGES if images else _BATCH, columns=list(columns)):
            per_column = [arrow_values(column, bytes_are_texts=not images) for column in batch.columns]
            for values in zip(*per_column, strict=True):
                number += 1
                yield Row(str(path), number, dict(zip(batch.schema.names, values, strict=True)))


def parquet_size(path: Path) -> int:
    """The number of rows that a parquet file says it has."""
    import pyarrow.parquet as pq

    with reading(path):
        return int(pq.read_metadata(path).num_rows)


def arrow_values(column: Any, *, bytes_are_texts: bool = True) -> list[Any]:
    """A column as Python values; bytes that are not UTF-8 keep lone surrogates, which the audit rejects."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
    elif not (is_bytes and bytes_are_texts):
        return column.to_pylist()
    return [None if value is None else value.decode("utf-8", "surrogateescape") for value in column.to_pylist()]
