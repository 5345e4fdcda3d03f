from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("filling.py")


@pytest.fixture(scope="session")
def filling() -> ModuleType:
    """The module filling.py: texts, keys, vectors, HashTeacher, CARD."""
    spec = importlib.util.spec_from_file_location("filling", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def process() -> Callable[..., subprocess.Popen[str]]:
    """Start filling.py in a process of its own."""

    def start(folder: Path, *options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, str(SCRIPT), str(folder), *map(str, options)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start
