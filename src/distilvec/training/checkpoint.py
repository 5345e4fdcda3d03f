"""Checkpoints: they appear whole or not at all, list their files with hashes, and hold what an exact resumption needs.

checkpoint-40/model.safetensors     the distiller: student, heads, buffers
checkpoint-40/optimizer.pt          optimiser, schedule, loss scaling
checkpoint-40/ranks.pt              of every process: generators, and what is summed up for the next line of the log
checkpoint-40/trainer_state.json    `State`
checkpoint-40/.distilvec.json       the list, written last
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_model, save_model
from torch import nn

from distilvec.errors import GO_ON, DataError, DistilvecError
from distilvec.files import read_small
from distilvec.folders import MANIFEST, aside_name, differing, remove, remove_all, seal, sealed
from distilvec.system_errors import system_problem
from distilvec.training.distributed import rank
from distilvec.validation import first_problem

logger = logging.getLogger(__name__)
WEIGHTS, OPTIMIZER, RANKS, STATE = "model.safetensors", "optimizer.pt", "ranks.pt", "trainer_state.json"
#: What the name of a checkpoint begins with that is still written.
PARTIAL = ".partial-"
REMOVE = "Remove this folder to go on from the checkpoint before it."
_PARTIAL = re.compile(re.escape(PARTIAL) + r"\d+")
#: Bytes of a state: a line of the log for every step of a long training.
_LONGEST_STATE = 1 << 30
#: Torch says by these names, in errors without a kind, that a file cannot be written.
_WRITERS = ("PytorchStreamWriter", "inline_container", "iostream error")
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
#: Of `Sums`.
_SUMS = ("logged", "batches", "skipped", "seconds")
#: Options of an optimiser that need not be as they were.
_FREE = {"lr", "fused", "foreach"}
#: Of a mark of what is trained on: not of its items.
_NOT_OF_ITEMS = ("method", "precision")
#: State of an optimiser that has the shape of its parameter.
_AS_LARGE = ("exp_avg", "exp_avg_sq", "momentum_buffer")


class State(BaseModel):
    """The progress of a training.

    Attributes:
        global_step: optimiser steps done; which batch comes next follows from it.
        log_history: every logged entry.
        best_metric, best_step: of the best evaluation so far.
        worse: evaluations since then.
        data: what is trained on, as `data_mark` says it.
    """

    model_config = ConfigDict(strict=True, extra="ignore")
    global_step: int = Field(ge=0)
    log_history: list[dict[str, Any]] = Field(default_factory=list)
    best_metric: float | None = None
    best_step: int | None = None
    worse: int = Field(0, ge=0)
    data: dict[str, Any] = Field(default_factory=dict)


# writing


def write(home: Path, state: State, model: nn.Module, optimizer: Mapping[str, Any], ranks: list[Any]) -> None:
    """Write a checkpoint under a temporary name, list its files, and rename it; one process does it for all.

    Raises:
        EnvironmentProblem: the disk is full, or the place cannot be written; earlier checkpoints are untouched.
    """
    name, place = f"checkpoint-{state.global_step}", partial(home, state.global_step)
    folder = place / name
    try:
        with writable(home / name):
            folder.mkdir(parents=True, exist_ok=True)
            save_model(model, str(folder / WEIGHTS))
            torch.save(dict(optimizer), folder / OPTIMIZER)
            torch.save(ranks, folder / RANKS)
            (folder / STATE).write_text(state.model_dump_json(), encoding="utf-8")
            seal(folder, "checkpoint", hashed=True)
            remove(home / name)
            if (home / name).exists():  # with files that are not ours
                (home / name).rename(aside_name(home / name))
            os.replace(folder, home / name)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def partial(home: Path, step: int) -> Path:
    """Return the folder in which a step's checkpoint is made, emptied when that is done, or by the next training."""
    return home / f"{PARTIAL}{step}"


