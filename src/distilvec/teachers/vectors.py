"""Vectors from elsewhere as a teacher: a .npy file, an array or a parquet column, found by the item's key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.arrays import as_vectors
from distilvec.corpus.keys import KEY_BYTES, Modality, canonical_item, canonical_keys, content_keys
from distilvec.corpus.molecules import Components
from distilvec.corpus.problem import Problem
from distilvec.errors import DataError, DistilvecError, nearest
from distilvec.files import scratch, spilled
from distilvec.teachers.base import SentenceTeacher
from distilvec.teachers.cards import TeacherCard, fingerprint

_CHUNK = 8192
_NOTHING = b""  # what numpy makes of a key of zeros
_NORM_SAMPLE = 256


class VectorsTeacher(SentenceTeacher):
    """Vectors made elsewhere. `has` tells which texts it knows; `encode` gives NaN for the others.

    Attributes:
        card: who it is. Its fingerprint covers all vectors and keys.
    """

    def __init__(
        self,
        vectors: str | Path | np.ndarray,
        *,
        name: str = "teacher",
        texts: str | Path | Sequence[str] | None = None,
        keys: str | Path | np.ndarray | None = None,
        modality: Modality = "text",
        components: Components = "largest",
    ) -> None:
        """Open the vectors and index their keys.

        Args:
            vectors: .npy file [n, D] (memory-mapped), array, or parquet file. "file.parquet:column" names its
                vector column where it has several.
            texts: .txt (one a line), .jsonl (strings, or objects with "text"), a list, or the name of the parquet
                file's text column (default "text").
                Of images: their paths or data URIs; of molecules: SMILES in any form.
            keys: uint8 [n, 16] as `content_keys` makes them, in place of texts.
            modality: of the items, as the corpus has it. An image or a molecule that cannot be read has no vector.
            components: of molecules, as the corpus section says it: under which molecule a salt's vector is found.

        Raises:
            DataError: a file is missing or not what it has to be, or rows and texts differ in number.
            DistilvecError: neither texts nor keys are given, or both.
        """
        self._where = name
        if not isinstance(vectors, str | Path | np.ndarray):
            vectors = as_vectors(vectors, name)
        self._modality, self._components = modality, components
        source = "array" if isinstance(vectors, np.ndarray) else str(vectors)
        table: Iterable[str] | None
        self._vectors, table = _open(vectors, texts if keys is None else None, name, wants_texts=keys is None)
        if table is None:
            if (texts is None) == (keys is None):
                raise DistilvecError(
                    "vectors need the texts they belong to, or their keys (one of both)",
                    where=name,
                    remedy="Give texts: a file with one text a line, in the order of the vectors.",
                )
            if texts is not None:
                table = items = _read_texts(texts)
                if modality == "image" and isinstance(texts, str | Path):
                    table = _from(texts, items)
        elif modality == "image":
            table = list(_from(str(vectors).partition(".parquet:")[0], table))
        row_keys = self._keys_of(table) if table is not None else _read_keys(keys)
        _check_rows(len(self._vectors), len(row_keys), source, "texts" if table is not None else "keys")
        self._last: tuple[list[str], np.ndarray] | None = None
        words = _words(row_keys)
        # Stable, so that the first of equal keys is the one that is found.
        order = spilled(np.argsort(words, kind="stable"))
        self._order, self._sorted = order, scratch(len(words), words.dtype)
        for start in range(0, len(words), _CHUNK):
            self._sorted[start : start + _CHUNK] = words[order[start : start + _CHUNK]]
        sample = np.asarray(self._vectors[:_NORM_SAMPLE], dtype=np.float32)
        self.card = TeacherCard(
            name=name,
            kind="vectors",
            source=source,
            fingerprint=fingerprint(_hash(self._vectors), _hash(row_keys)),
            width=int(self._vectors.shape[1]),
            normalized=bool(np.allclose(np.linalg.norm(sample, axis=1), 1, atol=1e-3)),
            dtype=str(self._vectors.dtype),
        )

    def __len__(self) -> int:
        return len(self._vectors)

    def has(self, texts: Sequence[str]) -> np.ndarray:
        """bool [n]: whether there is a vector for each text; a row of nothing but NaN is none."""
        return self._known(self._rows(texts))

    def stream(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs (positions int64 [b], vectors float32 [b, D]) in the order of the texts; NaN where there is none.

        Raises:
            DataError: a vector that is there has values that are not finite.
        """
        for start in range(0, len(texts), _CHUNK):
            chunk = list(texts[start : start + _CHUNK])
            rows = self._rows(chunk)
            known = np.flatnonzero(self._known(rows))
            vectors = np.full((len(chunk), self.card.width), np.nan, np.float32)
            vectors[known] = self._vectors[rows[known]]
            wrong = known[~np.isfinite(vectors[known]).all(axis=1)]
            if len(wrong):
                raise DataError(
                    f"the vector in row {rows[wrong[0]]} has values that are not finite",
                    where=self.card.source,
                    remedy="Where there is no vector, leave out row and text, or let the whole row be NaN.",
                )
            yield np.arange(start, start + len(chunk)), vectors

    def rendered(self, text: str) -> tuple[str, int]:
        """The text itself; nothing is known of what was made of it (0 tokens)."""
        return text, 0

    def _rows(self, texts: Sequence[str]) -> np.ndarray:
        """int64 [n] row of each text, -1 where there is none."""
        if not len(texts) or not len(self._sorted):
            return np.full(len(texts), -1, np.int64)
        if self._last is not None and self._last[0] == list(texts):  # `has` is asked before `stream`
            return self._last[1]
        words = _words(self._keys_of(texts))
        places = np.searchsorted(self._sorted, words)
        places[places == len(self._sorted)] = 0
        rows = np.where((self._sorted[places] == words) & (words != _NOTHING), self._order[places], -1)
        self._last = (list(texts), rows)
        return rows

    def _known(self, rows: np.ndarray) -> np.ndarray:
        """bool [n]: whether there is such a row, and something in it."""
        known = rows >= 0
        known[known] = ~np.isnan(self._vectors[rows[known]]).all(axis=1)
        return known

    def _keys_of(self, items: Iterable[str]) -> np.ndarray:
        """uint8 [n, 16]; zeros where an image or a molecule cannot be read."""
        if self._modality == "text":
            return content_keys(items)
        canonical: list[str | None] = []
        for item in items:
            try:
                canonical.append(canonical_item(item, self._modality, self._components))
            except Problem:
                canonical.append(None)
        keys = np.zeros((len(canonical), KEY_BYTES), np.uint8)
        usable = [item is not None for item in canonical]
        keys[usable] = canonical_keys((item for item in canonical if item is not None), "", self._modality)
        return keys


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
    matrix, table = _open(vectors, texts, name, wants_texts=True)
    if table is None:
        if texts is None:
            raise DistilvecError(
                "vectors need the texts they belong to",
                where=name if isinstance(vectors, np.ndarray) else str(vectors),
                remedy="Give texts (--texts): a file with one text a line, in the order of the vectors.",
            )
        table = list(_read_texts(texts))
    wrong = next((row for row, text in enumerate(table) if not isinstance(text, str)), None)
    if wrong is not None:
        raise DataError(f"row {wrong} is {type(table[wrong]).__name__}, not a text", where="texts")
    _check_rows(len(matrix), len(table), name if isinstance(vectors, np.ndarray) else str(vectors), "texts")
    return matrix, table


