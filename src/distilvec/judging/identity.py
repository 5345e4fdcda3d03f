"""Digests that tell sets of tasks apart by content: results that are kept are found again by them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np


def content_digest(value: Any) -> str:
    """32 hex digits over plain values, arrays, the files that paths name, and the attributes of objects.

    Equal for equal content; sets and mappings count in sorted order.
    """
    state = hashlib.blake2b(digest_size=16)
    _add(state, value, set())
    return state.hexdigest()


def _add(state: Any, value: Any, above: set[int]) -> None:
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        state.update(f"array {value.dtype} {value.shape}|".encode())
        state.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, str | bytes | int | float | complex | None | np.generic):
        content = repr(value).encode("utf-8", "surrogatepass")
        state.update(f"{type(value).__name__} {len(content)}|".encode() + content)
    elif isinstance(value, Path):
        _add(state, _file(value), above)
    elif id(value) in above:
        state.update(b"loop|")
    elif isinstance(value, Mapping):
        pairs = sorted(value.items(), key=lambda pair: repr(pair[0]))
        _all(state, f"mapping {len(pairs)}|", [part for pair in pairs for part in pair], above | {id(value)})
    elif isinstance(value, Set):
        _all(state, f"set {len(value)}|", sorted(value, key=repr), above | {id(value)})
    elif isinstance(value, Sequence | np.ndarray):
        _all(state, f"list {len(value)}|", list(value), above | {id(value)})
    else:
        kind = value if isinstance(value, type) or callable(value) else type(value)
        module = getattr(kind, "__module__", "")
        # Of objects of other libraries only the kind is known; what is ours says all of itself in its attributes.
        own = getattr(value, "__dict__", {}) if kind is not value and module.startswith("distilvec.") else {}
        _all(state, f"object {module}.{getattr(kind, '__qualname__', '')}|", [own], above | {id(value)})


def _all(state: Any, head: str, parts: Sequence[Any], above: set[int]) -> None:
    state.update(head.encode("utf-8", "surrogatepass"))
    for part in parts:
        _add(state, part, above)


def _file(path: Path) -> str:
    try:
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError:
        return "no file"
