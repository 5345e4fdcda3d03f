"""Rows of the shared files, and files of rows."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.harness.script import shared


def shared_rows(name: str) -> Iterator[dict[str, Any]]:
    """The rows of a shared file, such as "pairs" or "sick.test"."""
    yield from read_rows(shared() / "data" / f"{name}.jsonl.gz")


def read_rows(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file of JSON lines, compressed or not."""
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def write_rows(file: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Write JSON lines, all or none; returns the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    partial.replace(file)
    return file
