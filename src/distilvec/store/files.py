"""How files become visible: whole, on disk, or not at all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distilvec import system_errors


def write_json(file: Path, content: Mapping[str, Any], indent: int | None = None) -> None:
    """Write a JSON file that is either absent or complete, whatever happens meanwhile.

    Each call has a temporary name of its own: of two that write the same file at once the later one stays.
    """
    temporary = file.with_name(f"{file.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as handle:
            handle.write(json.dumps(content, indent=indent, default=str))
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, file)
    except BaseException:
        system_errors.discard(temporary)
        raise
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
    """Turn what the system says of a store's disk into an `EnvironmentProblem`; let other errors through.

    Raises:
        EnvironmentProblem: no room, no permission, or the disk fails.
    """
    with system_errors.disk_problems("the store cannot be written", where, "What is complete is kept."):
        yield
