"""The values that a function carries besides its source text: with another model, the same text is another teacher."""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import sysconfig
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

#: Levels of objects within objects that are looked into, and items of a list or dictionary.
_DEPTH, _ITEMS = 4, 100
#: Where installed packages lie.
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
#: What has weights.
_WEIGHTS = (nn.Module, torch.Tensor, np.ndarray)
#: Instructions that read a global name; the names of a code object are those of attributes, too.
_READS = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}


def carried(function: Any) -> list[Any]:
    """Return what a function's answers depend on besides its text, as JSON values; empty for a plain function.

    Of arguments of `functools.partial` and of what a closure holds count words, numbers, networks and arrays, of the
    object of a bound method, of callable objects, of defaults and of global names that are read, networks and arrays
    alone: a client may have another number of its own in every process. Names are read by the function, by
    comprehensions, lambdas and functions written in it, and by functions that it names in turn. The text of functions
    within counts too (what is called by a partial, wrapped by a closure, held by an object) and that of a callable
    object's class. Of what is of an installed package neither text nor names count, a newer version may write it
    otherwise. What a service or a library does out of sight cannot be seen.
    """
    return [each for each in _parts(function, _DEPTH, outermost=True) if each]


def source_of(function: Any) -> str | None:
    """The text of a function or class; None where it is not to be had."""
    if getattr(getattr(function, "__code__", None), "co_filename", None) == "<string>":
        return None  # `exec` and `python -c` share this name; from Python 3.13 on inspect shows the latter for both
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return None


def compiled(code: types.CodeType) -> str:
    """Return what a code object does, as a text; for what was never in a file."""
    constants = [
        compiled(each) if isinstance(each, types.CodeType) else repr(each)
        for each in code.co_consts
        if isinstance(each, types.CodeType) or is_plain(each)
    ]
    return f"{code.co_code.hex()}{code.co_names}{constants}"


def is_plain(value: Any) -> bool:
    """Tell whether equal values are written alike in every process."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return isinstance(value, bool | int | float | str)


def own_text(value: Any) -> str | None:
    """The text of a function or class that is not of an installed package."""
    try:
        file = inspect.getsourcefile(value)
    except TypeError:
        return None
    return None if file is None or file.startswith(_INSTALLED) else source_of(value)


def _parts(value: Any, depth: int, *, outermost: bool = False) -> list[Any]:
    if isinstance(value, functools.partial):
        return [_parts(value.func, depth), *(_state(each, depth, told=True) for each in (value.args, value.keywords))]
    if isinstance(value, types.MethodType):
        return [_state(value.__self__, depth), *_parts(value.__func__, depth, outermost=outermost)]
    if isinstance(value, types.FunctionType):
        further = _further(value, depth) if outermost or not _is_installed(value) else ()
        return [*([] if outermost else [own_text(value)]), *_of_function(value, depth), *further]
    if isinstance(value, types.BuiltinFunctionType | type):
        return []
    return [*([own_text(type(value))] if outermost else []), _state(value, depth)]


def _of_function(function: types.FunctionType, depth: int) -> Iterator[Any]:
    for held in _cells(function):
        yield _state(held, depth, told=True)
    for network in _networks(function):
        yield _state(network, depth)


def _cells(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        yield held


def _networks(function: types.FunctionType) -> Iterator[nn.Module]:
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, nn.Module):
            yield value


def _further(function: types.FunctionType, depth: int) -> Iterator[str]:
    """Yield what `_of_function` leaves out: digests of networks and arrays of further names and of defaults, each once.

    Level by level, so that what is near is found however the functions call each other. Where there is none, nothing
    comes: such a function's fingerprint, and with it what was bought, stays as it was.
    """
    seen = {id(each): each for each in (function, *_cells(function), *_networks(function))}
    level = list(_named(function))
    for _ in range(depth + 1):
        found, level = level, []
        for value in found:
            if id(value) in seen:
                continue
            seen[id(value)] = value  # held, or its number might become another's
            if not isinstance(value, _WEIGHTS):
                level += _leads_to(value)
            elif (digest := _weights(value)) is not None:
                yield digest


def _named(function: types.FunctionType) -> Iterator[Any]:
    """Networks, arrays and functions by their global names, and whatever is a default."""
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, (*_WEIGHTS, types.FunctionType)):  # others may keep answers
            yield value
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _names(code: types.CodeType) -> Iterator[str]:
    """Global names that are read, by the code itself and by comprehensions, lambdas and functions written in it."""
    for step in dis.get_instructions(code):
        if step.opname in _READS:
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _leads_to(value: Any) -> Iterable[Any]:
    """Return what is looked at after a value that has no weights itself."""
    if isinstance(value, types.FunctionType):  # one of a package may be wrapped around somebody's own
        return [*_cells(value), *(() if _is_installed(value) else _named(value))]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, list | tuple | Mapping):  # arrays in what can grow may be answers that are kept
        items = islice(value.values() if isinstance(value, Mapping) else value, _ITEMS)
        return [each for each in items if isinstance(value, tuple) or isinstance(each, nn.Module)]
    if inspect.ismodule(value) or isinstance(value, type) or not hasattr(value, "__dict__"):
        return []
    return islice(vars(value).values(), _ITEMS)


def _is_installed(function: types.FunctionType) -> bool:
    return function.__code__.co_filename.startswith((*_INSTALLED, "<frozen "))


def _weights(value: Any) -> str | None:
    """Their digest; None where there are none, or none that can be read."""
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return None
    try:
        return None if isinstance(value, nn.Module) and not value.state_dict() else _state(value, 0)
    except (RuntimeError, TypeError, ValueError):  # sparse, or not in memory
        return None


def _state(value: Any, depth: int, *, told: bool = False) -> Any:
    """Something that is equal for equal values; None where nothing can be told.

    Args:
        told: words and numbers count, too.
    """
    if isinstance(value, bool | int | float | str):
        return value if told else None
    if isinstance(value, nn.Module):
        return _digest(sorted(value.state_dict().items()))
    if isinstance(value, torch.Tensor | np.ndarray):
        return _digest([("", value)])
    return _inside(value, depth - 1, told) if depth else None


def _inside(value: Any, depth: int, told: bool) -> Any:
    """Return the state of something made of other values; None if none of them says anything."""
    if isinstance(value, functools.partial | types.MethodType | types.FunctionType):
        return [each for each in _parts(value, depth) if each] or None
    if isinstance(value, list | tuple):
        found = [_state(each, depth, told=told) for each in value[:_ITEMS]]
    elif isinstance(value, Mapping):
        shown = list(value.items())[:_ITEMS]
        found = [[str(key), each] for key, one in shown if (each := _state(one, depth, told=told)) is not None]
    elif inspect.ismodule(value) or isinstance(value, type) or not hasattr(value, "__dict__"):
        return None
    else:
        found = [_state(vars(value), depth)]
    return found if any(each is not None for each in found) else None


def _digest(arrays: list[tuple[str, Any]]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for name, given in arrays:
        found.update(name.encode())
        array = given
        if isinstance(given, torch.Tensor):
            here = given.detach().cpu().contiguous()
            array = here.view(torch.uint8).numpy() if here.ndim else here.double().numpy()
        if isinstance(array, np.ndarray) and not array.dtype.hasobject:  # those would be told by their addresses
            found.update(f"{array.dtype}{array.shape}".encode())
            if array.nbytes:
                found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)  # no copy of a large one
    return found.hexdigest()
