"""The table of methods. A method is one file in this folder and one line here.

Import paths are strings, so that listing the names costs nothing. Third parties add theirs through the entry
point group `distilvec.methods`, or name the class itself: "module:Class".
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from pydantic import ValidationError

from distilvec.errors import DistilvecError, EnvironmentProblem, nearest
from distilvec.methods.base import Method, Needs, Options, StudentInfo, TeacherInfo
from distilvec.validation import refusal

GROUP = "distilvec.methods"

TABLE = {
    "talas": "distilvec.methods.talas:TALAS",
    "simcse": "distilvec.methods.simcse:SimCSE",
    "cosine": "distilvec.methods.cosine:Cosine",
    "mse": "distilvec.methods.mse:MSE",
    "relational": "distilvec.methods.relational:Relational",
    "leaf": "distilvec.methods.leaf:Leaf",
    "jasper_stella": "distilvec.methods.jasper_stella:JasperStella",
    "distilcse": "distilvec.methods.distilcse:DistilCSE",
    "distillcse": "distilvec.methods.distillcse:DistillCSE",
    "gaussian": "distilvec.methods.gaussian:Gaussian",
    "multi_mse": "distilvec.methods.multi_mse:MultiMSE",
    "multi_cosine": "distilvec.methods.multi_cosine:MultiCosine",
    "emo": "distilvec.methods.tokens.emo:EMO",
    "distillmoe": "distilvec.methods.tokens.distillmoe:DistillMoE",
    "mnrl": "distilvec.methods.mnrl:MNRL",
    "margin_mse": "distilvec.methods.margin_mse:MarginMSE",
    "score_kl": "distilvec.methods.score_kl:ScoreKL",
    "score_bce": "distilvec.methods.score_bce:ScoreBCE",
    "sft": "distilvec.methods.sft:SFT",
    "uld": "distilvec.methods.tokens.uld:ULD",
    "mined": "distilvec.methods.tokens.mined:MinED",
    "dskd": "distilvec.methods.tokens.dskd:DSKD",
    "multilevel_ot": "distilvec.methods.tokens.multilevel_ot:MultiLevelOT",
    "cdm": "distilvec.methods.tokens.cdm:CDM",
    "token_states": "distilvec.methods.tokens.token_states:TokenStates",
    "matryoshka": "distilvec.methods.matryoshka:Matryoshka",
}


def available() -> dict[str, str]:
    """Name -> import path of every method, ours first; a third party cannot replace one of ours."""
    others = {point.name: point.value for point in _installed() if point.name not in TABLE}
    return {**TABLE, **others}


def resolve(name: str) -> type[Method]:
    """The class of a method, by its name or as "module:Class".

    Raises:
        DistilvecError: no method has this name (the nearest is named), or there is no such class.
        EnvironmentProblem: an installed third party's method cannot be imported, or is not a `Method` with a name.
    """
    if name in TABLE:
        module, _, attribute = TABLE[name].partition(":")
        return getattr(import_module(module), attribute)
    if ":" in name:
        from distilvec.methods.own import find_method

        return find_method(name)
    point = next((point for point in _installed() if point.name == name), None)
    if point is None:
        raise DistilvecError(f'there is no method "{name}"', remedy=nearest(name, available()))
    where = f"method {name} ({point.value})"
    try:
        from distilvec.methods.own import checked

        return checked(point.load(), where)
    except DistilvecError as error:
        raise EnvironmentProblem(error.what, where=error.where, remedy=error.remedy) from error
    except Exception as error:  # whatever a foreign package raises on import
        raise EnvironmentProblem(f"it cannot be imported ({type(error).__name__}: {error})", where=where) from error


def called(name: str) -> str:
    """The word for a method in tables and titles: of "module:Class" the class's own name, where no other has it."""
    if ":" not in name:
        return name
    own = resolve(name).name
    return name if own in available() else own


def build_options(name: str, mapping: Mapping[str, Any]) -> Options:
    """The validated options of a method.

    Raises:
        DistilvecError: an unknown method or option (the nearest is named), or a value out of range.

    >>> build_options("talas", {"preset": "code"}).temperature
    0.1
    >>> build_options("talas", {"anchored_layer": 2})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    distilvec.errors.DistilvecError: talas, anchored_layer: there is no option "anchored_layer". ...
    """
    schema = resolve(name).Options
    try:
        return schema.model_validate(dict(mapping))
    except ValidationError as error:
        raise refusal(error, schema, name, unknown="there is no option") from error


