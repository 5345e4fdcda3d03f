"""Files of vectors and of what they belong to: .npy, parquet, texts one a line, keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.arrays import as_vectors
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem, nearest
from distilvec.system_errors import disk_problems

#: The file's own name, with a column or without: a folder may have the ending too.
_PARQUET = re.compile(r"\.parquet(:[^/\\]*)?$")


def read_vectors(
    vectors: str | Path | np.ndarray, texts: str | Path | Sequence[str] | None = None, *, name: str = "vectors"
) -> tuple[np.ndarray, list[str]]:
    """The rows of an index as they lie there: vectors [n, D], a .npy file stays on disk, and the text of each.

    Args:
        vectors, texts: as for `VectorsTeacher`.
        name: of an array, for messages.

    Raises:
        DataError: a file is missing or not what it has to be, a text is none, or rows and texts differ in number.
        DistilvecError: there are no texts.
    """
    if not isinstance(vectors, str | Path | np.ndarray):
        vectors = as_vectors(vectors, name)
    matrix, table = open_vectors(vectors, texts, name, wants_texts=True)
    if table is None:
        if texts is None:
            raise DistilvecError(
                "vectors need the texts they belong to",
                where=name if isinstance(vectors, np.ndarray) else str(vectors),
                remedy="Give texts (--texts): a file with one text a line, in the order of the vectors.",
            )
        table = list(read_texts(texts))
    wrong = next((row for row, text in enumerate(table) if not isinstance(text, str)), None)
    if wrong is not None:
        raise DataError(f"row {wrong} is {type(table[wrong]).__name__}, not a text", where="texts")
    check_rows(len(matrix), len(table), name if isinstance(vectors, np.ndarray) else str(vectors), "texts")
    return matrix, table


def open_vectors(
    vectors: str | Path | np.ndarray, texts: Any, name: str, *, wants_texts: bool
) -> tuple[np.ndarray, list[str] | None]:
    """The vectors [n, D] and, of a parquet file where they are wanted, the texts.

    Raises:
        DataError: a file is missing or not what it has to be.
    """
    if isinstance(vectors, np.ndarray):
        return _matrix(vectors, name), None
    source = str(vectors)
    if _PARQUET.search(source):
        return _read_parquet(source, texts, wants_texts=wants_texts)
    return _matrix(_load_npy(Path(source)), source), None


def read_texts(texts: str | Path | Sequence[str]) -> Iterable[str]:
    """One text after the other: a file of millions is never held.

    Raises:
        DataError: a file of another kind; as it is read, one that is missing or damaged, or a line that is no text.
    """
    if not isinstance(texts, str | Path):
        return texts
    file = Path(texts).expanduser()
    if file.suffix not in (".txt", ".jsonl"):
        raise DataError(
            f'texts of vectors are read from .txt or .jsonl files, not from "{file.name}"',
            where=str(file),
            remedy="A .txt file has one text a line; texts with line breaks go into .jsonl.",
        )
    return _texts_of(file)


def read_keys(keys: str | Path | np.ndarray | None) -> np.ndarray:
    """Keys uint8 [n, 16], of a .npy file or an array.

    Raises:
        DataError: a file is missing, or they are not of this form.
    """
    array = keys if isinstance(keys, np.ndarray) else _load_npy(Path(str(keys)))
    if array.ndim != 2 or array.shape[1] != 16 or array.dtype != np.uint8:
        where = "keys" if array is keys else str(keys)
        raise DataError(f"expected keys uint8 [n, 16], found {array.dtype} {list(array.shape)}", where=where)
    return np.asarray(array)


def check_rows(vectors: int, items: int, where: str, what: str) -> None:
    """See that there are as many vectors as items.

    Raises:
        DataError: there are not.
    """
    if vectors != items:
        raise DataError(
            f"{vectors} vectors, but {items} {what}",
            where=where,
            remedy="There must be one row per text, in the same order.",
        )


def _matrix(vectors: np.ndarray, where: str) -> np.ndarray:
    if vectors.ndim != 2 or vectors.shape[1] < 1 or vectors.dtype.kind != "f":
        raise DataError(
            f"expected floating-point numbers [n, D], found {vectors.dtype} {list(vectors.shape)}",
            where=where,
            remedy="Save them as a float16 or float32 array with one row per text.",
        )
    return vectors


def _load_npy(file: Path) -> np.ndarray:
    try:
        with disk_problems("the file cannot be read", file):
            array = np.load(file.expanduser(), mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as problem:
        raise DataError("there is no such file", where=str(file), remedy="Check the path.") from problem
    except EnvironmentProblem:
        raise
    except Exception as problem:  # hostile bytes lead numpy to errors of zipfile and of Python's tokenizer, too
        raise DataError(
            f"this is not an array in .npy form ({str(problem).partition('.')[0]})",
            where=str(file),
            remedy="Save it with numpy.save.",
        ) from problem
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataError("this is an archive of arrays, not one", where=str(file), remedy="Save it with numpy.save.")
    return array


def _texts_of(file: Path) -> Iterator[str]:
    blank = 0
    try:
        with disk_problems("the file cannot be read", file), file.open(encoding="utf-8-sig", newline="\n") as lines:
            for number, line in enumerate(lines, 1):
                text = line.removesuffix("\n")
                if file.suffix == ".txt":
                    yield text.removesuffix("\r")
                elif not text.strip():
                    blank = blank or number
                elif blank:  # only at the end of a file it stands for no vector
                    raise DataError(
                        "this line is empty", where=f"{file}:{blank}", remedy="Each line is the text of a vector."
                    )
                else:
                    yield _text_of(text, f"{file}:{number}")
    except OSError as problem:
        raise DataError("there is no such file", where=str(file), remedy="Check the path.") from problem
    except UnicodeDecodeError as problem:
        raise DataError(f"this is not UTF-8: {problem}", where=str(file)) from problem


def _text_of(line: str, where: str) -> str:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise DataError(f"this line is not JSON: {problem}", where=where) from problem
    text = entry.get("text") if isinstance(entry, dict) else entry
    if not isinstance(text, str):
        raise DataError('expected a string or an object with "text"', where=where)
    return text


def _read_parquet(source: str, texts: Any, wants_texts: bool) -> tuple[np.ndarray, list[str] | None]:
    """The vector column and, where wanted, the texts of a parquet file or of what `texts` names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, _, column = source.partition(".parquet:")
    file = Path(path + ".parquet" if column else source).expanduser()
    try:
        schema = pq.read_schema(file)
    except FileNotFoundError as problem:
        raise DataError("there is no such file", where=str(file), remedy="Check the path.") from problem
    except (OSError, pa.ArrowException) as problem:
        raise DataError(f"this is not a parquet file: {problem}", where=str(file)) from problem
    twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f'two columns are called "{twice}"', where=str(file), remedy="Rename one of them.")
    lists = [field.name for field in schema if _is_vector(field.type)]
    if not column and len(lists) != 1:
        raise DataError(
            f"{len(lists) or 'no'} columns of vectors: {', '.join(lists) or ', '.join(schema.names)}",
            where=str(file),
            remedy=f'Name it: "{file}:COLUMN".',
        )
    column, others = column or lists[0], [name for name in schema.names if name not in lists]
    if column not in lists:
        raise DataError(f'there is no vector column "{column}"', where=str(file), remedy=nearest(column, lists))
    vectors = _stack(_column(file, column), file, column)
    if not wants_texts:
        return vectors, None
    if isinstance(texts, str) and texts not in schema.names and not Path(texts).suffix and not Path(texts).exists():
        raise DataError(f'there is no column "{texts}" with the texts', where=str(file), remedy=nearest(texts, others))
    if texts is not None and (not isinstance(texts, str) or texts not in schema.names):
        return vectors, list(read_texts(texts))
    text_column = texts or "text"
    if text_column not in schema.names:
        raise DataError(
            f'there is no column "{text_column}" with the texts',
            where=str(file),
            remedy=f"Set texts to one of: {', '.join(others)}.",
        )
    return vectors, _text_column(_column(file, text_column), file)


