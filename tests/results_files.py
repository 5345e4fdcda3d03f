"""Committed results of experiments, written for tests, and their modules by plain names."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

EXPERIMENTS = Path(__file__).parent.parent / "experiments"


@contextmanager
def experiments(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports a part of the experiments afresh, by its plain name, as the scripts do."""
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    neighbours = {file.stem for file in EXPERIMENTS.glob("*.py")}
    for name in neighbours & set(sys.modules):
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module
    for name in neighbours & set(sys.modules):
        del sys.modules[name]


def write(results: Path, experiment: str, name: str, result: dict[str, Any], **options: Any) -> None:
    """Add a record to an experiment's file."""
    file = results / experiment / "results.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    record = {"name": name, "key": None, "options": options, "made": {}, "result": result}
    with file.open("a") as lines:
        lines.write(json.dumps(record) + "\n")
