"""Average ranks: by hand, against the paper's own example, and as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distilvec.report.plots import save_svg, style
from distilvec.report.ranks import (
    _bars,
    common_tasks,
    critical_difference,
    friedman,
    make_ranking,
    ranks,
    ranks_figure,
)

SCORES = {
    "a": {"one": 0.9, "two": 0.8, "three": 0.7, "only a": 1.0},
    "b": {"one": 0.5, "two": 0.8, "three": 0.6},
    "c": {"one": 0.6, "two": 0.1, "three": 0.9},
}


def test_ranks_by_hand() -> None:
    tasks = common_tasks(SCORES)
    assert tasks == ["one", "three", "two"]
    given = ranks(SCORES, tasks)
    assert given.tolist() == [[1, 3, 2], [2, 3, 1], [1.5, 1.5, 3]]
    assert friedman(np.tile([1.0, 2.0, 3.0], (10, 1))) < 1e-3
    assert make_ranking(SCORES) is None, "three tasks are too few"
    assert make_ranking({"a": {str(i): 1.0 for i in range(9)}, "b": {str(i): 2.0 for i in range(9)}}) is None


def test_the_critical_difference_is_demsars() -> None:
    """Section 3.2.2 and Table 5: four classifiers on 14 sets, q = 2.569."""
    assert critical_difference(4, 14) == pytest.approx(2.569 * np.sqrt(4 * 5 / (6 * 14)), abs=2e-3)
    assert _bars(np.array([1.0, 1.5, 2.4, 4.0]), 1.0) == [(0, 1), (1, 2)]


def test_a_ranking_and_its_picture(tmp_path: Path) -> None:
    scores = {
        name: {str(task): level + task for task in range(12)} for name, level in (("x", 3), ("y_1$", 2), ("z", 1))
    }
    found = make_ranking(scores)
    assert found is not None and found.average == {"x": 1.0, "y_1$": 2.0, "z": 3.0} and found.tasks == 12
    assert found.chance < 1e-4 and found.critical == pytest.approx(2.343 * np.sqrt(12 / 72), abs=2e-3)
    assert "over 12 tasks" in found.statement()
    with style():
        save_svg(ranks_figure(found), tmp_path / "ranks.svg")
    drawn = (tmp_path / "ranks.svg").read_text()
    assert "y_1$ (2.00)" in drawn and "critical difference 0.96" in drawn
    alike = make_ranking(dict.fromkeys(scores, scores["x"]))
    assert alike is not None and alike.chance == 1.0 and set(alike.average.values()) == {2.0}
