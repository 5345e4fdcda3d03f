"""Checks of what stands next to a task of kind generation in a recipe. Reading a recipe takes no torch."""

from __future__ import annotations

from typing import Any


def check_writing(recipe: Any) -> None:
    """Refuse keys that mean nothing where a student is to write.

    Args:
        recipe: a `Recipe` with such a task.

    Raises:
        ValueError: naming the key.
    """
    task = "a task of kind generation"
    if recipe.student is not None:
        _check_student(recipe.student, task)
    if recipe.scorers:
        raise ValueError(f"scorers: methods on scores are not for {task}")
    if recipe.combine != "separate":
        raise ValueError(f"combine: teachers of {task} are separate")
    if recipe.training.mini_batch_size is not None:
        raise ValueError(f"training.mini_batch_size: gradient caching keeps no tokens, so it is not for {task}")
    if recipe.judging.compression:
        raise ValueError(f"judging.compression: not for {task}")
    for teacher in recipe.teachers:
        if not teacher.has_tokens:
            raise ValueError(f"teachers: a teacher of {task} is a causal language model: give its model")


def _check_student(student: Any, task: str) -> None:
    if student.model is None:
        raise ValueError(f"student: {task} needs a causal language model: give student.model")
    for name in ("upcycle", "aggregation", "router_balance", "remember", "fold", "router", "extend_length", "lora"):
        if getattr(student, name):
            raise ValueError(f"student.{name}: not for {task}")
    if student.pooling == "cls":
        raise ValueError("student.pooling: of a model that writes it is last or mean, of the answer's tokens")
    if student.space == "teacher":
        raise ValueError(f"student.space: the student of {task} is no embedder")
