"""Whether every file that has its final name is whole, whatever a kill left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

#: Names under which files are made before they get their own.
UNFINISHED = (".partial", ".distilvec-tmp-")


def all_keys(store: Any) -> npt.NDArray[np.uint8]:
    """uint8 [n, 16]: the keys of a store, twice where a row is there twice."""
    return np.asarray(store.keys(np.arange(len(store))))


def is_unfinished(path: Path) -> bool:
    """Whether a path, relative to the output, has a name that says that it is being made."""
    return any(mark in part for part in path.parts for mark in UNFINISHED)


def broken_files(out: Path) -> list[str]:
    """Files below `out` that have a final name and cannot be read."""
    found = []
    for file in sorted(out.rglob("*")) if out.is_dir() else []:
        name = file.relative_to(out)
        read = READERS.get(file.suffix)
        if read is None or not file.is_file() or is_unfinished(name):
            continue
        if file.suffix == ".arrow" and name.parts[0] == "stores" and not file.with_suffix(".json").exists():
            continue  # a part without its record does not exist
        try:
            read(file)
        except Exception as error:
            found.append(f"{name} is half-written ({type(error).__name__}: {str(error)[:80]})")
    return found


def left_over(out: Path) -> list[str]:
    """What a finished command left unfinished."""
    names = (file.relative_to(out) for file in out.rglob("*"))
    return sorted(str(name) for name in names if is_unfinished(name) and name.suffix != ".lock")


def _safetensors(file: Path) -> None:
    from safetensors.numpy import load_file

    load_file(file)


def _arrow(file: Path) -> None:
    import pyarrow as pa

    with pa.OSFile(str(file)) as source:
        pa.ipc.open_file(source).read_all().validate(full=True)


def _onnx(file: Path) -> None:
    import onnx

    onnx.checker.check_model(str(file))


def _html(file: Path) -> None:
    if not file.read_text(encoding="utf-8").rstrip().endswith("</html>"):
        raise ValueError("it has no end")


def _lines(file: Path) -> None:
    """A log may be cut in its last line, and nowhere else."""
    for line in file.read_text(encoding="utf-8").splitlines()[:-1]:
        json.loads(line)


def _yaml(file: Path) -> None:
    import yaml

    if not isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict):
        raise ValueError("it is empty")


def _markdown(file: Path) -> None:
    if not file.read_text(encoding="utf-8").endswith("\n"):
        raise ValueError("it has no end")


READERS: dict[str, Callable[[Path], Any]] = {
    ".json": lambda file: json.loads(file.read_text(encoding="utf-8")),
    ".jsonl": _lines,
    ".safetensors": _safetensors,
    ".npy": np.load,
    ".arrow": _arrow,
    ".onnx": _onnx,
    ".html": _html,
    ".svg": ElementTree.parse,
    ".yaml": _yaml,
    ".md": _markdown,
}
