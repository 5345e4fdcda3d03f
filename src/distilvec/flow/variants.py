"""A recipe with each of several methods in its place, and one training's recipe among those of a comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from distilvec import plain_yaml
from distilvec.errors import DistilvecError
from distilvec.methods.own import path_of
from distilvec.methods.table import available, called
from distilvec.recipe import AutoSection, Recipe, StudentSection
from distilvec.teachers.sections import NAME

#: What is compared: "name", "name:key=value,key=value", a class derived from `Method`, or a dictionary with one of
#: these as `name`, options, and perhaps a `label`.
Spec = str | type | Mapping[str, Any]
#: "module:Class" with or without options behind it; of "name:key=value" no "=" is in the way.
_OWN = re.compile(r"([\w.]+:[^\W\d][\w.]*)(?::(.*))?", re.DOTALL)


@dataclass(frozen=True)
class _ComparedRow:
    """One row of a comparison.

    Attributes:
        told: what its label says of options, ":key=value".
        changes: of the optimizer section.
        label: its own; None without one.
    """

    name: str
    told: str
    options: dict[str, Any]
    changes: dict[str, Any]
    label: str | None = None


def variants_of(recipe: Recipe, methods: Spec | Sequence[Spec]) -> dict[str, Recipe]:
    """Label -> the recipe with that method; all of them are checked before anything is trained."""
    variants: dict[str, Recipe] = {}
    folders: dict[str, str] = {}
    for spec in _listed(methods):
        row = _parse(spec)
        label = row.label or called(row.name) + row.told
        if row.label is None and label in variants and variants[label].method.first.name != row.name:
            label = row.name + row.told  # classes of two modules may share a name
        if label in variants:
            raise DistilvecError(f'"{label}" is given twice', where="methods", remedy="Give one a label of its own.")
        if (other := folders.setdefault(slug(label), label)) != label:
            raise DistilvecError(
                f'"{other}" and "{label}" would share the folder {slug(label)}',
                where="methods",
                remedy="Give one a label.",
            )
        data = recipe.model_dump()
        first, *others = recipe.method.entries
        own, others = (first, others) if row.name == first["name"] else ({}, [])
        data["method"] = [{**own, "name": row.name, **row.options}, *others]
        data["cache"] = str(recipe.place)
        student = recipe.student or StudentSection(auto=AutoSection())
        data["student"] = student.model_dump() | {"router": False}
        if not recipe.method.is_open and student.space == recipe.method.build().implied_space:
            data["student"]["space"] = None  # each method ships as it implies
        for key, value in row.changes.items():
            section = data
            *parents, last = key.split(".")
            for parent in parents:
                section[parent] = section.get(parent) or {}
                section = section[parent]
            section[last] = value
        variants[label] = Recipe.build(data)
    if not variants:
        raise DistilvecError("there are no methods to compare", where="methods", remedy="Name one or more.")
    return variants


def _listed(methods: Any) -> Sequence[Any]:
    if isinstance(methods, str | type | Mapping):
        return [methods]
    if methods is not None and (not isinstance(methods, Sequence) or isinstance(methods, bytes)):
        what = f"a {type(methods).__name__} names no methods"
        raise DistilvecError(what, where="methods", remedy="Give a name, a class, a dictionary, or a list of these.")
    return methods or ()


def slug(label: str) -> str:
    """A row's name as a folder's."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", label).strip("-").lstrip(".")


def row_of(reference: str, variants: Mapping[str, Recipe]) -> str:
    """The label that is meant by one, or by a "module:Class" whose row has the class's own name."""
    if reference in variants or ":" not in reference:
        return reference
    row = _parse(reference)
    label = called(row.name) + row.told if ":" in row.name else reference
    return label if label in variants else reference


def _parse(spec: Any) -> _ComparedRow:
    if isinstance(spec, str):
        name, mark, given = spec.strip().partition(":")
        path = _OWN.fullmatch(spec.strip())
        if path is not None and name not in available():
            name, mark, given = path[1], "" if path[2] is None else ":", path[2] or ""
        told = mark + given
        try:
            options = plain_yaml.read("{" + re.sub(r"\s*=\s*", ": ", given) + "}")
        except yaml.YAMLError as error:
            raise DistilvecError(
                f'"{name}{told}" is not of the form name:key=value,key=value', where="methods", remedy="See `methods`."
            ) from error
        lost = [key for key, value in options.items() if value is None and f"{key}=" not in spec]
        if lost:
            raise DistilvecError(
                f'"{lost[0]}" in "{name}{told}" has no value', where="methods", remedy="Write key=value."
            )
    elif isinstance(spec, type | Mapping):
        written: Mapping[str, Any] = spec if isinstance(spec, Mapping) else {"name": spec}
        options = {key: value for key, value in written.items() if key not in ("name", "optimizer")}
        options |= _dotted("optimizer", written.get("optimizer", {}))
        given_name = written.get("name", "")
        name = str(given_name) if isinstance(given_name, str | int | float | list | dict) else path_of(given_name)
        shown = ",".join(f"{key}={value}" for key, value in options.items() if key != "label")
        told = f":{shown}" if shown else ""
    else:
        what = f"a {type(spec).__name__} is no method"
        raise DistilvecError(what, where="methods", remedy="Give its name, or a dictionary with name and options.")
    label = options.pop("label", None)
    if label is not None and not NAME.fullmatch(str(label)):  # it is a folder's, too
        raise DistilvecError(
            f'"{str(label)[:80]}" is no name for a row',
            where="methods.label",
            remedy="Use letters, digits, dots, hyphens and underscores, and begin with a letter or digit.",
        )
    changes = {key: value for key, value in options.items() if key.startswith("optimizer.")}
    plain = {key: value for key, value in options.items() if key not in changes}
    return _ComparedRow(name, told, plain, changes, None if label is None else str(label))


def _dotted(key: str, value: Any) -> dict[str, Any]:
    """A nested dictionary as the keys that a row of the command line has: {"optimizer.sharpness.kind": "sam"}."""
    if not isinstance(value, Mapping):
        return {key: value}
    return {name: part for each, inner in value.items() for name, part in _dotted(f"{key}.{each}", inner).items()}


def changed(
    recipe: Recipe,
    *,
    seed: int | None = None,
    lr: float | None = None,
    epochs: float | None = None,
    items: int = 0,
) -> Recipe:
    """The recipe with another seed or learning rate, or shortened for tuning.

    Args:
        epochs: of a shorter training, without evaluations and without what follows them; it warms up for as large a
            share of its steps as the whole training does.
        items: that are trained on, of a shorter training.
    """
    training: dict[str, Any] = {} if seed is None else {"seed": seed}
    if epochs is not None:
        training |= {"epochs": epochs, "evaluate_every": None, "best": None, "patience": None}
        whole = recipe.training
        if whole.max_steps:
            training["max_steps"] = min(whole.max_steps, whole.steps_per_epoch(items))
        if whole.warmup_steps >= 1:  # a number of steps, not a share of them
            training["warmup_steps"] = min(1 - 1e-9, whole.warmup_steps / whole.steps(items))
    changes: dict[str, Any] = {"training": recipe.training.model_copy(update=training)}
    if lr is not None:
        changes["optimizer"] = recipe.optimizer.model_copy(update={"lr": lr})
    return recipe.model_copy(update=changes)
