"""YAML as people write it: 1e-8 is a number, which YAML 1.1, and so PyYAML, takes for a text."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

#: A recipe has some dozens; a few lines of anchors could stand for billions.
MOST_VALUES = 1_000_000

# With an exponent neither the point nor the sign of the exponent has to be there (YAML 1.2).
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """Safe, with these numbers; a value that cannot be made is named with its line."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception as error:  # a number of 5,000 digits, the 31st of February: Python's own errors come through
            line, kind = node.start_mark.line + 1, node.tag.rsplit(":", 1)[-1]
            raise yaml.YAMLError(f'line {line}: "{str(node.value)[:40]}" cannot be read as {kind} ({error})') from error


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that the loader would take for such numbers."""


for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def read(text: str) -> Any:
    """The values of a YAML text.

    Raises:
        yaml.YAMLError: it is none, it asks for more than plain values, an anchor holds itself, or it stands for more
            than `MOST_VALUES` values once its anchors are written out.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        _values(node, {}, set())
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError:
        raise
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except Exception as error:  # of the scanner, for example an escaped character that is none
        raise yaml.YAMLError(f"a value cannot be read ({error})") from error


def _values(node: yaml.Node | None, known: dict[int, int], above: set[int]) -> int:
    """Count the values that a node stands for; one that several aliases name is read once, and counts each time."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) in above:
        raise yaml.YAMLError(f"line {node.start_mark.line + 1}: this anchor holds itself")
    if id(node) not in known:
        above.add(id(node))
        pairs = isinstance(node, yaml.MappingNode)
        if pairs:
            _refuse_repeated(node)
        parts = [part for pair in node.value for part in pair] if pairs else node.value
        known[id(node)] = 1 + sum(_values(part, known, above) for part in parts)
        above.discard(id(node))
    if known[id(node)] > MOST_VALUES:
        raise yaml.YAMLError(f"it stands for more than {MOST_VALUES:,} values")
    return known[id(node)]


def _refuse_repeated(node: yaml.Node) -> None:
    """Refuse a key that a mapping has twice; of two, YAML's readers forget the first."""
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        called = (key.tag, str(key.value))
        if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge" and called in seen:
            raise yaml.YAMLError(f'line {key.start_mark.line + 1}: "{key.value}" is there a second time')
        seen.add(called)


def write(data: Any) -> str:
    """YAML that `read` gives back as it is."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def flow(data: Any) -> str:
    """The same in one line."""
    return yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=True, width=math.inf
    ).strip()


def lines(text: str) -> dict[tuple[Any, ...], int]:
    """Path of keys and positions -> 1-based line, for error messages."""
    return _lines(yaml.compose(text, Loader=_Loader), ())


def _lines(node: yaml.Node | None, path: tuple[Any, ...]) -> dict[tuple[Any, ...], int]:
    by_path: dict[tuple[Any, ...], int] = {}
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, key.value)
            by_path[here] = key.start_mark.line + 1
            by_path |= _lines(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            by_path[(*path, position)] = value.start_mark.line + 1
            by_path |= _lines(value, (*path, position))
    return by_path
