"""Damage checkpoints bit by bit and field by field, with or without a new seal, and resume the training."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attacking import doors
from attacking.typed import VALUES, fields, replaced

#: A tensor where one is, of another size and type, and what no JSON has.
TENSORS = ("wider", "empty", "scalar", "integers", "halves", "nan", "infinity")


def checkpoint(rng: Any, inputs: Path, folder: Path, mark: Path) -> Callable[[], int | None]:
    """A training that was killed, whose newest checkpoint is damaged: refused, or gone on with to the same weights.

    With a new seal nothing says that it was damaged; then what is no number must be refused.
    """
    shutil.copytree(inputs / "unfinished", folder / "out")
    place = max(each for each in (folder / "out/checkpoints").glob("checkpoint-*"))
    sealed = rng.random() < 0.6
    how = rng.random()
    if how < 0.3 or (how < 0.4 and sealed):
        told, known = _flipped(place, rng), not sealed
    elif how < 0.55:
        told, known = _in_json(place, rng), True
    else:
        told, known = _in_pickle(place, rng)
    if sealed:
        from distilvec.folders import seal

        seal(place, "checkpoint", hashed=True)
    rng.told = f"{told}{', sealed again' if sealed else ''}"

    def act() -> int | None:
        if known or not sealed:
            return doors.unfinished(rng, inputs, folder)
        from attacking.children import call

        return call(["train", str(inputs / "both.yaml"), "-o", "out", "--resume"])

    return act


def _flipped(place: Path, rng: random.Random) -> str:
    """One bit of one file; the manifest's seal is one of the files."""
    file = rng.choice(sorted(each for each in place.iterdir() if each.is_file()))
    data = bytearray(file.read_bytes())
    at, bit = rng.randrange(len(data)), rng.randrange(8)
    data[at] ^= 1 << bit
    file.write_bytes(data)
    return f"{file.name}: bit {bit} of byte {at}"


def _in_json(place: Path, rng: random.Random) -> str:
    file = rng.choice((place / "trainer_state.json", place / ".distilvec.json"))
    content = json.loads(file.read_text())
    field, value = rng.choice(list(fields(content))), rng.choice(list(VALUES))
    file.write_text(json.dumps(replaced(content, field, VALUES[value])))
    return f"{file.name}: {'.'.join(map(str, field))} is {value}"


def _in_pickle(place: Path, rng: random.Random) -> tuple[str, bool]:
    """Put another value into a field that torch saved; say whether it can be told from a right one."""
    import torch

    file = rng.choice((place / "optimizer.pt", place / "optimizer.pt", place / "ranks.pt"))
    content = torch.load(file, weights_only=True)
    field = rng.choice(list(_leaves(content)))
    before = content
    for key in field:
        before = before[key]
    tensor = isinstance(before, torch.Tensor)
    value = rng.choice((*TENSORS, *VALUES)) if tensor else rng.choice(list(VALUES))
    torch.save(_put(content, field, _tensor(before, value) if tensor and value in TENSORS else VALUES[value]), file)
    numbers = value in ("true", "negative", "huge", "infinity", "null", "halves", "integers", "scalar")
    return f"{file.name}: {'.'.join(map(str, field))} is {value}", not numbers


def _tensor(before: Any, how: str) -> Any:
    import torch

    if how in ("nan", "infinity"):
        return torch.full_like(before, float(how[:3])) if before.is_floating_point() else before.double() * np.nan
    changed = {
        "wider": lambda: torch.cat([before.reshape(-1), before.reshape(-1)]),
        "empty": lambda: before.reshape(-1)[:0],
        "scalar": lambda: before.reshape(-1)[0] * 1,
        "integers": lambda: before.to(torch.int64),
        "halves": lambda: before.to(torch.float16),
    }
    return changed[how]()


def _leaves(content: Any, field: tuple[Any, ...] = ()) -> Any:
    yield field
    if isinstance(content, dict):
        for key in content:
            yield from _leaves(content[key], (*field, key))
    elif isinstance(content, list | tuple):
        for place in sorted({0, len(content) - 1}) if content else ():
            yield from _leaves(content[place], (*field, place))


def _put(content: Any, field: tuple[Any, ...], value: Any) -> Any:
    if not field:
        return value
    first, rest = field[0], field[1:]
    if isinstance(content, dict):
        return {key: _put(each, rest, value) if key == first else each for key, each in content.items()}
    return type(content)(_put(each, rest, value) if at == first else each for at, each in enumerate(content))
