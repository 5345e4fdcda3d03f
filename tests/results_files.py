"""Committed results of experiments, written for tests, and their modules."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

EXPERIMENTS = Path(__file__).parent.parent / "experiments"


@contextmanager
def experiments(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports modules of the experiments afresh ("talas.run"): they look for their folders when they are imported."""
    for name in _imported():
        monkeypatch.delitem(sys.modules, name)
    yield lambda name: importlib.import_module(f"experiments.{name}")
    for name in _imported():
        del sys.modules[name]


def _imported() -> list[str]:
    return [name for name in sys.modules if name.partition(".")[0] == "experiments"]


def write(results: Path, experiment: str, name: str, result: dict[str, Any], **options: Any) -> None:
    """Add a record to an experiment's file."""
    file = results / experiment / "results.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    record = {"name": name, "key": None, "options": options, "made": {}, "result": result}
    with file.open("a") as lines:
        lines.write(json.dumps(record) + "\n")


def no_committed_figure(records: Any, name: str, made: dict[str, dict[str, Any]], rounded: bool = False) -> None:
    """Fails where a result of a new run is one of those that are committed.

    Args:
        records: the experiments' module of that name.
        name: of the experiment.
        made: row -> its new record.
        rounded: all results are, so that no single number can tell; whole results are still compared.
    """
    known = records.committed(name)
    old = {value for row in known.values() for value in _numbers(row)}
    # What is measured before training may be the same, and so are ones but for their rounding.
    trained = [record for row, record in made.items() if not row.split("/")[-1].startswith(("before", "base", "start"))]
    new = {value for record in trained for value in _numbers(record["result"]) if abs(value - round(value)) > 1e-5}
    assert not old & new, sorted(old & new)
    assert new or rounded
    assert all(record["result"] != known.get(row) for row, record in made.items())
    assert all(record["key"] and record["options"] is not None for record in made.values())


def _numbers(value: Any) -> Iterator[float]:
    """All numbers in a result that are neither rounded nor shares of few items, which any two results may share."""
    if isinstance(value, dict):
        for key, each in value.items():
            if "before" not in key:  # what is measured before training may be the same
                yield from _numbers(each)
    elif isinstance(value, list):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, float):
        share = float(Fraction(value).limit_denominator(1000))
        if round(value, 6) != value and abs(value - share) > 1e-9:
            yield value