@contextlib.contextmanager
def writable(place: Path) -> Iterator[None]:
    """Say what is wrong with the disk or the folder where a checkpoint cannot be written."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        if isinstance(error, RuntimeError) and not any(each in str(error) for each in _WRITERS):
            raise  # of a GPU, or of other processes
        after = f"Then {GO_ON}; earlier checkpoints are untouched."
        raise system_problem(error, "the checkpoint cannot be written", place, after) from error


def keep(home: Path, most: int | None, best: int | None) -> None:
    """Remove the oldest checkpoints beyond `most`, never the best, or what somebody put there.

    Args:
        most: None = all are kept; 0 = the best alone. Otherwise the newest is never removed.
    """
    ours = sorted((each for each in home.glob("checkpoint-*") if sealed(each)), key=step_of)
    beyond = 0 if most is None else max(len(ours) - most, 0)
    others = [each for each in (ours[:-1] if most else ours) if step_of(each) != best]
    for each in others[:beyond]:
        with contextlib.suppress(OSError):
            remove(each)


# reading


def newest_checkpoint(folder: Path) -> Path | None:
    """The whole checkpoint with the highest step, or None. Half-written ones have another name.

    Raises:
        DataError: its state cannot be read.
    """
    places = [each for each in folder.glob("checkpoint-*") if each.name.removeprefix("checkpoint-").isdigit()]
    checkpoints = [each for each in places if (each / STATE).exists()]
    if not checkpoints:
        return None
    newest = max(checkpoints, key=step_of)
    read_state(newest)
    return newest


def read_state(checkpoint: Path) -> State:
    """Return where a checkpoint's training is."""
    file = checkpoint / STATE
    with readable(file):
        try:
            state = State.model_validate_json(read_small(file, _LONGEST_STATE))
        except ValidationError as error:
            raise ValueError(first_problem(error)) from error
        if state.global_step != step_of(checkpoint):
            raise ValueError(f"its state is of step {state.global_step}")
    return state


def verify(checkpoint: Path, steps: int) -> State:
    """Check that every file is as it was written, and that the training can have reached this step.

    Raises:
        DataError: naming the file.
        DistilvecError: the checkpoint is of a longer training, or of an earlier version.
    """
    found = differing(checkpoint, "checkpoint")
    if found is None:
        raise DistilvecError(
            "this checkpoint has no list with the hashes of its files",
            where=str(checkpoint / MANIFEST),
            remedy="Another version wrote it, or it was damaged. Remove this folder to go on from the checkpoint "
            "before it, or start anew: run again without --resume.",
        )
    if found:
        file = checkpoint / found[0]
        what = "is not as it was written" if file.exists() else "is missing from this checkpoint"
        raise DataError(f"{found[0]} {what}", where=str(file), remedy=REMOVE)
    state = read_state(checkpoint)
    if state.global_step > steps:
        raise DistilvecError(
            f"this checkpoint is of step {state.global_step:,}, and the recipe's training has {steps:,}",
            where=str(checkpoint / STATE),
            remedy="Resume with the recipe that made it, or start anew: run again without --resume.",
        )
    return state


def load_strictly(model: nn.Module, folder: Path) -> None:
    """Load a checkpoint's weights into the distiller; every key must be there and fit.

    Raises:
        DataError: a missing or broken file, or weights of another precision.
        DistilvecError: a checkpoint of another student or method.
    """
    file, state = folder / WEIGHTS, model.state_dict()
    try:
        with safe_open(str(file), "pt") as weights:
            types = {name: _DTYPES.get(weights.get_slice(name).get_dtype()) for name in weights.keys()}  # noqa: SIM118
        other = [name for name, kind in types.items() if kind and name in state and state[name].dtype != kind]
        if other:
            kinds = f"{types[other[0]]} in place of {state[other[0]].dtype}".replace("torch.", "")
            raise DataError(f"the weights are of another precision ({other[0]}: {kinds})", where=str(file))
        load_model(model, str(file), strict=True)
    except (OSError, SafetensorError) as error:
        raise DataError(f"the weights cannot be read ({error})", where=str(file), remedy=REMOVE) from error
    except RuntimeError as error:
        raise DistilvecError(
            f"this checkpoint does not fit the student and method ({str(error).splitlines()[0]})",
            where=str(folder),
            remedy="Resume with the recipe that made it, or start anew in another output folder.",
        ) from error


def read_optimizer(checkpoint: Path, optimizer: torch.optim.Optimizer, mapped: bool = False) -> dict[str, Any]:
    """Return what was kept of the optimiser, its schedule and the loss scaling, after seeing that it fits.

    If it is `mapped`, tensors stay in the file, of which each process takes its part.
    """
    file = checkpoint / OPTIMIZER
    with readable(file):
        kept: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
        groups = zip(kept["optimizer"]["param_groups"], optimizer.param_groups, strict=True)
        for number, (was, now) in enumerate(groups):
            for name, value in now.items():
                # The schedule changes the rate, and another device the ways; the recipe decides what else there is.
                if name not in _FREE and isinstance(value, float | tuple | bool) and was.get(name) != value:
                    raise ValueError(f"{name} of group {number} is {was.get(name)!r:.40}, and {value} here")
            if not math.isfinite(was["lr"]):
                raise ValueError(f"lr of group {number} is {was['lr']}")
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for number, values in kept["optimizer"]["state"].items():
            for name in _AS_LARGE:
                if name in values and values[name].shape != parameters[number].shape:
                    found, wanted = list(values[name].shape), list(parameters[number].shape)
                    raise ValueError(f"{name} {number} has shape {found}, its parameter {wanted}")
    return kept


