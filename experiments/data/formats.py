"""How the files of the data folder are written and what two files must share to be equal.

A file counts by its content, not by its bytes: another version of zlib or NumPy packs the same rows into other bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import heapq
import io
import json
import unicodedata
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

#: How many row hashes the manifest keeps of a file: with 128, a share of rows is estimated to within 9 points.
SKETCH = 128


def clean(text: str) -> str:
    """The text in Unicode's composed form (NFC), every run of white space one space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def pack(data: bytes) -> bytes:
    """Gzip without name and time, so that the same rows give the same bytes."""
    return gzip.compress(data, compresslevel=9, mtime=0)


def jsonl(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """One JSON object per line, gzip."""
    lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
    return pack("".join(lines).encode())


def npz(**arrays: np.ndarray) -> bytes:
    """A NumPy archive with compressed arrays."""
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def tensors(named: Mapping[str, np.ndarray]) -> bytes:
    """A safetensors file."""
    return save_tensors({name: np.asarray(array, order="C") for name, array in named.items()})


def describe(name: str, data: bytes) -> dict[str, Any]:
    """Rows (lines, or arrays), the hash of the content and, of files of lines, the smallest row hashes.

    The `sketch` is a uniform sample of the distinct rows, the same on every machine: the share of it that another file
    has too estimates the share of rows in common. `sorted` is the hash of the rows in sorted order.

    >>> describe("a.jsonl.gz", jsonl([{"text": "a"}, {"text": "b"}]))["rows"]
    2
    """
    if name.endswith((".npz", ".safetensors")):
        named = load_tensors(data) if name.endswith(".safetensors") else _arrays(data)
        content = hashlib.sha256()
        for key in sorted(named):
            content.update(f"{key} {named[key].dtype.str} {named[key].shape}".encode())
            content.update(np.ascontiguousarray(named[key]).tobytes())
        return {"rows": len(named), "sha256": content.hexdigest()}
    plain = gzip.decompress(data) if name.endswith(".gz") else data
    found: dict[str, Any] = {"sha256": hashlib.sha256(plain).hexdigest()}
    if name.endswith((".jsonl.gz", ".csv.gz", ".smi.gz", "vocab.txt", "merges.txt")):
        lines = plain.splitlines()
        found["rows"] = len(lines) - name.endswith(".csv.gz")
        found["sorted"] = hashlib.sha256(b"\n".join(sorted(lines))).hexdigest()
        found["sketch"] = heapq.nsmallest(SKETCH, row_hashes(lines))
    return found


def row_hashes(lines: Iterable[bytes]) -> set[str]:
    """48 bits of the hash of every distinct line."""
    return {hashlib.sha256(line).hexdigest()[:12] for line in lines}


def read_lines(file: Path) -> list[bytes]:
    """The lines of a text file, gzip or not."""
    data = file.read_bytes()
    return (gzip.decompress(data) if file.suffix == ".gz" else data).splitlines()


def _arrays(data: bytes) -> dict[str, np.ndarray]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except zipfile.BadZipFile:
        return {}
