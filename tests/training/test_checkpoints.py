"""Which checkpoints are kept."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.assembling import run

from distilvec.errors import DataError, Interrupted
from distilvec.training import checkpoint
from distilvec.training.log import Sums


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


@pytest.mark.parametrize("value", [None, 10**400, float("nan"), "x", 0.5, [0.9]])
def test_options_of_an_optimizer_are_the_recipes(tmp_path: Path, value: Any) -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))], lr=0.1, eps=1e-8)

    def kept(**changes: Any) -> dict[str, Any]:
        state = optimizer.state_dict()
        state["param_groups"] = [state["param_groups"][0] | changes]
        torch.save({"optimizer": state}, tmp_path / checkpoint.OPTIMIZER)
        return checkpoint.read_optimizer(tmp_path, optimizer)

    assert kept(lr=0.05)["optimizer"]["param_groups"][0]["lr"] == 0.05, "as the schedule left it"
    for name in ("eps", "betas", "weight_decay", "maximize"):
        with pytest.raises(DataError, match=rf"optimizer\.pt: .*{name} of group 0"):
            kept(**{name: value})
    if value != 0.5:
        with pytest.raises(DataError, match=r"optimizer\.pt: .*cannot be taken up"):
            kept(lr=value)


@pytest.mark.parametrize("value", [None, 10**400, float("nan"), "x", [1]])
@pytest.mark.parametrize("name", ["logged", "batches", "skipped", "seconds"])
def test_sums_of_the_log_are_numbers(tmp_path: Path, name: str, value: Any) -> None:
    kept = {"generators": {}, "sums": asdict(Sums())}
    torch.save([kept], tmp_path / checkpoint.RANKS)
    assert checkpoint.read_rank(tmp_path) == kept
    torch.save([kept | {"sums": kept["sums"] | {name: value}}], tmp_path / checkpoint.RANKS)
    with pytest.raises(DataError, match=r"ranks\.pt: .*cannot be taken up"):
        checkpoint.read_rank(tmp_path)
