"""What a run's numbers depend on besides the recipe: libraries, the working tree, the machine, files on disk."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from distilvec.report.record import Machine

LIBRARIES = ("torch", "transformers", "sentence-transformers", "tokenizers", "numpy", "scikit-learn", "pyarrow")


def library_versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    versions = {"python": platform.python_version()}
    for name in ("distilvec", *LIBRARIES):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def git_state() -> str | None:
    """Commit of the working folder, with `+` where there are changes; None outside a repository."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=5, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + ("+" if changed else "")


def machine(device: str) -> Machine:
    """What times were measured on."""
    import torch

    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(device=device, name=name, cores=cores, threads=torch.get_num_threads(), system=platform.system())


def folder_bytes(folder: Path) -> int:
    """Size of a folder's files."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
