"""Vectors in tables, as programs hand them out: a column of lists, or of texts such as "[0.1, 0.2]", with the texts.

Read are parquet and the files of rows that corpora have (.jsonl, .csv ...), a part at a time: memory holds the texts,
and the vectors go through a temporary file. A cell that is empty, null or missing says that its text has no vector,
which is a row of NaN here. Result lines of OpenAI's batches are rows whose texts stand in the file of the requests.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.corpus.opening import reading
from distilvec.corpus.parquet import arrow_values, parquet_rows
from distilvec.corpus.readers import file_kind, read_file
from distilvec.corpus.rows import Row, excerpt
from distilvec.errors import DataError, nearest

logger = logging.getLogger(__name__)
_BATCH, LONGEST = 2048, 1 << 20
#: Rows that say which columns hold vectors, and names that decide among several.
LOOKED_AT, _USUAL = 64, ("embedding", "vector")
_NOTHING = ("", "null", "none", "nan", r"\n")
Vector = npt.NDArray[np.float32]


def read_vector_table(file: Path, column: str, texts: Any, *, wants_texts: bool) -> tuple[Vector, list[str] | None]:
    """The vectors float32 [n, D] of a table, NaN where a row has none, and its texts.

    Args:
        column: of the vectors; "" = the only one that holds any.
        texts: name of the column of the texts, None = "text"; or texts from elsewhere, which are not read here. Of a
            batch's results, the file of its requests.
        wants_texts: whether texts are asked for at all; None in their place where the table's are not.
    """
    parquet = file_kind(file) == ".parquet"
    rows = _usable(parquet_rows(file, None) if parquet else read_file(file, None, LONGEST))
    start = list(islice(rows, LOOKED_AT))
    if not start:
        raise DataError("there are no rows", where=str(file), remedy="Is it the right file?")
    rows = chain(start, rows)
    if isinstance(start[0].value.get("custom_id"), str) and "response" in start[0].value:
        spool = Spool(str(file), _USUAL[0])
        found = _read_rows(spool, _batch_results(rows, file, texts), "text")
        return spool.vectors(), found
    text = text_column(start, texts, str(file)) if wants_texts else None
    spool = Spool(str(file), vector_column(start, column, text, str(file)))
    if wants_texts and text is None and isinstance(texts, str | Path) and "id" in start[0].value:
        rows = _in_step(_usable(parquet_rows(file, ["id"])) if parquet else rows, Path(texts).expanduser())
        if parquet:  # its vectors are read as blocks
            deque(rows, maxlen=0)
    found = _read_parquet(spool, file, text) if parquet else _read_rows(spool, rows, text)
    return spool.vectors(), found if text is not None else None


def _in_step(rows: Iterable[Row], texts: Path) -> Iterator[Row]:
    """The rows of vectors, as long as none has another id than the text in its place: they go together by order."""
    others = read_file(texts, None, LONGEST) if texts.suffix == ".jsonl" else iter(())
    for row in rows:
        other = next(others, None)
        identity = other.value.get("id") if other is not None and isinstance(other.value, Mapping) else None
        if None not in (identity, row.value.get("id")) and str(identity) != str(row.value["id"]):
            raise DataError(
                f'the vector of the id "{row.value["id"]}" has the text of "{identity}" in its place',
                where=place(row),
                remedy=f"Bring {texts.name} into the order of the vectors, or put the texts into their table.",
            )
        yield row


class Spool:
    """Vectors in a temporary file without a name: the system takes such memory back, and they may be more than it."""

    def __init__(self, where: str, column: str) -> None:
        self._where, self.column = where, column
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the vectors that are mapped from it
        self.rows = self._width = self._missing = 0

    def add(self, vectors: Vector, where: str = "") -> None:
        """Append [b, D], NaN in the rows that have none; [b, 0] where all have none.

        Args:
            where: the place of the rows, if it is known more closely than by their number.
        """
        if vectors.shape[1] and not self._width:
            self._width = vectors.shape[1]
            self._file.write(self._gap(self.rows))
        elif vectors.shape[1] not in (0, self._width):
            raise DataError(
                f'row {self.rows + 1} of "{self.column}" has {vectors.shape[1]} numbers, the vectors before it '
                f"have {self._width}",
                where=where or self._where,
                remedy="They have to come from one model.",
            )
        self.rows += len(vectors)
        self._missing += int(np.isnan(vectors).all(axis=1).sum())
        self._file.write(vectors.tobytes() if vectors.shape[1] else self._gap(len(vectors)))

    def _gap(self, rows: int) -> bytes:
        return np.full((rows, self._width), np.nan, np.float32).tobytes()

    def add_cell(self, value: Any, where: str) -> None:
        """Append what one cell holds."""
        try:
            vector = _parsed(value)
        except (TypeError, ValueError, OverflowError) as problem:
            raise DataError(
                f'{excerpt(value, 40)} in the column "{self.column}" is no vector: {str(problem)[:120]}',
                where=where,
                remedy='A vector is a list of numbers, or a text such as "[0.1, 0.2]".',
            ) from problem
        self.add(np.zeros((1, 0), np.float32) if vector is None else vector[None], where)

    def vectors(self) -> Vector:
        """All rows [n, D], on disk."""
        if not self._width:
            told = f'none of the {self.rows} rows has a vector in the column "{self.column}"'
            raise DataError(told, where=self._where, remedy="Is it the right column?")
        if self._missing:
            logger.info("%s: %d of %d rows have no vector", self._where, self._missing, self.rows)
        self._file.flush()
        return np.memmap(self._file, np.float32, "r", shape=(self.rows, self._width)).view(np.ndarray)


def _read_rows(spool: Spool, rows: Iterable[Row], text: str | None) -> list[str]:
    texts = []
    for row in rows:
        spool.add_cell(row.value.get(spool.column), place(row))
        if text is not None:
            texts.append(checked_text(row.value.get(text), row.file, row.line))
    return texts


def _read_parquet(spool: Spool, file: Path, text: str | None) -> list[str]:
    """As `_read_rows`, lists of numbers as whole blocks."""
    import pyarrow.parquet as pq

    texts = list[str]()
    with reading(file), pq.ParquetFile(file, memory_map=True) as table:
        for batch in table.iter_batches(_BATCH, columns=[spool.column, *([text] if text is not None else [])]):
            first, cells = spool.rows + 1, batch.column(spool.column)
            if is_vectors(cells.type):
                _add_lists(spool, cells)
            else:
                for number, value in enumerate(arrow_values(cells, bytes_are_texts=False), first):
                    spool.add_cell(value, f"{file}, row {number}")
            if text is not None:
                texts += [
                    checked_text(each, str(file), n) for n, each in enumerate(arrow_values(batch.column(text)), first)
                ]
    return texts


def is_vectors(kind: Any) -> bool:
    """Tell whether a type of Arrow is that of lists of numbers."""
    from pyarrow import types

    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and (types.is_floating(kind.value_type) or types.is_integer(kind.value_type))


def _add_lists(spool: Spool, cells: Any) -> None:
    """Append an Arrow array of lists, one stretch of equal lengths after the other."""
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(cells), 0).to_numpy(zero_copy_only=False)
    edges = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)]
    for start, end in pairwise(edges):
        part = cells.slice(start, end - start)
        flat = part.drop_null().flatten().to_numpy(zero_copy_only=False)
        spool.add(np.asarray(flat, np.float32).reshape(end - start, int(lengths[start])))


def place(row: Row) -> str:
    return f"{row.file}, {'row' if row.file.endswith(('.parquet', '.json')) else 'line'} {row.line}"


def _usable(rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        if row.fault == "empty":
            continue
        if row.fault is not None or not isinstance(row.value, Mapping):
            raise DataError(
                f"this row cannot be read: {row.fault or 'it has no columns'}",
                where=place(row),
                remedy="Each row has a text and a vector, under the names of their columns.",
            )
        yield row


def vector_column(rows: Sequence[Row], asked: str, text: str | None, where: str) -> str:
    """The column of the vectors: the one asked for, else the only one, numbers with fractions before whole ones."""
    cells: dict[str, Any] = {}
    for row in rows:
        cells |= {name: cell for name, cell in row.value.items() if _missing(cells.get(name))}
    if asked:
        if asked not in cells:
            raise DataError(f'there is no column "{asked}"', where=where, remedy=nearest(asked, map(str, cells)))
        return asked
    found = [name for name, cell in cells.items() if name != text and _is_vector(cell)]
    broken = [name for name in found if "." in str(cells[name])]
    usual = [name for name in found if name in _USUAL]
    hidden = [name for name in _USUAL if name in cells and _missing(cells[name])]
    if hidden and not usual and (found or len(rows) == LOOKED_AT):
        raise DataError(
            f'the first {len(rows)} rows have nothing in the column "{hidden[0]}"',
            where=where,
            remedy=f'If the vectors are in it, name it: "{where}:{hidden[0]}"; else name the column that they are in.',
        )
    for names in (broken, usual, found):
        if len(names) == 1:
            if names[0] not in _USUAL:
                logger.info('%s: the column "%s" is taken for the vectors', where, names[0])
            return names[0]
    if found:
        told, remedy = f"{len(found)} columns of vectors: {', '.join(found)}", f'Name it: "{where}:COLUMN".'
    else:
        told = f"no column holds vectors ({', '.join(map(str, cells)) or 'there are none'})"
        remedy = 'They are lists of numbers, texts such as "[0.1, 0.2]", or in SQLite packed float32 or float64.'
    raise DataError(told, where=where, remedy=remedy)


def _is_vector(value: Any) -> bool:
    try:
        return _parsed(value) is not None
    except (TypeError, ValueError, OverflowError):
        return False


def _missing(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in _NOTHING
    if isinstance(value, list | np.ndarray):
        return len(value) == 0
    return value is None or (isinstance(value, float) and math.isnan(value))


def _parsed(value: Any) -> Vector | None:
    """float32 [D], None where there is no vector.

    Raises:
        TypeError, ValueError, OverflowError: it is something else.
    """
    if _missing(value):
        return None
    if isinstance(value, str):
        value = value.strip()
        if "..." in value:
            raise ValueError("numpy shows the ends of a long array only; write array.tolist()")
        if value[:1] + value[-1:] not in ("[]", "{}"):
            raise ValueError("it is another text")
        value = value[1:-1].replace(",", " ").split()
    elif isinstance(value, list) and any(isinstance(each, bool | str) for each in value):
        raise TypeError("it has entries that are no numbers")
    elif isinstance(value, bytes):
        raise TypeError("its bytes are no packed float32 or float64")
    elif not isinstance(value, list | np.ndarray):
        raise TypeError(f"it is {type(value).__name__}, not a list of numbers")
    with np.errstate(over="ignore"):
        vector = np.asarray(value, np.float64).astype(np.float32)
    if vector.ndim != 1 or not len(vector):
        raise ValueError(f"its shape is {list(vector.shape)}")
    return vector


def text_column(rows: Sequence[Row], texts: Any, where: str) -> str | None:
    """The column of the texts; None where `texts` are elsewhere."""
    names = list(dict.fromkeys(str(name) for row in rows for name in row.value))
    if texts is None and "text" not in names:
        told, remedy = 'there is no column "text" with the texts', f"Set texts to one of: {', '.join(names)}."
        raise DataError(told, where=where, remedy=remedy)
    if texts is None or (isinstance(texts, str) and texts in names):
        return texts or "text"
    if isinstance(texts, str) and not Path(texts).suffix and not Path(texts).exists():
        raise DataError(f'there is no column "{texts}" with the texts', where=where, remedy=nearest(texts, names))
    return None


def checked_text(text: Any, file: str, number: int) -> str:
    if isinstance(text, str):
        return text
    what = "no text" if text is None else f"{type(text).__name__} instead of a text"
    raise DataError(f"row {number} has {what}", where=file, remedy="Give every vector its text.")


def _batch_results(rows: Iterator[Row], file: Path, requests: Any) -> Iterator[Row]:
    """Rows of text and embedding out of the lines that OpenAI's batches give back, in whatever order those come."""
    remedy = "Give texts: the file of the requests, to whose custom_id these lines belong."
    if not isinstance(requests, str | Path):
        raise DataError("these are results of a batch, which hold no texts", where=str(file), remedy=remedy)
    asked: dict[Any, Any] = {}
    for row in _usable(read_file(Path(requests).expanduser(), None, LONGEST)):
        body = row.value.get("body")
        given = body.get("input") if isinstance(body, Mapping) else None
        asked[str(row.value.get("custom_id"))] = [given] if isinstance(given, str) else given
    for row in rows:
        texts = asked.get(str(row.value.get("custom_id")))
        if not isinstance(texts, list):
            told = f"no request has the custom_id {excerpt(row.value.get('custom_id'))} and texts"
            raise DataError(told, where=place(row), remedy=remedy)
        response = row.value.get("response")
        body = response.get("body") if isinstance(response, Mapping) and response.get("status_code") == 200 else None
        data = body.get("data") if isinstance(body, Mapping) else None
        found = {each.get("index"): each.get("embedding") for each in data or () if isinstance(each, Mapping)}
        for index, text in enumerate(texts):
            yield row._replace(value={"text": text, _USUAL[0]: found.get(index)})
