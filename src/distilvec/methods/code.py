"""A digest of somebody else's method: under an equal recipe, another text is another training."""

from __future__ import annotations

import hashlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

from distilvec.methods.base import Method, foreign_classes
from distilvec.teachers.carried import compiled, is_plain, own_text, source_of

#: Packages whose classes are known by their versions, not by their text.
_KNOWN = ("distilvec", "torch", "builtins", "pydantic", "abc", "typing")


def code_of(method: Method) -> str | None:
    """16 hex digits over the text of the methods that are not ours, with those that they hold; None where all are.

    It is that of their classes and of the classes that these are derived from, of their options, and of functions,
    classes, numbers and words of their own modules that they name. What an installed package does out of sight of these
    is its version's.
    """
    foreign = sorted(foreign_classes(method), key=_path)
    if not foreign:
        return None
    seen: dict[str, str] = {}
    for each in foreign:
        _read_class(each, seen)
    found = hashlib.blake2b(digest_size=8)
    for name, text in sorted(seen.items()):
        found.update(f"{name}\0{text}\0".encode())
    return found.hexdigest()


def _read_class(cls: type, seen: dict[str, str]) -> None:
    for each in cls.__mro__:
        if _is_known(each) or _path(each) in seen:
            continue
        functions = list(_functions(each))
        seen[_path(each)] = source_of(each) or _in_parts(each, functions)
        options = each.__dict__.get("Options")
        if isinstance(options, type):
            _read_class(options, seen)
        for function in functions:
            _read_names(function, function.__code__, seen)


def _in_parts(cls: type, functions: list[types.FunctionType]) -> str:
    """In a notebook a class has no text of its own, and its functions have."""
    told = {name: value for name, value in vars(cls).items() if is_plain(value) and not name.startswith("__")}
    return "\n".join([repr(sorted(told.items())), *map(_text, functions)])


def _read_names(function: types.FunctionType, code: types.CodeType, seen: dict[str, str]) -> None:
    """Read what a function names of its module: functions and classes of somebody's own, numbers and words."""
    for name in code.co_names:
        value, path = function.__globals__.get(name), f"{function.__module__}:{name}"
        if is_plain(value):
            seen.setdefault(path, repr(value))
        elif isinstance(value, types.ModuleType):
            if value.__name__.split(".")[0] not in _KNOWN:
                seen.setdefault(path, own_text(value) or "")
        elif isinstance(value, type):
            if own_text(value) is not None:
                _read_class(value, seen)
        elif isinstance(value, types.FunctionType):
            _read_function(inspect.unwrap(value), seen)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):  # a function within
            _read_names(function, constant, seen)


def _read_function(function: Any, seen: dict[str, str]) -> None:
    if not isinstance(function, types.FunctionType) or _is_known(function) or _path(function) in seen:
        return
    if own_text(function) is None and inspect.getsourcefile(function) is not None:
        return  # of an installed package
    seen[_path(function)] = _text(function)
    _read_names(function, function.__code__, seen)


def _functions(cls: type) -> Iterator[types.FunctionType]:
    for value in cls.__dict__.values():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if isinstance(function, types.FunctionType):
            yield inspect.unwrap(function)


def _text(function: types.FunctionType) -> str:
    """Its source; of one that was never in a file, what it was compiled to."""
    return source_of(function) or compiled(function.__code__)


def _is_known(value: Any) -> bool:
    return str(value.__module__).split(".")[0] in _KNOWN


def _path(value: Any) -> str:
    return f"{value.__module__}:{value.__qualname__}"
