"""What the experiments share: where the data is, how a row is run once, how results are kept."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
WORK = Path(os.environ.get("DISTILVEC_WORK", Path(__file__).parent.parent / "out-experiments"))


def shared() -> Path:
    """The folder with the shared corpora and evaluation sets."""
    folder = Path(os.environ.get("DISTILVEC_DATA", Path(__file__).parent.parent.parent / "shared"))
    if not (folder / "data").is_dir():
        raise SystemExit(f"{folder} has no folder data; set DISTILVEC_DATA to the shared data.")
    return folder


def once(file: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run `make` and keep its result; a result that is there already is read instead."""
    if file.exists():
        return json.loads(file.read_text())
    start = time.time()
    result = make()
    result["seconds"] = round(time.time() - start, 1)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    partial.replace(file)
    return result
