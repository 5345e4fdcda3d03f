"""A recipe written to a folder and trained by the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from tests.training.starting import Starter


def write(folder: Path, recipe: dict[str, Any]) -> None:
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))


def run(start: Starter, folder: Path, recipe: dict[str, Any] | None, *more: str, **how: Any) -> tuple[int, str]:
    if recipe is not None:
        write(folder, recipe)
    code, output = start(arguments=["train", "recipe.yaml", *more], folder=str(folder), **how).wait()
    assert "Traceback" not in output, output
    return code, output
