"""Files that others wrote beside a model: settings in small files of JSON, and the headers of weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from distilvec.errors import DataError
from distilvec.files import read_small
from distilvec.system_errors import disk_problems
from distilvec.validation import first_problem


def read_json(file: Path) -> Any:
    """Return what a small JSON file says.

    Raises:
        DataError: it cannot be read, is not a regular file, is not JSON, or is not small (10 MB).
    """
    try:
        with disk_problems("the file cannot be read", file):
            return json.loads(read_small(file, 10_000_000))
    except (OSError, ValueError, RecursionError) as problem:
        what = (
            "this is not a list of modules" if file.name == "modules.json" else "the model cannot be opened: not JSON"
        )
        raise DataError(f"{what} ({problem})", where=str(file)) from problem


def object_in(file: Path) -> dict[str, Any]:
    """Read an object of JSON; empty where the file holds none, which opening the model says."""
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    except (OSError, ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def damaged(problem: Exception, where: str | Path) -> DataError:
    """Make the error of weights that no library can read."""
    return DataError(
        f"the weights cannot be read: {problem}", where=str(where), remedy="Copy or download the model again."
    )


def tensor_shapes(file: Path) -> dict[str, list[int]]:
    """Those of the tensors in a safetensors file, from its header alone."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as opened:
            # By `keys`: this is no dictionary.
            return {name: list(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as problem:
        raise damaged(problem, file) from problem


def save_beside(module: Any, place: Path, weights: str, settings: str, content: Any) -> None:
    """Write the weights of a module and what it is made from into a folder beside a model's own files."""
    from safetensors.torch import save_file

    place.mkdir(parents=True, exist_ok=True)
    save_file({name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}, place / weights)
    (place / settings).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def shards(folder: Path) -> list[Path]:
    """The files of a folder's weights, which are in one file or in those that an index names."""
    whole = folder / "model.safetensors"
    if whole.is_file():
        return [whole]
    index = json.loads((folder / f"{whole.name}.index.json").read_text(encoding="utf-8"))
    return [folder / name for name in sorted(set(index["weight_map"].values()))]


class Stated(BaseModel):
    """The keys that are read of config_sentence_transformers.json, which may say more."""

    model_config = ConfigDict(strict=True)
    model_type: str = "SentenceTransformer"
    prompts: dict[str, str] | None = None
    default_prompt_name: str | None = None
    truncate_dim: int | None = Field(None, gt=0)


def stated(folder: Path) -> Stated:
    """Return what a model's folder says of itself, or what holds where it says nothing."""
    file = folder / "config_sentence_transformers.json"
    try:
        return Stated.model_validate(read_json(file) if file.is_file() else {})
    except ValidationError as problem:
        told = f"the model cannot be opened: {first_problem(problem)}"
        raise DataError(told, where=str(file), remedy="Copy or download the model again.") from problem
