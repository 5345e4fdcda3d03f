"""Class names and codes: the same order for teacher, student and evaluation files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.errors import DataError, DistilvecError, nearest


def plain_label(label: Any) -> str:
    """A label as text, a whole number without its fraction: 1, 1.0 and "1.0" are one class, the codes 007 and 7 two.

    >>> plain_label(1), plain_label(True), plain_label("2.0"), plain_label("entailment")
    ('1', '1', '2', 'entailment')
    """
    if isinstance(label, bool | np.bool_):
        return str(int(label))
    whole = re.fullmatch(r"([+-]?(?:0|[1-9][0-9]*))\.0+", str(label))
    return whole[1] if whole else str(label)


def finite_numbers(values: Iterable[Any], where: str) -> npt.NDArray[np.float64]:
    """Values as finite numbers, float64 [n]; a value that is not a finite number is refused."""
    try:
        numbers = np.array([float(value) for value in values], np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"this is not a column of numbers ({error})", where=where) from error
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if len(wrong):
        raise DataError(f"the number of item {wrong[0]} is {numbers[wrong[0]]}, not a finite one", where=where)
    return numbers


def encode_labels(labels: Sequence[str | float], names: Sequence[str], where: str) -> np.ndarray:
    """Class codes int64 [n].

    Args:
        labels: n labels, as read.
        names: of the classes. A number that is spelt otherwise, as "1.0" for 1, is found too.
    """
    codes = {name: code for code, name in enumerate(names)}
    texts = [label if isinstance(label, str) and label in codes else plain_label(label) for label in labels]
    unknown = next((text for text in texts if text not in codes), None)
    if unknown is not None:
        raise DataError(f'"{unknown}" is none of the {len(names)} classes', where=where, remedy=nearest(unknown, names))
    return np.array([codes[text] for text in texts], np.int64)


def teacher_order(student: Sequence[str], teacher: Sequence[str], name: str) -> np.ndarray:
    """int64 [C]: the column of the teacher's logits for each of the student's classes.

    >>> teacher_order(["no", "yes"], ["yes", "no"], "teacher").tolist()
    [1, 0]
    """
    if set(student) != set(teacher):
        missing = ", ".join(sorted(set(student) ^ set(teacher))[:5])
        raise DistilvecError(
            f"the teacher's {len(teacher)} classes are not the task's {len(student)} (one side only: {missing})",
            where=name,
            remedy="Fine-tune the teacher on this task: distilvec finetune.",
        )
    return np.array([list(teacher).index(label) for label in student], np.int64)