def _column(file: Path, name: str) -> Any:
    """One column of a parquet file.

    Raises:
        DataError: what the file holds of it is damaged.
    """
    import pyarrow.parquet as pq

    from distilvec.corpus.opening import reading

    with reading(file):
        return pq.read_table(file, columns=[name]).column(name)


def _text_column(column: Any, file: Path) -> list[str]:
    """Texts of a parquet column; bytes are texts where they are UTF-8.

    Raises:
        DataError: it holds something else, or a row has none.
    """
    from distilvec.corpus.parquet import arrow_values

    texts = [text for chunk in column.chunks for text in arrow_values(chunk)]
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            what = "no text" if text is None else f"{type(text).__name__} instead of a text"
            raise DataError(f"row {row + 1} has {what}", where=str(file), remedy="Give every vector its text.")
    return texts


def _is_vector(kind: Any) -> bool:
    from pyarrow import types

    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and types.is_floating(kind.value_type)


def _stack(column: Any, file: Path, name: str) -> np.ndarray:
    parts, width = [], None
    for chunk in column.chunks:
        if not len(chunk):
            continue
        lengths = {len(row) for row in chunk} if chunk.null_count == 0 else {None}
        width = width if width is not None else next(iter(lengths))
        if lengths != {width} or not width:
            raise DataError(f'the rows of "{name}" are not vectors of one length', where=str(file))
        flat = chunk.flatten().to_numpy(zero_copy_only=False)
        parts.append(np.asarray(flat, np.float32).reshape(len(chunk), width))
    if not parts:
        raise DataError(f'the column "{name}" has no rows', where=str(file))
    return np.concatenate(parts)
