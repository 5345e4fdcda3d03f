"""The shared data folder, and the mark of tests that need all of it.

DISTILVEC_DATA, or `shared` beside the project. `pytest -m shared` runs just these tests; where the folder is not there
they are skipped. A test that needs only some rows or a small network has them in tests/data.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., object])

SHARED = Path(os.environ.get("DISTILVEC_DATA", Path(__file__).resolve().parents[2] / "shared"))
#: Some rows of most sets and a small network, in the same layout: see tests/data/make.py.
SMALL = Path(__file__).parent / "data" / "shared"
_missing = pytest.mark.skipif(
    not ((SHARED / "data").is_dir() and (SHARED / "models").is_dir()),
    reason=f"the whole shared data are needed, and there are none at {SHARED} (DISTILVEC_DATA)",
)


def needs_shared(test: Test) -> Test:
    """Mark a test `shared`, and skip it where the data are not there."""
    return pytest.mark.shared(_missing(test))
