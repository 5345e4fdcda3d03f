"""One part of a store: an Arrow file, its record, and zero-copy views of its columns."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from distilvec.corpus.files import file_checksum
from distilvec.errors import EnvironmentProblem
from distilvec.files import checksum_of
from distilvec.store.files import disk_problems, sync_folder, write_json
from distilvec.store.index import KeyedPart
from distilvec.store.layout import DTYPES, KEY_BYTES, StoreFormat
from distilvec.store.statistics import Moments
from distilvec.system_errors import discard, system_problem

#: Size and age at which a part is written; the age keeps a slow teacher's hours from hanging on one kill.
PART_BYTES = 64 << 20
PART_SECONDS = 300.0
_ARROW_TYPES = {"float16": pa.float16(), "float32": pa.float32(), "int8": pa.int8()}
#: Numbers of errors that come of a file which is no file, or has nothing in it.
_NO_FILE = {errno.EISDIR, errno.EINVAL}


class BadPart(Exception):
    """A part that is not what its record says. The message is the reason."""


@dataclass(frozen=True)
class StorePart(KeyedPart):
    """Views of a mapped file of sentence vectors.

    Attributes:
        values: [n, D] in the stored dtype.
        scale: float32 [n] of int8, and of float16 where a row needed one; else None.
        moments: of the vectors before rounding.
    """

    values: np.ndarray
    scale: np.ndarray | None
    moments: Moments


def arrow_schema(store: StoreFormat, *, scaled: bool = False) -> pa.Schema:
    """The columns of a part of sentence vectors; `scaled`: float16 with a scale per row."""
    columns = [
        pa.field("key", pa.binary(KEY_BYTES), nullable=False),
        pa.field("vector", pa.list_(_ARROW_TYPES[store.dtype], store.width), nullable=False),
    ]
    if scaled or store.dtype == "int8":
        columns.append(pa.field("scale", pa.float32(), nullable=False))
    return pa.schema(columns)


class _HashedFile:
    """A file that Arrow writes to and that hashes what passes, so that nothing is read back."""

    def __init__(self, handle: BinaryIO) -> None:
        self._handle, self._hash, self.closed = handle, hashlib.blake2b(digest_size=32), False

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._hash.update(view)
        self._handle.write(view)
        return view.nbytes

    def tell(self) -> int:
        return self._handle.tell()

    def flush(self) -> None:
        self._handle.flush()

    def close(self) -> None:
        self.closed = True

    def checksum(self) -> str:
        return self._hash.hexdigest()


def write_part(
    folder: Path,
    name: str,
    store: StoreFormat,
    words: np.ndarray,
    values: np.ndarray,
    scale: np.ndarray | None,
    moments: Moments,
) -> None:
    """Write a part so that it exists whole or not at all.

    Args:
        words: uint64 [n, 2] in any order, n >= 1.
        values, scale: as `codec.pack` gives them.
        moments: of the vectors.

    Raises:
        EnvironmentProblem: where the disk is full or forbids writing. Nothing of the part is left then.
    """
    # Stable, so that of equal keys the one added first comes first.
    order = np.lexsort((words[:, 1], words[:, 0]))
    flat = pa.array(values[order].reshape(-1), type=_ARROW_TYPES[store.dtype])
    columns = [pa.FixedSizeListArray.from_arrays(flat, store.width)]
    if scale is not None:
        columns.append(pa.array(scale[order]))
    facts = {"fingerprint": store.fingerprint, "moments": moments.to_dict()}
    write_file(folder / f"{name}.arrow", words[order], columns, arrow_schema(store, scaled=scale is not None), facts)


def write_file(
    arrow: Path, words: np.ndarray, columns: Sequence[pa.Array], schema: pa.Schema, facts: dict[str, Any]
) -> None:
    """Write a part of any signal and its record, so that it exists whole or not at all.

    Args:
        words: uint64 [n, 2], the keys in the order of the rows.
        columns: all but that of the keys, which is the first.
        facts: what the record says besides rows, sizes, checksums and key range.

    Raises:
        EnvironmentProblem: as `write_part`.
    """
    keys = pa.Array.from_buffers(schema.field("key").type, len(words), [None, pa.py_buffer(words)])
    batch = pa.record_batch([keys, *columns], schema=schema)
    with disk_problems(arrow):
        # Exclusive: a name is never written twice, even where two hosts were given the same writer name.
        arrow.touch(exist_ok=False)
        try:
            with open(arrow, "wb", buffering=0) as handle:
                sink = _HashedFile(handle)
                with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), batch.schema) as writer:
                    writer.write_batch(batch)
                os.fsync(handle.fileno())
            sync_folder(arrow.parent)
            record = {
                "rows": len(words),
                "bytes": arrow.stat().st_size,
                "modified": arrow.stat().st_mtime_ns,
                "checksum": sink.checksum(),
                "first_key": words[0].tobytes().hex(),
                "last_key": words[-1].tobytes().hex(),
                **facts,
            }
            _write_record(arrow.with_suffix(".json"), record)
        except BaseException:
            discard(arrow)
            raise


def _write_record(file: Path, record: dict[str, Any]) -> None:
    write_json(file, record | {"record_checksum": checksum_of(record)})


def open_part(folder: Path, name: str, store: StoreFormat) -> StorePart:
    """Map a part after checking sizes, schema and owner; its bytes are not read.

    Raises:
        BadPart, EnvironmentProblem, FileNotFoundError: as `open_file`.
    """
    schemas = [arrow_schema(store)]
    if store.dtype == "float16":
        schemas.append(arrow_schema(store, scaled=True))
    record, words, batch = open_file(folder, name, store.fingerprint, *schemas)
    rows = len(words)
    try:
        scale = view(batch.column(2).buffers()[1], "<f4", rows, 1)[:, 0] if batch.num_columns > 2 else None
        return StorePart(
            name=name,
            words=words,
            checksum=str(record["checksum"]),
            values=view(batch.column(1).values.buffers()[1], DTYPES[store.dtype], rows, store.width),
            scale=scale,
            moments=Moments.from_dict(record["moments"], store.width),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadPart(f"it cannot be read ({type(error).__name__}: {error})") from error


def open_file(
    folder: Path, name: str, fingerprint: str, *schemas: pa.Schema
) -> tuple[dict[str, Any], np.ndarray, pa.RecordBatch]:
    """A part's record, keys uint64 [n, 2] and one record batch, mapped, after checking owner, size, columns and rows.

    Raises:
        BadPart: with the reason, where the files are not what the record says.
        EnvironmentProblem: where they cannot be read now.
        FileNotFoundError: where the record itself is gone.
    """
    record = _read_record(folder / f"{name}.json")
    arrow = folder / f"{name}.arrow"
    try:
        if record["fingerprint"] != fingerprint:
            raise BadPart(f"it is of the teacher {record['fingerprint']}, the store of {fingerprint}")
        size = arrow.stat().st_size
        if size != record["bytes"]:
            raise BadPart(f"the file has {size} bytes, its record says {record['bytes']}")
        with pa.memory_map(str(arrow)) as mapped:  # the buffers keep the mapping, not the descriptor
            reader = pa.ipc.open_file(mapped)
            if not any(reader.schema.equals(schema) for schema in schemas):
                columns = ", ".join(f"{field.name}: {field.type}" for field in reader.schema)
                raise BadPart(f"the columns are not the store's ({columns})")
            if reader.num_record_batches != 1:
                raise BadPart(f"it has {reader.num_record_batches} record batches instead of one")
            batch = reader.get_batch(0)
        if batch.num_rows != record["rows"] or batch.num_rows == 0:
            raise BadPart(f"it has {batch.num_rows} rows, its record says {record['rows']}")
        words = view(batch.column(0).buffers()[1], "<u8", batch.num_rows, 2)
        if (words[0].tobytes().hex(), words[-1].tobytes().hex()) != (record.get("first_key"), record.get("last_key")):
            raise BadPart("its key range is not the one in its record")
        return record, words, batch
    except FileNotFoundError as error:
        raise BadPart("the Arrow file is missing") from error
    except (KeyError, TypeError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise BadPart(f"it cannot be read ({type(error).__name__}: {error})") from error
    except OSError as error:
        raise _unreadable(error, arrow, "it") from error


def verify_part(folder: Path, name: str, *, changed: bool = False) -> None:
    """Read a part's bytes and compare checksums of the file and of its record.

    Args:
        changed: not where the file has not been written since the record was; a copy is read once, and its record
            then says so.

    Raises:
        BadPart: where they differ.
        EnvironmentProblem: where they cannot be read now.
    """
    file, arrow = folder / f"{name}.json", folder / f"{name}.arrow"
    record = _read_record(file)
    try:
        modified = arrow.stat().st_mtime_ns
        if changed and record.get("modified") == modified:
            return
        checksum = file_checksum(arrow)
    except FileNotFoundError as error:
        raise BadPart("the Arrow file is missing") from error
    except OSError as error:
        raise _unreadable(error, arrow, "it") from error
    if checksum != record.get("checksum"):
        raise BadPart("the checksum does not agree with the file")
    if changed:
        # Where nothing may be written, it is read again the next time.
        with contextlib.suppress(OSError, EnvironmentProblem):
            _write_record(file, record | {"modified": modified})


def _read_record(file: Path) -> dict[str, Any]:
    try:
        record = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise
    except (ValueError, RecursionError) as error:
        raise BadPart(f"its record cannot be read ({error})") from error
    except OSError as error:
        raise _unreadable(error, file, "its record") from error
    if not isinstance(record, dict) or record.get("record_checksum") != checksum_of(record):
        raise BadPart("the checksum of its record does not agree")
    return record


def _unreadable(error: OSError, file: Path, what: str) -> BadPart | EnvironmentProblem:
    """Return what an error says: that the file is damaged, or that the system does not let this process read it now.

    A part that another process can read must not be set aside. What pyarrow finds wrong with the content has no number.
    """
    if error.errno is None or error.errno in _NO_FILE:
        return BadPart(f"{what} cannot be read ({type(error).__name__}: {error})")
    return system_problem(error, "the store cannot be read", file, "Nothing was changed.")


def view(buffer: pa.Buffer | None, dtype: Any, rows: int, width: int) -> np.ndarray:
    """A buffer as [rows, width], without copying.

    Raises:
        BadPart: where it is too small.
    """
    needed = rows * width * np.dtype(dtype).itemsize
    if buffer is None or buffer.size < needed:
        raise BadPart(f"a column has {0 if buffer is None else buffer.size} bytes instead of {needed}")
    return np.frombuffer(buffer, dtype=dtype, count=rows * width).reshape(rows, width)
