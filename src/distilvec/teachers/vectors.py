"""Vectors from elsewhere as a teacher: of an array, a .npy file, a table or a database, found by the item's key."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.arrays import as_vectors
from distilvec.corpus.keys import KEY_BYTES, Components, canonical_keys
from distilvec.corpus.problem import Problem
from distilvec.corpus.readers import table_and_column
from distilvec.errors import DataError, DistilvecError
from distilvec.files import scratch, spilled
from distilvec.kinds.base import find_kind
from distilvec.teachers.base import Capabilities, Teacher
from distilvec.teachers.cards import TeacherCard, fingerprint
from distilvec.teachers.sections import Reading, VectorsSection
from distilvec.teachers.vector_files import check_rows, read_keys, read_texts, read_vectors_and_texts

logger = logging.getLogger(__name__)
#: Relative to a vector's length.
_NOISE = 1e-5
_CHUNK = 8192
_NOTHING = b""  # what numpy makes of a key of zeros
_NORM_SAMPLE = 256


class VectorsTeacher(Teacher):
    """Vectors made elsewhere. `has` tells which texts it knows; `encode` gives NaN for the others.

    Attributes:
        card: who it is. Its fingerprint covers all vectors and keys.
    """

    can = Capabilities(made=True)

    def __init__(
        self,
        vectors: str | Path | np.ndarray,
        *,
        name: str = "teacher",
        texts: str | Path | Sequence[str] | None = None,
        keys: str | Path | np.ndarray | None = None,
        modality: str = "text",
        components: Components = "largest",
    ) -> None:
        """Open the vectors and index their keys.

        Args:
            vectors, texts, keys: as in a recipe (`VectorsSection`), or an array [n, D], a list, an array of keys. Of
                images the texts are paths or data URIs, of molecules SMILES in any form.
            modality: of the items, as the corpus has it. An image or a molecule that cannot be read has no vector.
            components: of molecules, as the corpus section says it: under which molecule a salt's vector is found.

        Raises:
            DataError: a file is missing or not what it has to be, or rows and texts differ in number.
            DistilvecError: neither texts nor keys are given, or both; an address holds a password.
            EnvironmentProblem: a database does not answer, or its extra is missing.
        """
        if not isinstance(vectors, str | Path | np.ndarray):
            vectors = as_vectors(vectors, name)
        self._kind, self._components = find_kind(modality), components
        source = "array" if isinstance(vectors, np.ndarray) else str(vectors)
        row_keys = self._open(vectors, texts, keys, name)
        check_rows(len(self._vectors), len(row_keys), source, "texts" if keys is None else "keys")
        self._last: tuple[list[str], np.ndarray] | None = None
        empty = self._empty_rows()
        self._index(np.where(empty[:, None], np.uint8(0), row_keys) if empty.any() else row_keys)
        self._tell_twice(source)
        there = np.flatnonzero(~empty)[:_NORM_SAMPLE]
        with np.errstate(over="ignore"):
            lengths = np.linalg.norm(np.asarray(self._vectors[there], dtype=np.float64), axis=1)
        self.card = TeacherCard(
            name=name,
            kind="vectors",
            source=source,
            fingerprint=fingerprint(_hash(self._vectors), _hash(row_keys)),
            width=int(self._vectors.shape[1]),
            normalized=len(there) > 0 and bool(np.allclose(lengths, 1, atol=1e-3)),
            dtype=str(self._vectors.dtype),
        )

    def _open(self, vectors: str | Path | np.ndarray, texts: Any, keys: Any, name: str) -> np.ndarray:
        """Open the vectors; their keys uint8 [n, 16]."""
        table: Iterable[str] | None
        wants_texts = keys is None
        self._vectors, table = read_vectors_and_texts(vectors, texts if wants_texts else None, name, wants_texts)
        if table is None:
            if (texts is None) == (keys is None):
                raise DistilvecError(
                    "vectors need the texts they belong to, or their keys (one of both)",
                    where=name,
                    remedy="Give texts: a file with one text a line, in the order of the vectors.",
                )
            if texts is None:
                return read_keys(keys)
            table = read_texts(texts)
            file = texts if isinstance(texts, str | Path) else None
        else:
            file = (table_and_column(str(vectors)) or ("", ""))[0]
        if self._kind.binary and file is not None:
            table = _from(file, table)
        return self._keys_of(table)

    def _empty_rows(self) -> np.ndarray:
        """bool [n]: rows of nothing but NaN, which hold no vector."""
        empty = np.zeros(len(self._vectors), bool)
        for start in range(0, len(empty), _CHUNK):
            rows = self._vectors[start : start + _CHUNK]
            if (some := np.isnan(rows[:, 0])).any():
                empty[start : start + _CHUNK] = some & np.isnan(rows).all(axis=1)
        return empty

    def _index(self, keys: np.ndarray) -> None:
        """Sort the keys; stably, so that the first of equal ones is the one that is found."""
        words = _words(keys)
        self._order = spilled(np.argsort(words, kind="stable"))
        self._sorted = scratch(len(words), words.dtype)
        for start in range(0, len(words), _CHUNK):
            self._sorted[start : start + _CHUNK] = words[self._order[start : start + _CHUNK]]

    def _tell_twice(self, source: str) -> None:
        """Warn of items that come again with another vector: the first is the one that is found."""
        other, row = 0, 0
        for start in range(1, len(self._sorted), _CHUNK):
            end = min(start + _CHUNK, len(self._sorted))
            words = self._sorted[start:end]
            again = start + np.flatnonzero((words == self._sorted[start - 1 : end - 1]) & (words != _NOTHING))
            if len(again):
                one, two = (self._vectors[np.asarray(self._order[places])] for places in (again - 1, again))
                unlike = np.flatnonzero(~_alike(np.asarray(one), np.asarray(two)))
                other, row = other + len(unlike), int(self._order[again[unlike[0]]]) if len(unlike) else row
        if other:
            logger.warning(
                "%s: %s occurs twice with different vectors (row %d is one; %d in all); the first is taken",
                source,
                "a text" if self._kind.name == "text" else "an item",
                row,
                other,
            )

    def __len__(self) -> int:
        return len(self._vectors)

    def has(self, texts: Sequence[str]) -> np.ndarray:
        """bool [n]: whether there is a vector for each text; a row of nothing but NaN is none."""
        return self._rows(texts) >= 0

    def stream(self, texts: Sequence[str]) -> Generator[tuple[np.ndarray, np.ndarray]]:
        """Pairs (positions int64 [b], vectors float32 [b, D]) in the order of the texts; NaN where there is none.

        Raises:
            DataError: a vector that is there has values that are not finite.
        """
        for start in range(0, len(texts), _CHUNK):
            chunk = list(texts[start : start + _CHUNK])
            rows = self._rows(chunk)
            known = np.flatnonzero(rows >= 0)
            vectors = np.full((len(chunk), self.card.width), np.nan, np.float32)
            with np.errstate(over="ignore"):
                vectors[known] = self._vectors[rows[known]]
            wrong = known[~np.isfinite(vectors[known]).all(axis=1)]
            if len(wrong):
                raise DataError(
                    f"the vector in row {rows[wrong[0]]} has values that are not finite, or too large for float32",
                    where=self.card.source,
                    remedy="Where there is no vector, leave out row and text, or let the whole row be NaN.",
                )
            yield np.arange(start, start + len(chunk)), vectors

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

    def _keys_of(self, items: Iterable[str]) -> np.ndarray:
        """uint8 [n, 16]; zeros where an image or a molecule cannot be read. The items of a file are never all held."""
        rest, keys = iter(items), bytearray()  # which grows where it is: joined parts would lie in memory twice
        while few := list(islice(rest, _CHUNK)):
            keys += self._keys_of_few(few).tobytes()
        return np.frombuffer(keys, np.uint8).reshape(-1, KEY_BYTES)

    def _keys_of_few(self, items: Sequence[str]) -> np.ndarray:
        canonical: list[str | None] = []
        for item in items:
            try:
                canonical.append(self._kind.canonical(item, self._components))
            except Problem:
                canonical.append(None)
        keys = np.zeros((len(canonical), KEY_BYTES), np.uint8)
        usable = [item is not None for item in canonical]
        keys[usable] = canonical_keys((item for item in canonical if item is not None), "", self._kind.name)
        return keys


def open_vectors(section: VectorsSection, reading: Reading) -> VectorsTeacher:
    """The teacher of a section."""
    return VectorsTeacher(
        section.vectors,
        name=section.name,
        texts=section.texts,
        keys=section.keys,
        modality=reading.modality,
        components=reading.components,
    )


def _from(file: str | Path, items: Iterable[str]) -> Iterator[str]:
    """Paths of images start where the file lies that names them."""
    folder = Path(file).expanduser().parent
    return (item if item.startswith("data:") else str(folder / item) for item in items)


def _alike(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """bool [n]: whether vectors differ by no more than the same text in two batches does."""
    with np.errstate(over="ignore", invalid="ignore"):
        first, second = one.astype(np.float64), two.astype(np.float64)
        near = np.linalg.norm(first - second, axis=1) <= _NOISE * np.linalg.norm(first, axis=1)
    return near | (one == two).all(axis=1)


def _words(keys: np.ndarray) -> np.ndarray:
    """Keys uint8 [n, 16] as one sortable value each. All have 16 bytes, so trailing zeros do not confuse them."""
    return np.ascontiguousarray(keys).view("S16").ravel()


def _hash(array: np.ndarray) -> str:
    digest = hashlib.blake2b(repr((array.shape, str(array.dtype))).encode(), digest_size=16)
    for start in range(0, len(array), _CHUNK):
        digest.update(np.ascontiguousarray(array[start : start + _CHUNK]).data)
    return digest.hexdigest()
