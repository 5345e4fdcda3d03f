"""The shared data, for tests that are skipped where they are not: DISTILVEC_DATA, or `shared` beside the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("DISTILVEC_DATA", Path(__file__).resolve().parents[2] / "shared"))
needs_shared = pytest.mark.skipif(
    not ((SHARED / "data").is_dir() and (SHARED / "models").is_dir()),
    reason=f"there are no shared data at {SHARED} (DISTILVEC_DATA)",
)
