"""Vectors and what they belong to: .npy, tables (`vector_tables`), `databases`, texts one a line, keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.arrays import as_vectors
from distilvec.corpus.opening import MOST_UNPACKED, UNPACKED_FREELY, reading
from distilvec.corpus.readers import read_file, table_and_column
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.system_errors import disk_problems
from distilvec.teachers.databases.address import database_address
from distilvec.teachers.databases.reading import read_database
from distilvec.teachers.vector_tables import LONGEST, read_vector_table


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
    matrix, table = read_vectors_and_texts(vectors, texts, name, True)
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


def read_vectors_and_texts(
    vectors: str | Path | np.ndarray, texts: Any, name: str, wants_texts: bool
) -> tuple[np.ndarray, list[str] | None]:
    """The vectors [n, D] and, of a table where they are wanted, the texts."""
    if isinstance(vectors, np.ndarray):
        return _matrix(vectors, name), None
    source = str(vectors)
    if address := database_address(source):
        if not wants_texts:
            raise DistilvecError("a database is read with texts, not with keys", where=address.where)
        return read_database(address, texts)
    if found := table_and_column(source):
        file, column = Path(found[0]).expanduser(), found[1]
        matrix, table = read_vector_table(file, column, texts, wants_texts=wants_texts)
        return matrix, list(read_texts(texts)) if wants_texts and table is None else table
    return _matrix(_load_npy(Path(source)), source), None


def read_texts(texts: str | Path | Sequence[str]) -> Iterable[str]:
    """One text after the other: a file of millions is never held.

    Raises:
        DataError: a file of another kind; as it is read, one that is missing or damaged, or a line that is no text.
    """
    if not isinstance(texts, str | Path):
        return texts
    name, column = table_and_column(str(texts)) or (texts, "")
    file = Path(name).expanduser()
    if file.suffix not in (".txt", ".jsonl"):
        raise DataError(
            f'texts of vectors are read from .txt or .jsonl files, not from "{file.name}"',
            where=str(file),
            remedy="A .txt file has one text a line; texts with line breaks go into .jsonl.",
        )
    return _texts_of(file, column or "text")


def read_keys(keys: str | Path | np.ndarray | None) -> np.ndarray:
    """Keys uint8 [n, 16], of a .npy file or an array."""
    array = keys if isinstance(keys, np.ndarray) else _load_npy(Path(str(keys)))
    if array.ndim != 2 or array.shape[1] != 16 or array.dtype != np.uint8:
        where = "keys" if array is keys else str(keys)
        raise DataError(f"expected keys uint8 [n, 16], found {array.dtype} {list(array.shape)}", where=where)
    return np.asarray(array)


def check_rows(vectors: int, items: int, where: str, what: str) -> None:
    """Refuse another number of vectors than of items."""
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
    """An array of a .npy file, mapped, or the only one of an .npz file."""
    with reading(file.expanduser()):
        pass
    try:
        with disk_problems("the file cannot be read", file):
            array = np.load(file.expanduser(), mmap_mode="r", allow_pickle=False)
        if isinstance(array, np.ndarray):
            return array
        with array:
            names = array.files
            if file.suffix == ".npz" and len(names) == 1:
                _check_bomb(array.zip, file)
                return np.asarray(array[names[0]])
    except (DataError, EnvironmentProblem):
        raise
    except Exception as problem:  # hostile bytes lead numpy to errors of zipfile and of Python's tokenizer, too
        with reading(file.expanduser()), file.expanduser().open("rb") as start:
            begin = start.read(16)
        if begin == b"SQLite format 3\0":
            raise DataError(
                "this is an SQLite database", where=str(file), remedy=f"Write sqlite:{file}#TABLE."
            ) from None
        numpys = begin.startswith(b"\x93NUMPY")
        told = f" ({str(problem).partition('.')[0]})" if numpys else ""  # of other files it speaks of pickled data
        raise DataError(
            f"this is not an array in .npy form{told}",
            where=str(file),
            remedy="Save it with numpy.save; or give .npz, .parquet, .jsonl, .csv or .tsv.",
        ) from problem
    raise DataError(
        f"this is an archive of arrays, not one: {', '.join(names)[:200]}",
        where=str(file),
        remedy="Save it with numpy.save, or alone in an .npz.",
    )


def _check_bomb(archive: Any, file: Path) -> None:
    entry = archive.infolist()[0]
    if entry.file_size > max(UNPACKED_FREELY, MOST_UNPACKED * entry.compress_size):
        raise DataError(
            f"{entry.compress_size:,} packed bytes unpack to {entry.file_size:,}, which no vectors do", where=str(file)
        )


def _texts_of(file: Path, column: str) -> Iterator[str]:
    blank = 0
    for row in read_file(file, None, LONGEST):
        where = f"{file}:{row.line}"
        if row.fault == "empty":
            blank = blank or row.line
        elif blank:  # only at the end of a file it stands for no vector
            raise DataError("this line is empty", where=f"{file}:{blank}", remedy="Each line is the text of a vector.")
        elif row.fault is not None:
            raise DataError(f"this line cannot be read: {row.fault}", where=where)
        else:
            yield row.value if file.suffix == ".txt" else _text_of(row.value, column, where)


def _text_of(entry: Any, column: str, where: str) -> str:
    cells = entry if isinstance(entry, dict) else {}
    text = cells.get(column) if isinstance(entry, dict) else entry
    if isinstance(text, str):
        return text
    named = [name for name, value in cells.items() if isinstance(value, str)]
    listed = ", ".join(f'"{name}"' for name in [*cells][:20])
    keys = f"; the keys are {listed}" if listed else ""
    file = where.rpartition(":")[0].rpartition("/")[2]
    remedy = f"Name the key of the text: texts: {file}:{named[0] if len(named) == 1 else 'KEY'}." if keys else None
    raise DataError(f'expected a string or an object with the text "{column}"{keys}', where=where, remedy=remedy)
