"""Whether a configuration asks for more than its weights hold: a few digits can ask for all memory there is."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distilvec.errors import DataError, DistilvecError

#: Counts of parts, each of which has a tensor of its own in the weights (or shares one with few others).
_COUNTS = re.compile(r"(layers?|layer|groups|depths?|blocks?|experts)$")
_WIDTHS = ("hidden_size", "d_model", "dim", "n_embd", "embed_dim", "embedding_size", "hidden_dim")
#: Sizes of tables with a row or column per unit, as wide as the model.
_ROWS = re.compile(
    r"(vocab_size|position_embeddings|positions|type_vocab_size|intermediate_size|ffn_dim|inner|size|features|channels)$"
)
#: Parts and numbers that a model may have beyond its weights: shared layers; poolers, buffers and tables of positions.
_MORE_PARTS, _MORE_NUMBERS = 256, 50_000_000


def weight_files(place: Path) -> list[Path]:
    """The safetensors files of a folder."""
    return sorted(file for file in place.iterdir() if file.name.endswith(".safetensors") and file.is_file())


def check_size(place: Path) -> None:
    """Compare the numbers in config.json with the weights beside it.

    Raises:
        DistilvecError: the configuration asks for many times as much.
        DataError: the weights' headers cannot be read.
    """
    file, weights = place / "config.json", weight_files(place)
    if not file.is_file() or not weights:
        return
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return  # opening it says so
    if not isinstance(config, dict):
        return
    tensors, numbers = _held(weights)
    for section in _sections(config):
        width = max((_number(section.get(name)) for name in _WIDTHS), default=0) or 1
        for key, value in section.items():
            count = max((_number(each) for each in (value if isinstance(value, list) else [value])), default=0)
            parts = bool(_COUNTS.search(key)) and count > tensors + _MORE_PARTS
            rows = bool(_ROWS.search(key)) and count * width > 8 * numbers + _MORE_NUMBERS
            if parts or rows:
                raise DistilvecError(
                    f"{key} is {count:,}, and the weights hold {tensors:,} tensors with {numbers:,} numbers",
                    where=str(file),
                    remedy="Configuration and weights do not belong together; copy or download the model again.",
                )


def _held(weights: list[Path]) -> tuple[int, int]:
    """Tensors and numbers in safetensors files, by their headers; packed weights count by their bytes."""
    from safetensors import SafetensorError, safe_open

    tensors = numbers = 0
    for file in weights:
        try:
            with safe_open(file, framework="numpy") as opened:
                for name in opened.keys():  # noqa: SIM118  this is no dictionary
                    tensors, numbers = tensors + 1, numbers + math.prod(opened.get_slice(name).get_shape())
        except (OSError, SafetensorError) as problem:
            raise DataError(
                f"the weights cannot be read: {problem}", where=str(file), remedy="Copy or download the model again."
            ) from problem
    return tensors, numbers


def _sections(config: dict[str, Any], depth: int = 0) -> Iterator[dict[str, Any]]:
    """A configuration and those within it (text_config, vision_config ...)."""
    yield config
    if depth < 5:
        for value in config.values():
            if isinstance(value, dict):
                yield from _sections(value, depth + 1)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
