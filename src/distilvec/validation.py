"""What pydantic finds wrong, in a sentence that names line, key and the nearest key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from distilvec.errors import DistilvecError, nearest


def refusal(
    error: ValidationError,
    model: type[BaseModel],
    where: str | None,
    lines: Mapping[tuple[Any, ...], int] | None = None,
    *,
    unknown: str = "unknown key",
    whole: str = "",
) -> DistilvecError:
    """The first problem of a pydantic error.

    Args:
        model: what was validated against.
        where: file or section.
        lines: key path -> line of the file.
        unknown: what is said before a key that there is not.
        whole: the place where the problem is not one key's.
    """
    problems, known = error.errors(), lines or {}
    first = problems[0]
    if first["type"] == "missing":  # because it is misspelt?
        beside = (each for each in problems if each["loc"][:-1] == first["loc"][:-1])
        first = next((each for each in beside if each["type"] == "extra_forbidden"), first)
    path = tuple(first["loc"])
    line = next((known[path[:end]] for end in range(len(path), 0, -1) if path[:end] in known), None)
    dotted = ".".join(str(part) for part in path) or whole
    place = ", ".join(part for part in (where, f"line {line}" if line else None, dotted) if part) or None
    if first["type"] == "extra_forbidden":
        section, key = _model_at(model, path[:-1]), str(path[-1])
        near = getattr(section, "moved", {}).get(key) or nearest(key, section.model_fields)
        return DistilvecError(f'{unknown} "{key}"', where=place, remedy=near)
    if first["type"] == "missing":
        return DistilvecError("this key is missing", where=place, remedy="Add it.")
    given = first.get("input")
    if first["type"] == "model_type":  # pydantic's own words name classes of ours
        key = next(iter(_model_at(model, path).model_fields))
        return DistilvecError(f"keys belong here, not {given!r}", where=place, remedy=f"Write {{{key}: ...}}.")
    if first["type"] == "list_type":
        remedy = "Write [...], or begin each entry with a dash."
        return DistilvecError("a list belongs here", where=place, remedy=remedy)
    if first["type"] == "string_type" and isinstance(given, dict):
        # What YAML makes of a prompt such as `query: `.
        remedy = "Put a text that holds a colon into quotation marks of its own: '\"query: \"'."
        return DistilvecError(f"a text belongs here, not {given!r}", where=place, remedy=remedy)
    shown = f" (got {given!r})" if isinstance(given, str | int | float | bool | list) else ""
    return DistilvecError(first["msg"].removeprefix("Value error, ") + shown, where=place)


def _model_at(model: type[BaseModel], path: tuple[Any, ...]) -> type[BaseModel]:
    """The model found by following `path` through nested models; its `moved`, if any, says what became of a key."""
    current: Any = model
    for part in path:
        field = current.model_fields.get("root") if isinstance(part, int) else current.model_fields[part]
        if field is None:
            continue
        annotation = field.annotation
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        current = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return current  # type: ignore[no-any-return]
