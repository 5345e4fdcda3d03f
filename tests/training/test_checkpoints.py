"""Which checkpoints are kept."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.training.assembling import run

from distilvec.errors import Interrupted


def scored(*scores: float, then: Callable[[int], None] = lambda _: None) -> Callable[..., dict[str, float]]:
    """An evaluation with these scores, which does something else, too."""
    calls = iter(enumerate(scores, 1))

    def evaluate(*_: Any) -> dict[str, float]:
        number, score = next(calls)
        then(number)
        return {"score": score}

    return evaluate


BEST = {"evaluate_every": 1, "best": "score", "save_total_limit": 1}


def test_checkpoint_of_a_stop_is_kept(home: Path, tmp_path: Path) -> None:
    def stop(number: int) -> None:
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="at step 4 of 5"):
        run(home, tmp_path, evaluate=scored(0.1, 0.9, 0.5, 0.4, then=stop), **BEST)
    assert {place.name for place in (tmp_path / "checkpoints").iterdir()} == {"checkpoint-2", "checkpoint-4"}


def test_foreign_folder_stays_if_only_the_best_is_kept(home: Path, tmp_path: Path) -> None:
    mine = tmp_path / "checkpoints" / "checkpoint-99" / "mine.txt"

    def write(_: int) -> None:
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_text("mine")

    run(home, tmp_path, evaluate=scored(0.1, 0.9, 0.5, 0.4, 0.3, then=write), **BEST)
    assert mine.read_text() == "mine"
    assert {place.name for place in (tmp_path / "checkpoints").iterdir()} == {"checkpoint-2", "checkpoint-99"}
