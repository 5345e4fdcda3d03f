"""Files of a store: whole and on disk, or not there at all; and errors that speak of the store."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distilvec import system_errors
from distilvec.files import temporary


def write_json(file: Path, content: Mapping[str, Any], indent: int | None = None) -> None:
    """Write a JSON file that is either absent or complete, whatever happens meanwhile."""
    with temporary(file.parent) as partial:
        with open(partial, "w", encoding="utf-8") as handle:
            handle.write(json.dumps(content, indent=indent, default=str))
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(partial, file)
    sync_folder(file.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_problems(where: Path) -> Iterator[None]:
    """Turn what the system says of a store's disk into an `EnvironmentProblem`; let other errors through."""
    with system_errors.disk_problems("the store cannot be written", where, "What is complete is kept."):
        yield
