"""A recipe written to a folder and trained by the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from tests.training.starting import Starter

#: A function that stops at its fifth batch of the corpus while the file `hold` is there.
HELD = """
import pathlib, time
import numpy as np

CORPUS, batches = {*pathlib.Path("known.txt").read_text().splitlines()}, []

def embed(texts):
    batches.extend([1] if CORPUS.issuperset(texts) else [])
    while len(batches) > 4 and pathlib.Path("hold").exists():
        pathlib.Path("held").touch()
        time.sleep(0.01)
    with open("calls", "a") as calls:
        calls.write("".join(text.replace("\\n", " ") + "\\n" for text in texts))
    return [np.random.default_rng(list(text.encode())).standard_normal(24).tolist() for text in texts]
"""


def write(folder: Path, recipe: dict[str, Any]) -> None:
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))


def run(start: Starter, folder: Path, recipe: dict[str, Any] | None, *more: str, **how: Any) -> tuple[int, str]:
    if recipe is not None:
        write(folder, recipe)
    code, output = start(arguments=["train", "recipe.yaml", *more], folder=str(folder), **how).wait()
    assert "Traceback" not in output, output
    return code, output
