"""Methods of one's own that nobody installed: classes that a recipe names as "module:Class", or Python gives."""

from __future__ import annotations

import re
import sys
from typing import Any

from distilvec.errors import DistilvecError
from distilvec.methods.base import Method, Options
from distilvec.teachers.callable import find

#: Of a method: it is part of the names of folders and of rows in tables.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: Classes that were given and that no import finds (of a function, or written anew in a notebook), by their path.
_GIVEN: dict[str, type[Method]] = {}


def path_of(method: Any) -> str:
    """Name a class that was given from Python as a recipe does: module:Class.

    Raises:
        DistilvecError: it is not a subclass of `Method`, or it lacks something.
    """
    if not isinstance(method, type):
        what = f"a {type(method).__name__} object is no name of a method"
        raise DistilvecError(what, where="method", remedy="Give the class, and its options beside it.")
    path = f"{method.__module__}:{method.__qualname__}"
    usable = checked(method, path)
    found: Any = sys.modules.get(method.__module__)
    for part in method.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is method:
        _GIVEN.pop(path, None)
    else:
        _GIVEN[path] = usable
    return path


def find_method(path: str) -> type[Method]:
    """The class that "module:Class" names; modules of the working directory are found.

    Raises:
        DistilvecError: there is no such class, or it is not a `Method` with a name.
    """
    return checked(_GIVEN[path] if path in _GIVEN else find(path, "class", "my_losses:MyLoss"), path)


def said(problem: Exception) -> str:
    """Say in one line what a foreign class raised."""
    if isinstance(problem, DistilvecError):
        return str(problem)
    return " ".join(f"{type(problem).__name__}: {problem}".split())[:300]


def checked(method: Any, where: str) -> type[Method]:
    """Refuse what is not a `Method` with a name and options."""
    if isinstance(method, Method):
        raise DistilvecError("it is an object, not a class", where=where, remedy="Name its class.")
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise DistilvecError(
            "it is not a distilvec Method", where=where, remedy="Derive the class from distilvec.methods.Method."
        )
    name = getattr(method, "name", None)
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        found = "none" if name is None else repr(name)[:80]
        raise DistilvecError(
            f"it needs a name of letters, digits, dots, hyphens and underscores, and has {found}",
            where=where,
            remedy=f'Set name = "{_word(method.__name__)}" on the class.',
        )
    schema = getattr(method, "Options", None)
    if not (isinstance(schema, type) and issubclass(schema, Options)):
        raise DistilvecError(
            "its Options are no subclass of distilvec.methods.Options", where=where, remedy="Derive them from it."
        )
    return method


def _word(title: str) -> str:
    """A class's name as a method's.

    >>> _word("MyLoss")
    'my_loss'
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", title).lower()
