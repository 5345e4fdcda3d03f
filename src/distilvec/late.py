"""Imports that wait until something is asked for: a plain run loads what it needs, not what there is."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


class Late:
    """A function that is imported when it is first called, given as module:function. In a class it takes no `self`."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __call__(self, *given: Any, **options: Any) -> Any:
        return self.found(*given, **options)

    @property
    def found(self) -> Any:
        """The function itself."""
        module, _, name = self._place.partition(":")
        return getattr(import_module(module), name)


def exports(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package that imports its names for type checkers alone (`if TYPE_CHECKING:`).

    Each name is imported from there when it is asked for. A name that a module of the package has, too, must be
    imported at once: the module would take its place.
    """
    homes: dict[str, str] = {}

    def find(name: str) -> Any:
        if not homes:
            import ast  # here, because importing distilvec alone must be fast
            from importlib.util import find_spec

            source = getattr(find_spec(package), "loader").get_source(package)  # noqa: B009
            blocks = (each for each in ast.parse(source).body if isinstance(each, ast.If))
            lines = (line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom))
            homes.update({each.name: str(line.module) for line in lines for each in line.names})
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return find
