from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.training.starting import Running, Starter

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
def process(start: Starter) -> Callable[..., Running]:
    """Start filling.py in a process of its own."""
    code = SCRIPT.read_text()

    def begin(folder: Path, *options: Any) -> Running:
        return start.code(code, folder, *options)

    return begin