def read_rank(checkpoint: Path) -> dict[str, Any]:
    """Return what was kept of this process: `generators` and `sums`."""
    file = checkpoint / RANKS
    with readable(file):
        ranks: list[dict[str, Any]] = torch.load(file, map_location="cpu", weights_only=True)
        if not all({"generators", "sums"} <= each.keys() for each in ranks):
            raise KeyError("the state of a generator is missing")
        if not all(math.isfinite(each["sums"][name]) for each in ranks for name in _SUMS):
            raise ValueError("what is summed up for the log are no numbers")
        return ranks[rank() % len(ranks)]


@contextlib.contextmanager
def readable(place: Path) -> Iterator[None]:
    """Turn what a damaged or foreign checkpoint raises into an error that says so."""
    try:
        yield
    except DistilvecError:
        raise
    except Exception as error:  # pickle, torch, json and zip all have their own
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"this checkpoint cannot be taken up ({message})", where=str(place), remedy=REMOVE) from error


def step_of(checkpoint: Path) -> int:
    """The step in a checkpoint's name; 0 where there is none."""
    number = checkpoint.name.removeprefix("checkpoint-")
    return int(number) if number.isdecimal() else 0


def check_finite(model: nn.Module, step: int) -> None:
    """Refuse to keep weights that the last step broke: no loss after it would tell."""
    values = model.state_dict().items()
    broken = [name for name, value in values if value.is_floating_point() and not torch.isfinite(value).all()]
    if broken:
        raise DataError(
            f"{len(broken)} tensors of the trained model are not finite ({', '.join(broken[:3])} ...)",
            where=f"step {step}",
            remedy="Lower optimizer.lr and optimizer.heads_lr. Earlier checkpoints are kept.",
        )


# whose a checkpoint is


def other_code(known: Any, data: Mapping[str, Any]) -> bool:
    """Tell whether the text of a method that is not ours is known to have changed between two marks."""
    then = known.get("method") if isinstance(known, dict) else None
    return bool(then and data.get("method") and then != data["method"])


def refuse_other_code(known: Any, data: Mapping[str, Any], where: Path) -> None:
    """Refuse to go on with another loss under the same name."""
    if other_code(known, data):
        raise DistilvecError(
            "the code of the method has changed since this training was begun",
            where=str(where),
            remedy="Put it back as it was, or start anew: run again without --resume.",
        )


def refuse_other_data(checkpoint: Path, data: dict[str, Any]) -> None:
    """Refuse to go on from a checkpoint that was trained on something else than `data`, as `data_mark` says it."""
    known = read_state(checkpoint).data
    refuse_other_code(known, data, checkpoint)
    if not known or all(known.get(name) == value for name, value in data.items() if name not in _NOT_OF_ITEMS):
        return
    changed = [
        f"{name}: {known.get(name)} then, {data[name]} now"
        for name in ("items", "train", "held_out")
        if known.get(name) != data[name]
    ]
    if not changed:
        same = known.get("content") == data["content"]
        changed = [
            "the same items in another order, or with other labels" if same else "other items, as many as before"
        ]
    raise DistilvecError(
        f"the corpus has changed since this checkpoint was written ({'; '.join(changed)})",
        where=str(checkpoint),
        remedy="Put the corpus back as it was, or start anew: run again without --resume (of a comparison or a "
        "fine-tuning, remove this folder first).",
    )


def tidy(folder: Path, *, resume: bool) -> None:
    """Remove what a killed run left half-written; where training starts anew, set an earlier run's checkpoints aside.

    Without this, resuming a run that was killed before its first checkpoint would go on from another run's.
    """
    for partial in folder.glob(f"{PARTIAL}*"):
        if _PARTIAL.fullmatch(partial.name) and not partial.is_symlink():
            shutil.rmtree(partial, ignore_errors=True)
    if resume or not any(folder.glob("checkpoint-*")):
        return
    before, number = folder.with_name(f"{folder.name}-before"), 1
    while os.path.lexists(before):
        if not before.is_symlink():
            remove_all(before)
        if not os.path.lexists(before):
            break
        number += 1  # something else is kept there
        before = folder.with_name(f"{folder.name}-before-{number}")
    folder.rename(before)
    logger.warning("Training starts anew; the checkpoints of the run before are now in %s.", before)
