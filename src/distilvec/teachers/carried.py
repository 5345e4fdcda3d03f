"""What a function carries along beside its source text: two with the same text and another model are two teachers."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sysconfig
import textwrap
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

#: Levels of objects within objects that are looked into, and items of a list or dictionary.
_DEPTH, _ITEMS = 4, 100
#: Where installed packages lie.
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def carried(function: Any) -> list[Any]:
    """What a function's answers depend on besides its text, as JSON values; empty for a plain function of a module.

    Of arguments of `functools.partial` and of what a closure holds count words, numbers, networks and arrays, of the
    object of a bound method, of callable objects and of global names that are read, networks and arrays alone: a
    client may have another number of its own in every process. The text of functions within counts too (what is called
    by a partial, wrapped by a closure, held by an object) and that of a callable object's class, unless they are of an
    installed package, which a newer version may write otherwise. What a service or a library does out of sight cannot
    be seen.
    """
    return [each for each in _parts(function, _DEPTH, outermost=True) if each]


def source_of(function: Any) -> str | None:
    """The text of a function or class; None where it is not to be had."""
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return None


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
        return [*([] if outermost else [own_text(value)]), *_of_function(value, depth)]
    if isinstance(value, types.BuiltinFunctionType | type):
        return []
    return [*([own_text(type(value))] if outermost else []), _state(value, depth)]


def _of_function(function: types.FunctionType, depth: int) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield _state(cell.cell_contents, depth, told=True)
        except ValueError:  # not filled yet
            continue
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, nn.Module):
            yield _state(value, depth)


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
    """Of something that is made of other values; None where none of them says anything."""
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
        if isinstance(array, np.ndarray) and array.dtype != object:
            found.update(f"{array.dtype}{array.shape}".encode())
            found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
