"""A check that a configuration fits the size of its weights: a few digits can ask for all memory there is."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distilvec.errors import DistilvecError
from distilvec.modules.settings import object_in, tensor_shapes

#: Counts of parts, each of which has a tensor of its own in the weights (or shares one with few others).
_COUNTS = re.compile(r"(layers?|layer|groups|depths?|blocks?|experts)$")
_WIDTHS = ("hidden_size", "d_model", "dim", "n_embd", "embed_dim", "embedding_size", "hidden_dim")
#: The width of what a map reads, which its outputs are multiplied with.
_INPUTS = "in_features"
#: Files of settings that a module is built from, and the parts of others that override config.json.
_FILES, _OVERRIDING = ("config.json", "lstm_config.json", "cnn_config.json"), "sentence_*_config.json"
_PARTS = ("config_args", "config_kwargs", "model_args", "model_kwargs")
#: Sizes of tables with a row or column per unit, as wide as the model.
_ROWS = re.compile(
    r"(vocab_size|position_embeddings|positions|type_vocab_size|intermediate_size|ffn_dim|inner|size|features|channels)$"
)
#: Parts and numbers that a model may have beyond its weights: shared layers; poolers, buffers and tables of positions.
_MORE_PARTS, _MORE_NUMBERS = 256, 50_000_000
#: Sections within sections that are looked at.
_DEEPEST = 5


def weight_files(place: Path) -> list[Path]:
    """The safetensors files of a folder."""
    return sorted(file for file in place.iterdir() if file.name.endswith(".safetensors") and file.is_file())


def check_size(place: Path) -> None:
    """Refuse numbers to build a module with, after all overrides, that ask for many times the weights beside them."""
    shapes = [shape for file in weight_files(place) for shape in tensor_shapes(file).values()]
    tensors, numbers = len(shapes), sum(map(math.prod, shapes))  # packed weights count by their bytes
    for file, section in ((file, section) for file, config in _settings(place) for section in sections(config)):
        width = max(_number(section.get(name)) for name in (*_WIDTHS, _INPUTS)) or 1
        for key, value in sorted(section.items(), key=lambda each: each[0] not in _WIDTHS):  # a width makes all large
            count = max((_number(each) for each in (value if isinstance(value, list) else [value])), default=0)
            parts = bool(_COUNTS.search(key)) and count > tensors + _MORE_PARTS
            rows = key in _WIDTHS or bool(_ROWS.search(key))
            if parts or (rows and count * (1 if key == _INPUTS else width) > 8 * numbers + _MORE_NUMBERS):
                raise DistilvecError(
                    f"{key} is {count:,}, and the weights hold {tensors:,} tensors with {numbers:,} numbers",
                    where=str(file),
                    remedy="Configuration and weights do not belong together; copy or download the model again.",
                )


def _settings(place: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the settings that a module may be built with: each file's, and config.json as another overrides it."""
    base = object_in(place / _FILES[0])
    for name in _FILES:
        yield place / name, object_in(place / name)
    for file in sorted(place.glob(_OVERRIDING)):
        given = object_in(file)
        for part in _PARTS:
            if isinstance(given.get(part), dict):
                yield file, _merged(base, given[part])


def _merged(base: dict[str, Any], given: dict[str, Any], depth: int = 0) -> dict[str, Any]:
    """Override settings by others; sections of the same name are merged as transformers does it."""
    both = {key for key in base.keys() & given.keys() if isinstance(base[key], dict) and isinstance(given[key], dict)}
    inner = {key: _merged(base[key], given[key], depth + 1) for key in both if depth < _DEEPEST}
    return {**base, **given, **inner}


def sections(config: dict[str, Any], depth: int = 0) -> Iterator[dict[str, Any]]:
    """A configuration and those within it (text_config, vision_config ...)."""
    yield config
    if depth < _DEEPEST:
        for value in config.values():
            if isinstance(value, dict):
                yield from sections(value, depth + 1)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
