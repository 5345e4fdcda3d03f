"""A recipe with each of several methods in its place, and one training's recipe among those of a comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from distilvec import plain_yaml
from distilvec.errors import DistilvecError
from distilvec.methods.own import path_of
from distilvec.methods.table import available, called, resolve
from distilvec.recipe import Recipe, given
from distilvec.recipe.training_keys import FOLLOWING
from distilvec.training.arguments import steps_in_all, steps_per_epoch

#: "module:Class" with or without options behind it; of "name:key=value" no "=" is in the way.
_OWN = re.compile(r"([\w.]+:[^\W\d][\w.]*)(?::(.*))?", re.DOTALL)


def variants_of(recipe: Recipe, methods: Sequence[str | type | Mapping[str, Any]]) -> dict[str, Recipe]:
    """Label -> the recipe with that method; all of them are checked before anything is trained.

    Raises:
        DistilvecError: no method, one that is given twice or cannot be read, or an unknown method or option.
    """
    variants: dict[str, Recipe] = {}
    for spec in methods:
        name, told, options, changes = _parse(spec)
        label = called(name) + told
        if label in variants and variants[label].method.name != name:  # classes of two modules may share a name
            label = name + told
        if label in variants:
            raise DistilvecError(f'"{label}" is given twice', where="methods")
        data = recipe.model_dump()
        own = recipe.method.options if name == recipe.method.name else {}
        data["method"] = {"matryoshka": recipe.method.matryoshka, **own, "name": name, **options}
        data["cache"] = str(recipe.place)
        student = given(recipe.student, "student")
        data["student"]["router"] = False
        if student.space == resolve(recipe.method.name).implied_space:
            data["student"]["space"] = None  # each method ships as it implies
        for key, value in changes.items():
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


def row_of(reference: str, variants: Mapping[str, Recipe]) -> str:
    """The label that is meant by one, or by a "module:Class" whose row has the class's own name.

    Raises:
        DistilvecError: there is no such class.
    """
    if reference in variants or ":" not in reference:
        return reference
    name, told, _, _ = _parse(reference)
    label = called(name) + told if ":" in name else reference
    return label if label in variants else reference


def _parse(spec: str | type | Mapping[str, Any]) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
    """(method, what its label says of options, the options, changes of the optimizer section)."""
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
    else:
        options = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
        name = options.pop("name", "")
        name = str(name) if isinstance(name, str | int | float | list | dict) else path_of(name)
        told = ":" + ",".join(f"{key}={value}" for key, value in options.items()) if options else ""
    lost = [key for key, value in options.items() if value is None and isinstance(spec, str) and f"{key}=" not in spec]
    if lost:
        raise DistilvecError(f'"{lost[0]}" in "{name}{told}" has no value', where="methods", remedy="Write key=value.")
    changes = {key: value for key, value in options.items() if key.startswith("optimizer.")}
    return name, told, {key: value for key, value in options.items() if key not in changes}, changes


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
        given = recipe.training.arguments
        if (steps := given.get("max_steps", 0)) > 0:
            training["max_steps"] = min(steps, steps_per_epoch(recipe.training, items))
        if (warmup := given.get("warmup_steps") or 0) >= 1:  # a number of steps, not a share of them
            training["warmup_steps"] = min(1 - 1e-9, warmup / steps_in_all(recipe.training, items))
        if str(given.get("lr_scheduler_type", "")) in FOLLOWING:
            training |= {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {}}
    changes: dict[str, Any] = {"training": recipe.training.model_copy(update=training)}
    if lr is not None:
        changes["optimizer"] = recipe.optimizer.model_copy(update={"lr": lr})
    return recipe.model_copy(update=changes)
