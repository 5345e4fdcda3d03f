"""The surroundings that a run's numbers depend on besides the recipe: libraries, working tree, machine, files."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from distilvec.judging.speed import machine_of
from distilvec.modules.blocks import find_transformer
from distilvec.report.data import RecordPart

LIBRARIES = ("torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "scikit-learn", "pyarrow")


class Machine(RecordPart):
    """The machine that the times were measured on. Never a path, a user or a host name."""

    device: str = "cpu"
    name: str = ""
    cores: int | None = None
    threads: int | None = None
    system: str = ""

    def text(self) -> str:
        counted = [f"{count} {what}" for count, what in ((self.cores, "cores"), (self.threads, "threads")) if count]
        return ", ".join(part for part in (self.device, self.name, *counted) if part)


def library_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("distilvec", *LIBRARIES):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def git_state() -> str | None:
    """Commit of the working folder, with `+` if there are changes; None outside a repository."""
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def machine(model: Any) -> Machine:
    found = machine_of(model)
    return Machine(name=found.pop("machine"), system=platform.system(), **found)


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def unused_pooler(model: Any) -> int:
    """Parameters of a pooler if the vectors are made of token states: it is counted, but does not matter."""
    transformer = None if model is None else find_transformer(model)
    if transformer is None or getattr(transformer, "module_output_name", None) != "token_embeddings":
        return 0
    pooler = getattr(transformer.model, "pooler", None)
    return 0 if pooler is None else sum(each.numel() for each in pooler.parameters())
