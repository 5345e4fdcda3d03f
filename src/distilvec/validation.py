"""Sections of a recipe, and what pydantic finds wrong in a sentence that names line, key and the nearest key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, RootModel, Tag, TypeAdapter, ValidationError

from distilvec.errors import DistilvecError, nearest

#: Characters of a value in a remedy.
_LONGEST = 80
#: Sections within sections that are searched for a key.
_DEEPEST = 3


class Section(BaseModel):
    """A section of a recipe."""

    model_config = ConfigDict(extra="forbid", validate_default=True, allow_inf_nan=False)
    #: Key that it does not have -> what to do instead.
    moved: ClassVar[dict[str, str]] = {}


def union_of(kinds: Mapping[str, type[Section]]) -> Any:
    """The type of a section of several kinds: of the keys that name a kind, it has exactly one."""

    def kind(given: Any) -> str | None:
        if isinstance(given, Section):
            return next((key for key, section in kinds.items() if type(given) is section), None)
        named = [key for key in kinds if isinstance(given, Mapping) and given.get(key) is not None]
        return named[0] if len(named) == 1 else None

    *most, last = kinds
    members = [
        Annotated[section, BeforeValidator(partial(_without_silent, kinds, section)), Tag(key)]
        for key, section in kinds.items()
    ]
    message = f"give exactly one of {', '.join(most)} and {last}"
    choice = Discriminator(kind, custom_error_type="kind", custom_error_message=message)
    return Annotated[Union[tuple(members)], choice]  # noqa: UP007 - they are known at run time only


def _without_silent(kinds: Mapping[str, type[Section]], section: type[Section], given: Any) -> Any:
    """Leave out keys of other kinds that say nothing: recipes saved by earlier versions name them all."""
    fields = {key: field for kind in kinds.values() for key, field in kind.model_fields.items()}
    others = {key: field.get_default(call_default_factory=True) for key, field in fields.items()}
    others = {key: default for key, default in others.items() if key not in section.model_fields}
    if not isinstance(given, Mapping):
        return given
    return {
        key: value for key, value in given.items() if key not in others or not (value is None or value == others[key])
    }


def chosen(kinds: Mapping[str, type[Section]], given: Mapping[str, Any], where: str) -> Any:
    """The section that some keys make.

    Raises:
        DistilvecError: they name no kind, or several, or a key or value does not belong to it.
    """
    try:
        return TypeAdapter(union_of(kinds)).validate_python(given)
    except ValidationError as error:
        raise refusal(error, union_of(kinds), where) from error


def first_problem(error: ValidationError) -> str:
    """The key and the words of the first problem of a pydantic error: "width: Input should be greater than 0"."""
    first = error.errors(include_url=False, include_input=False)[0]
    return ": ".join(part for part in (".".join(map(str, first["loc"])), first["msg"]) if part)


def refusal(
    error: ValidationError,
    model: Any,
    where: str | None,
    lines: Mapping[tuple[Any, ...], int] | None = None,
    *,
    unknown: str = "unknown key",
    whole: str = "",
) -> DistilvecError:
    """The first problem of a pydantic error.

    Args:
        model: what was validated against: a model, or a union of sections.
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
    path = _place(model, first["loc"])[0]
    line = next((known[path[:end]] for end in range(len(path), 0, -1) if path[:end] in known), None)
    dotted = ".".join(str(part) for part in path) or whole
    place = ", ".join(part for part in (where, f"line {line}" if line else None, dotted) if part) or None
    if first["type"] == "extra_forbidden":
        _, section, others = _place(model, first["loc"][:-1])
        key = str(path[-1])
        owners = [name for name, other in others.items() if key in other.model_fields]
        elsewhere = f"Leave it out; it goes with {' or '.join(owners)}." if owners else None
        elsewhere = elsewhere or _other_sections(model, path, section, first.get("input"))
        remedy = getattr(section, "moved", {}).get(key) or elsewhere or nearest(key, section.model_fields)
        return DistilvecError(f'{unknown} "{key}"', where=place, remedy=remedy)
    if first["type"] == "missing":
        return DistilvecError("this key is missing", where=place, remedy="Add it.")
    given = first.get("input")
    _, section, others = _place(model, first["loc"])
    if first["type"] == "model_type" or (first["type"] == "kind" and isinstance(given, str)):
        key = next(iter(others or section.model_fields))  # pydantic's own words name classes of ours
        return DistilvecError(f"keys belong here, not {given!r}", where=place, remedy=f"Write {_filled(key, given)}.")
    if first["type"] == "list_type":
        entry = _filled(next(iter(others)), given) if others else "..."
        remedy = f"Write [{entry}], or begin each entry with a dash."
        return DistilvecError("a list belongs here", where=place, remedy=remedy)
    if first["type"] == "string_type" and isinstance(given, dict):
        # What YAML makes of a prompt such as `query: `.
        remedy = "Put a text that holds a colon into quotation marks of its own: '\"query: \"'."
        return DistilvecError(f"a text belongs here, not {given!r}", where=place, remedy=remedy)
    shown = f" (got {given!r})" if isinstance(given, str | int | float | bool | list) else ""
    return DistilvecError(first["msg"].removeprefix("Value error, ") + shown, where=place)


