"""YAML as people write it: 1e-8 is a number, which YAML 1.1, and so PyYAML, takes for a text."""

from __future__ import annotations

import re
from typing import Any

import yaml

# With an exponent neither the point nor the sign of the exponent has to be there (YAML 1.2).
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """Safe, with these numbers."""


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that the loader would take for such numbers."""


for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def read(text: str) -> Any:
    """The values of a YAML text.

    Raises:
        yaml.YAMLError: it is none, or it asks for more than plain values.
    """
    return yaml.load(text, Loader=_Loader)


def write(data: Any) -> str:
    """YAML that `read` gives back as it is."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def lines(text: str) -> dict[tuple[Any, ...], int]:
    """Path of keys and positions -> 1-based line, for error messages."""
    return _lines(yaml.compose(text, Loader=_Loader), ())


def _lines(node: yaml.Node | None, path: tuple[Any, ...]) -> dict[tuple[Any, ...], int]:
    found: dict[tuple[Any, ...], int] = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, key.value)
            found[here] = key.start_mark.line + 1
            found |= _lines(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            found[(*path, position)] = value.start_mark.line + 1
            found |= _lines(value, (*path, position))
    return found