def _open(
    vectors: str | Path | np.ndarray, texts: Any, name: str, *, wants_texts: bool
) -> tuple[np.ndarray, list[str] | None]:
    """The vectors and, of a parquet file where they are wanted, the texts."""
    if isinstance(vectors, np.ndarray):
        return _matrix(vectors, name), None
    source = str(vectors)
    if ".parquet" in source:
        return _read_parquet(source, texts, wants_texts=wants_texts)
    return _matrix(_load_npy(Path(source)), source), None


def _from(file: str | Path, items: Iterable[str]) -> Iterator[str]:
    """Paths of images start where the file lies that names them."""
    folder = Path(file).expanduser().parent
    return (item if item.startswith("data:") else str(folder / item) for item in items)


def _check_rows(vectors: int, items: int, where: str, what: str) -> None:
    if vectors != items:
        raise DataError(
            f"{vectors} vectors, but {items} {what}",
            where=where,
            remedy="There must be one row per text, in the same order.",
        )


def _words(keys: np.ndarray) -> np.ndarray:
    """Keys uint8 [n, 16] as one sortable value each. All have 16 bytes, so trailing zeros do not confuse them."""
    return np.ascontiguousarray(keys).view("S16").ravel()


def _hash(array: np.ndarray) -> str:
    digest = hashlib.blake2b(repr((array.shape, str(array.dtype))).encode(), digest_size=16)
    for start in range(0, len(array), _CHUNK):
        digest.update(np.ascontiguousarray(array[start : start + _CHUNK]).data)
    return digest.hexdigest()


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
        array = np.load(file.expanduser(), mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as problem:
        raise DataError("there is no such file", where=str(file), remedy="Check the path.") from problem
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


def _read_keys(keys: str | Path | np.ndarray | None) -> np.ndarray:
    array = keys if isinstance(keys, np.ndarray) else _load_npy(Path(str(keys)))
    if array.ndim != 2 or array.shape[1] != 16 or array.dtype != np.uint8:
        where = "keys" if array is keys else str(keys)
        raise DataError(f"expected keys uint8 [n, 16], found {array.dtype} {list(array.shape)}", where=where)
    return np.asarray(array)


def _read_texts(texts: str | Path | Sequence[str]) -> Iterable[str]:
    """One text after the other: a file of millions is never held."""
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


def _texts_of(file: Path) -> Iterator[str]:
    blank = 0
    try:
        with file.open(encoding="utf-8-sig", newline="\n") as lines:
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
    column = column or lists[0]
    if column not in lists:
        raise DataError(f'there is no vector column "{column}"', where=str(file), remedy=nearest(column, lists))
    vectors = _stack(_column(file, column), file, column)
    if not wants_texts:
        return vectors, None
    if texts is not None and (not isinstance(texts, str) or texts not in schema.names):
        return vectors, list(_read_texts(texts))
    text_column = texts or "text"
    if text_column not in schema.names:
        raise DataError(
            f'there is no column "{text_column}" with the texts',
            where=str(file),
            remedy=f"Set texts to one of: {', '.join(name for name in schema.names if name not in lists)}.",
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