def _filled(key: str, given: Any) -> str:
    """Write the section that a plain text stands for; "..." where the key may not be the one that was meant."""
    meant = isinstance(given, str) and key in ("name", "path", "model")
    return f"{{{key}: {given[:_LONGEST] if meant else '...'}}}"


def _other_sections(model: Any, path: tuple[Any, ...], section: Any, value: Any) -> str | None:
    """Say in which one or two other sections a key belongs: below the section where it stands, or in the whole file."""
    *outer, key = path
    for top, names in ((section, [str(name) for name in outer]), (model, [])):
        found = _owners(top, str(key)) if "" not in names and not any(name.isdecimal() for name in names) else []
        if 1 <= len(found) <= 2:
            shown = value if isinstance(value, str | int | float) and len(str(value)) <= _LONGEST else None
            written = [_nested([*names, *owner, str(key)], shown) for owner in found]
            return f"Write {' or '.join(written)}."
    return None


def _owners(model: Any, key: str) -> list[list[str]]:
    """The nearest sections below a model that have a key, as the names that lead there; none of a list."""
    level: list[tuple[list[str], type[BaseModel]]] = [([], member) for _, member in _members(model)]
    while level:
        level = [
            ([*names, name], member)
            for names, owner in level
            for name, field in owner.model_fields.items()
            if len(names) < _DEEPEST and get_origin(field.annotation) is not list
            for _, member in _members(field.annotation)
        ]
        found = [names for names, member in level if key in member.model_fields]
        if found:
            return [names for number, names in enumerate(found) if names not in found[:number]]
    return []


def _nested(names: list[str], value: Any) -> str:
    """Write a key within its sections, as YAML and for Python."""
    first, *inner = names
    shown = "..." if value is None else value
    quoted = f'"{shown}"' if isinstance(value, str) else shown
    for name in reversed(inner):
        shown, quoted = f"{{{name}: {shown}}}", f'{{"{name}": {quoted}}}'
    return f"{first}: {shown} (in Python {first}={quoted})"


def _place(model: Any, location: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any, Mapping[str, type[BaseModel]]]:
    """Find something in a file.

    Args:
        location: as pydantic has it, which also names the kind of a section.

    Returns:
        The keys that lead there, the model that is found there, and all kinds of that section by name.
    """
    path: list[Any] = []
    members, kinds = list(_members(model)), dict[str, type[BaseModel]]()
    for part in location:
        tagged = {tag: member for tag, member in members if tag}
        if part in tagged:
            members, kinds = [(None, tagged[part])], tagged
            continue
        path.append(part)
        if isinstance(part, str):
            held = next((member for _, member in members if part in member.model_fields), None)
            members, kinds = [] if held is None else list(_members(held.model_fields[part].annotation)), {}
    kinds = kinds or {tag: member for tag, member in members if tag}
    return tuple(path), members[0][1] if members else None, kinds


def _members(annotation: Any) -> Iterator[tuple[str | None, type[BaseModel]]]:
    """The models inside an annotation, of a union of kinds with their names."""
    if isinstance(annotation, type) and issubclass(annotation, RootModel):
        yield from _members(annotation.model_fields["root"].annotation)
        return
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield None, annotation
        return
    tag = next((each.tag for each in getattr(annotation, "__metadata__", ()) if isinstance(each, Tag)), None)
    for part in get_args(annotation):
        for inner, member in _members(part):
            yield tag or inner, member
