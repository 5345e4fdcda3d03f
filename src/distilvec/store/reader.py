"""Reading a store: rows by key, vectors by row, statistics, through views of mapped files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from distilvec.corpus.keys import content_keys
from distilvec.errors import DataError, DistilvecError, nearest
from distilvec.files import check_regular, home
from distilvec.store.codec import unpack
from distilvec.store.files import disk_problems
from distilvec.store.keyed import KeyedParts
from distilvec.store.layout import (
    SIGNAL,
    StoreFormat,
    check_same_teacher,
    make_format,
    read_format,
    read_signals,
    write_format,
)
from distilvec.store.part import PART_BYTES, BadPart, StorePart, open_part, verify_part
from distilvec.store.ragged import RaggedSignal
from distilvec.store.scan import part_names, set_aside
from distilvec.store.statistics import Moments, Statistics
from distilvec.store.writer import StoreWriter

_CHUNK = 1 << 18
#: Vectors that are measured at once, in float64; texts that are looked up at once.
_MEASURED, _ATTACHED = 1 << 13, 10_000


class SignalStore(KeyedParts[StorePart]):
    """Sentence vectors of one teacher in a folder, found by the keys of their texts."""

    def __init__(self, path: Path, store: StoreFormat) -> None:
        super().__init__(path, SIGNAL)
        self._format = store

    @classmethod
    def create(cls, path: str | Path, card: Any, width: int, dtype: str = "float16") -> SignalStore:
        """Make a store, or open the one that is there if it is of the same teacher.

        Args:
            card: the teacher's card: an object with `to_dict()` or a mapping, with a `fingerprint`.
            width: D.
            dtype: "float16", "float32" or "int8".

        Raises:
            DistilvecError: where the store is another teacher's (both fingerprints are shown), or of another
                width or dtype.
            EnvironmentProblem: where the folder cannot be written.
        """
        folder, wanted = Path(path), make_format(card, width, dtype)
        if not (folder / "store.json").exists():
            with disk_problems(folder):
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                except (FileExistsError, NotADirectoryError) as error:
                    raise DistilvecError("a store is a folder, here is a file", where=str(folder)) from error
            write_format(folder, wanted)
        store = cls.open(folder)
        check_same_teacher(store._format.fingerprint, wanted.fingerprint, folder, wanted.teacher)
        if not len(store) and store._format != wanted:  # nothing is lost by making it anew
            write_format(folder, wanted, anew=True)
            store = cls.open(folder)
        for name in ("width", "dtype"):
            stored, asked = getattr(store._format, name), getattr(wanted, name)
            if stored != asked:
                raise DistilvecError(
                    f"the store has {name} {stored}, not {asked}",
                    where=str(folder),
                    remedy=f"Use another folder, or {name} {stored}; or remove this one, and it is made again.",
                )
        return store

    @classmethod
    def open(cls, path: str | Path, verify: bool = False) -> SignalStore:
        """Open a store: sizes and columns of all parts are checked, with `verify` also their bytes.

        Bad parts are set aside (renamed to `*.bad`), logged and listed in `bad`.

        Raises:
            DataError: where the folder is no store, or of a newer schema version.
            DistilvecError: where a pipe or a device is in it.
        """
        folder = Path(home(str(path)))
        store = cls(folder, read_format(folder))
        check_regular(folder, deep=True)
        store.refresh()
        if verify:
            store.verify()
        return store

    @classmethod
    def from_vectors(
        cls, path: str | Path, card: Any, keys: np.ndarray, vectors: np.ndarray, dtype: str = "float16"
    ) -> SignalStore:
        """A store of vectors from elsewhere. Keys that it holds already are left as they are.

        Args:
            card: as for `create`.
            keys: uint8 [n, 16].
            vectors: [n, D], finite; may be a memory map larger than memory.

        Raises:
            DistilvecError: not as many vectors as keys.
            DataError: vectors that are not finite, naming the row.
        """
        if len(keys) != len(vectors) or vectors.ndim != 2:
            raise DistilvecError(
                f"expected one vector per key, found {len(keys)} keys and vectors {list(vectors.shape)}"
            )
        store = cls.create(path, card, vectors.shape[1], dtype)
        with store.writer() as writer:
            for start in range(0, len(keys), _CHUNK):
                chunk = slice(start, start + _CHUNK)
                new = store.missing(keys[chunk])
                try:
                    writer.add(keys[chunk][new], vectors[chunk][new])
                except DataError as error:
                    where = f"vectors from row {start} on, {error.where}"
                    raise DataError(error.what, where=where, remedy=error.remedy) from error
        store.refresh()
        return store

    def _open(self, name: str) -> StorePart:
        return open_part(self.path, name, self._format)

    def _again(self) -> tuple[Any, ...]:
        return SignalStore.open, (self.path,)

    def __repr__(self) -> str:
        return f"SignalStore({str(self.path)!r}, rows={len(self)}, width={self.width}, dtype={self.dtype!r})"

    @property
    def width(self) -> int:
        """D."""
        return self._format.width

    @property
    def dtype(self) -> str:
        """The dtype that values are stored in; `read` gives float32 in any case."""
        return self._format.dtype

    @property
    def card(self) -> dict[str, Any]:
        """The teacher's card."""
        return self._format.teacher

    def statistics(self, rows: np.ndarray | None = None) -> Statistics:
        """Mean, deviation, mean norm and rounding error over all rows, from the parts' moments.

        Args:
            rows: int [n], n >= 1, of these alone instead, as they are stored: without a rounding error.

        Raises:
            DataError: where the store is empty.
        """
        if not self._parts:
            raise DataError("the store is empty", where=str(self.path), remedy="Teach into it first.")
        moments = Moments.empty(self.width)
        if rows is None:
            for number in self._by_name:
                moments += self._parts[number].moments
            return moments.statistics()
        for start in range(0, len(rows), _MEASURED):
            vectors = self.read(rows[start : start + _MEASURED])
            moments += Moments.of(vectors, vectors)
        return moments.statistics()

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Vectors float32 [n, D] of rows, integers [n], each at least 0 and less than `len(store)`.

        Raises:
            DataError: for a row outside, such as the -1 that `rows` gives for a missing key.
        """
        out = np.empty((len(rows), self.width), dtype=np.float32)
        for part, local, target in self._locate_rows(rows):
            scale = None if part.scale is None else part.scale[local]
            out[target] = unpack(part.values[local], scale)
        return out

    def build_index(self) -> None:
        """Write the tables that make finding fast, of all signals, where they are missing."""
        super().build_index()
        for name in read_signals(self.path):
            if name != SIGNAL:
                RaggedSignal(self.path, name).build_index()

    def writer(self, name: str | None = None, part_bytes: int = PART_BYTES, *, index: bool = True) -> StoreWriter:
        """A writer that adds parts, see `StoreWriter`. Call `refresh` to see them here."""
        return StoreWriter(self.path, self._format, name, part_bytes, index=index)

    def verify(self, *, changed: bool = False) -> list[str]:
        """Read all bytes, of all signals, and set aside the parts whose checksum does not agree; their names.

        Row numbers change where a part is set aside.

        Args:
            changed: read only parts that were written or copied since their checksum was last compared, by the time
                of their last change. Teaching does this with the store that it goes on with.
        """
        bad: dict[str, str] = {}
        others = [
            name for signal in read_signals(self.path) if signal != SIGNAL for name in part_names(self.path, signal)
        ]
        for name in [part.name for part in self._parts] + others:
            try:
                verify_part(self.path, name, changed=changed)
            except FileNotFoundError:
                bad[name] = "its record is missing"
            except BadPart as problem:
                bad[name] = str(problem)
        for name, reason in bad.items():
            set_aside(self.path, name, reason)
        self.bad |= bad
        if bad:
            self._arrange([part for part in self._parts if part.name not in bad])
        return sorted(bad)

    def attach(self, dataset: Any, text: str = "text") -> Any:
        """Add a column "label" with this object's row numbers to a `datasets.Dataset`.

        Args:
            text: the column with the texts that were taught.

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
        for start in range(0, len(dataset), _ATTACHED):
            texts = dataset[start : start + _ATTACHED][text]
            empty = next((row for row, each in enumerate(texts) if not isinstance(each, str)), None)
            if empty is not None:
                raise DataError(
                    f"this is {type(texts[empty]).__name__}, not a text",
                    where=f"row {start + empty} of the dataset",
                    remedy="Leave the row out.",
                )
            chunk_rows = self.rows(content_keys(texts))
            if (chunk_rows < 0).any():
                first = int(np.flatnonzero(chunk_rows < 0)[0])
                raise DataError(
                    f"the store has no vector for the text {texts[first][:120]!r}",
                    where=f"row {start + first} of the dataset",
                    remedy="Teach it first: distilvec teach, or distilvec.store.fill.",
                )
            rows[start : start + len(texts)] = chunk_rows
        return dataset.add_column("label", rows)
