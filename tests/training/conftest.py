"""Training jobs of the tests: a prepared corpus, store and students."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.training import jobs


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Corpus, store and students (`student` with dropout, `still` without). Do not write."""
    return jobs.prepare(tmp_path_factory.mktemp("training-home"))
