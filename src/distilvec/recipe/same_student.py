"""The keys of a recipe that decide the student; a run that was begun can resume with other values of all others."""

from __future__ import annotations

from typing import Any

from distilvec.recipe.recipe import Recipe

#: How a teacher, a service or a scorer is asked, not what it says.
_ASKING = {"batch_size", "rate_limit", "token_budget"}
_SERVICE = {"url", "key_env", "encoding", "concurrency", "timeout", "attempts", "price"}
_SERVICE |= {"tokens_per_request", "tokens_per_minute"}
#: Where things lie, and what is done with a student that is trained.
_AROUND = {"cache", "output", "remote", "judging"}
_TRAINING = {"logging_steps", "report_to", "run_name", "project", "dataloader_num_workers", "save_total_limit"}
#: Characters of a value in a message.
_LONGEST = 80


def differences(one: Recipe, other: Recipe) -> list[str]:
    """Keys that decide the student and differ, with both values: "training.epochs: 2 there, 3 here"."""
    first, second = _deciding(one), _deciding(other)
    keys = dict.fromkeys([*first, *second])
    return [
        f"{key}: {_shown(first.get(key))} there, {_shown(second.get(key))} here"
        for key in keys
        if first.get(key) != second.get(key)
    ]


def _shown(value: Any) -> str:
    """A value in a message: the beginning of a long one (texts that are given from Python, say)."""
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _deciding(recipe: Recipe) -> dict[str, Any]:
    """Key with dots -> value, of what decides the student."""
    content = recipe.model_dump(mode="json")
    automatic = recipe.student is not None and recipe.student.auto is not None  # chosen by the tasks
    for key in _AROUND - ({"judging"} if automatic else set()):
        del content[key]
    for asked in [*content["teachers"], *content["scorers"]]:
        for key in _ASKING:
            asked.pop(key, None)
        for key in _SERVICE if asked.get("api") else ():
            del asked["api"][key]
    for key in _TRAINING | ({"save_every"} if recipe.training.best is None else set()):
        content["training"].pop(key, None)
    return dict(_flat(content, ""))


def _flat(value: Any, name: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [pair for key, each in value.items() for pair in _flat(each, f"{name}.{key}" if name else key)]
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return [pair for number, each in enumerate(value) for pair in _flat(each, f"{name}.{number}")]
    return [(name, value)]
