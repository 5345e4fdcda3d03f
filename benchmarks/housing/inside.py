"""What only a process sees that has imported the measured distilvec: `House` calls these in a Python of its own."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
import runpy
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

LIBRARIES = ("transformers", "sentence_transformers", "accelerate", "torch")
#: transformers asks every model class for this one.
ASKED_FOR = "_init_weights"
PRIVATE = re.compile(r"_[a-z]\w*(?<!_)")
USED = re.compile(r"self\.(_[a-z]\w*)")


def trace(package: str, result: str, *words: str) -> None:
    """Run a command of distilvec and write {"loaded": files of the package, "lines": file -> executed lines}."""
    seen: dict[str, set[int]] = {}

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        seen.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(package) else None

    sys.argv[:] = ["distilvec", *words]
    threading.settrace(call)
    sys.settrace(call)
    try:
        runpy.run_module("distilvec", run_name="__main__")
    finally:
        sys.settrace(None)
        loaded = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())} | set(seen)
        lines = {file: sorted(each) for file, each in seen.items()}
        found = {"loaded": sorted(file for file in loaded if file.startswith(package)), "lines": lines}
        Path(result).write_text(json.dumps(found), encoding="utf-8")


def inherit() -> None:
    """Import all of distilvec and print as JSON which private parts of bases in libraries its classes touch.

    {"methods": overridden ones, "attributes": set on `self`, where the source of a base uses the name on `self`}.
    """
    import distilvec

    names = [each.name for each in pkgutil.walk_packages(distilvec.__path__, "distilvec.")]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    classes = {each for module in modules for each in vars(module).values() if inspect.isclass(each)}
    found: dict[str, set[str]] = {"methods": set(), "attributes": set()}
    for each in classes:
        bases = [base for base in each.__mro__[1:] if base.__module__.split(".")[0] in LIBRARIES]
        if bases and each.__module__.startswith("distilvec"):
            routines = {name for name, value in vars(each).items() if inspect.isroutine(value)} - {ASKED_FOR}
            held = _held(_source(each))
            for base in bases:
                inherited = {
                    "methods": routines & set(vars(base)),
                    "attributes": held & set(USED.findall(_source(base))),
                }
                for kind, both in inherited.items():
                    private = {name for name in both if PRIVATE.fullmatch(name)}
                    found[kind] |= {f"{each.__module__}.{each.__qualname__}.{name}" for name in private}
    print(json.dumps({kind: sorted(places) for kind, places in found.items()}))


def _source(each: type) -> str:
    try:
        return inspect.getsource(each)
    except (OSError, TypeError):  # made by C code or while running
        return ""


def _held(code: str) -> set[str]:
    """Attributes that the code of a class sets on `self`."""
    stored = (node for node in ast.walk(ast.parse(code)) if isinstance(getattr(node, "ctx", None), ast.Store))
    return {node.attr for node in stored if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"}
