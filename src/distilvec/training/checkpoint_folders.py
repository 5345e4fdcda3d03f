"""Folders of checkpoints: which are whole, what they were trained on, and what a killed run left of them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_model
from transformers import TrainerState

from distilvec.errors import DataError, DistilvecError
from distilvec.folders import remove_all

if TYPE_CHECKING:
    from distilvec.training.distiller import Distiller

logger = logging.getLogger(__name__)
WEIGHTS, DATA = "model.safetensors", "data.json"
#: What the name of a checkpoint begins with that is still written.
PARTIAL = ".partial-"
REMOVE = "Remove this folder to go on from the checkpoint before it."
_PARTIAL = re.compile(re.escape(PARTIAL) + r"\d+")


def load_strictly(distiller: Distiller, folder: Path) -> None:
    """Load a checkpoint's weights into the distiller; every key must be there and fit.

    Raises:
        DataError: a missing or broken file.
        DistilvecError: a checkpoint of another student or method.
    """
    try:
        load_model(distiller, str(folder / WEIGHTS), strict=True)
    except (OSError, SafetensorError) as error:
        raise DataError(f"the weights cannot be read ({error})", where=str(folder / WEIGHTS), remedy=REMOVE) from error
    except RuntimeError as error:
        raise DistilvecError(
            f"this checkpoint does not fit the student and method ({str(error).splitlines()[0]})",
            where=str(folder),
            remedy="Resume with the recipe that made it, or start anew in another output folder.",
        ) from error


def newest_checkpoint(folder: Path) -> Path | None:
    """The whole checkpoint with the highest step, or None. Half-written ones have another name.

    Raises:
        DataError: its state cannot be read.
    """
    checkpoints = [
        (int(place.name.removeprefix("checkpoint-")), place)
        for place in folder.glob("checkpoint-*")
        if place.name.removeprefix("checkpoint-").isdigit() and (place / "trainer_state.json").exists()
    ]
    if not checkpoints:
        return None
    newest = max(checkpoints)[1]
    with readable(newest):
        state = TrainerState.load_from_json(str(newest / "trainer_state.json"))
        if not isinstance(state.global_step, int) or state.global_step < 1 or not isinstance(state.log_history, list):
            raise TypeError("trainer_state.json holds no training's state")
    return newest


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


def known_data(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint was trained on, as `data_mark` said it; empty of a version that did not write it down."""
    file = checkpoint / DATA
    if not file.exists():
        return {}
    with readable(checkpoint):
        return dict(json.loads(file.read_text(encoding="utf-8")))


def other_code(known: Any, data: Mapping[str, Any]) -> bool:
    """Whether the text of a method that is not ours is known to have changed between two marks."""
    then = known.get("method") if isinstance(known, dict) else None
    return bool(then and data.get("method") and then != data["method"])


def refuse_other_code(known: Any, data: Mapping[str, Any], where: Path) -> None:
    """Refuse to go on with another loss under the same name.

    Raises:
        DistilvecError: the text of a method that is not ours has changed.
    """
    if other_code(known, data):
        raise DistilvecError(
            "the code of the method has changed since this training was begun",
            where=str(where),
            remedy="Put it back as it was, or start anew: run again without --resume.",
        )


def refuse_other_data(checkpoint: Path, data: dict[str, Any]) -> None:
    """Refuse to go on from a checkpoint that was trained on something else.

    Args:
        data: what there is now, as `data_mark` says it.

    Raises:
        DistilvecError: it says what changed.
    """
    known = known_data(checkpoint)
    refuse_other_code(known, data, checkpoint)
    if not known or all(known.get(name) == value for name, value in data.items() if name != "method"):
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


@contextlib.contextmanager
def readable(place: Path) -> Iterator[None]:
    """What a damaged or foreign checkpoint raises becomes an error that says so."""
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
    return int(number) if number.isdigit() else 0