def build_method(name: str, options: Mapping[str, Any]) -> Method:
    """A method with validated options, not built yet.

    Raises:
        DistilvecError: as `build_options`.
    """
    return resolve(name)(build_options(name, options))


def build_methods(entries: Sequence[Mapping[str, Any]]) -> Method:
    """The methods of a list, not built yet, as one; an entry has `name`, options, and perhaps `weight`, 1 without.

    Raises:
        DistilvecError: as `build_options` and `together`.
    """
    options = [{key: value for key, value in each.items() if key not in ("name", "weight")} for each in entries]
    methods = [build_method(entry["name"], own) for entry, own in zip(entries, options, strict=True)]
    return together(methods, [float(entry.get("weight", 1.0)) for entry in entries])


def together(methods: Sequence[Method], weights: Sequence[float]) -> Method:
    """Several methods as one; those of weight 0 are left out.

    Raises:
        DistilvecError: none is left, or two have the same name.
    """
    from distilvec.methods.combined import Combined

    kept = [(method, weight) for method, weight in zip(methods, weights, strict=True) if weight > 0]
    if not kept:
        raise DistilvecError("no method has a weight", where="method", remedy="Give one of them a weight above 0.")
    alone = len(kept) == 1 and kept[0][1] == 1
    return kept[0][0] if alone else Combined(*zip(*kept, strict=True))


def show_methods() -> str:
    """Every method in two lines, with its paper and what it needs from the teacher; of a broken one, the reason."""
    names = available()
    width = max(map(len, names))
    lines = []
    for name, path in names.items():
        try:
            cls = resolve(name)
            told = [cls.summary, f"needs {_asks_for(cls)}" + (f"; {cls.paper}" if cls.paper else "")]
        except Exception as problem:  # of a third party's; the others are to be seen nevertheless
            if name in TABLE:
                raise
            from distilvec.methods.own import said

            place = "" if isinstance(problem, EnvironmentProblem) else f"method {name} ({path}): "
            told = ["cannot be used", place + said(problem)]
        lines.append(f"{name:<{width}}  {told[0]}\n{'':<{width}}  {told[1]}")
    return "\n".join(lines)


def show_method(name: str) -> str:
    """A method's options with defaults, what they mean and where the defaults come from; and its presets."""
    cls = resolve(name)
    try:
        needs = _asks_for(cls)
    except Exception as problem:
        if name in TABLE:
            raise
        from distilvec.methods.own import said

        needs = f"cannot be told ({said(problem)})"
    lines = [f"{name}: {cls.summary}" if cls.summary else name, *([f"source: {cls.paper}"] if cls.paper else [])]
    lines += [f"needs: {needs}", "", "options:"]
    for option, field in cls.Options.model_fields.items():
        lines.append(f"  {option}: {field.get_default()!r}")
        if field.description:
            lines.append(f"      {field.description}")
    for preset, values in cls.Options.presets.items():
        shown = ", ".join(f"{key} {value!r}" for key, value in values.items())
        lines.append(f"preset {preset} changes: {shown}")
    if any(re.search(r"\[[PCS](, [PCS])*\]", line) for line in lines):
        lines.append("\nWhere values come from: [P] the paper, [C] its published code, [S] our choice.")
    return "\n".join(lines)


def _asks_for(cls: type[Method]) -> str:
    """Say in words what a method with default options asks of a teacher."""
    student, teacher = StudentInfo("student", 384, 12, 384), TeacherInfo("teacher", 384, 24, hidden=384)
    forms = [
        ("", student, teacher),
        (" and a cross-encoder for a student", replace(student, ranks=True), teacher),
        (" and a task", replace(student, regression=True), teacher),
        (" and a classification task", replace(student, classes=2), replace(teacher, classes=2)),
    ]
    for where, own, theirs in forms[:-1]:
        with contextlib.suppress(DistilvecError):
            return _asked(cls, cls().needs(own, [theirs])) + where
    where, own, theirs = forms[-1]
    return _asked(cls, cls().needs(own, [theirs])) + where


def _asked(cls: type[Method], needs: Needs) -> str:
    asked = {
        "sentence vectors": needs.sentence,
        "token states": any(wanted.tokens for wanted in needs.teachers),
        "attention": any(wanted.attention for wanted in needs.teachers),
        "class logits": needs.logits,
        "scores": needs.scores,
    }
    items = " but pairs or triplets" if cls.trains_on_pairs else ""
    return (", ".join(word for word, wanted in asked.items() if wanted) or "no teacher") + items


def _installed() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda point: point.name)
