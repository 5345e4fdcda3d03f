"""Class names and codes: the same order for teacher, student and evaluation files."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from distilvec.errors import DataError, DistilvecError, nearest


def label_text(label: str | float) -> str:
    """A label as it is named: whole numbers and truth values without a fraction.

    >>> label_text(1), label_text(True), label_text(2.0), label_text("entailment")
    ('1', '1', '2', 'entailment')
    """
    if isinstance(label, str):
        return label
    return str(int(label)) if float(label).is_integer() else str(label)


def encode_labels(labels: Sequence[str | float], names: Sequence[str], where: str) -> np.ndarray:
    """Class codes int64 [n].

    Args:
        labels: n labels, as read.
        names: of the classes. A number that is spelt otherwise, as "1.0" for 1, is found too.

    Raises:
        DataError: a label that is none of the classes.
    """
    codes = {name: code for code, name in enumerate(names)}
    texts = [text if (text := label_text(label)) in codes else _plain(text) for label in labels]
    unknown = next((text for text in texts if text not in codes), None)
    if unknown is not None:
        raise DataError(f'"{unknown}" is none of the {len(names)} classes', where=where, remedy=nearest(unknown, names))
    return np.array([codes[text] for text in texts], np.int64)


def _plain(text: str) -> str:
    """A whole number without its zero fraction; anything else as it is: the codes 007 and 7 are two classes."""
    whole = re.fullmatch(r"([+-]?(?:0|[1-9][0-9]*))\.0+", text)
    return whole[1] if whole else text


def teacher_order(student: Sequence[str], teacher: Sequence[str], name: str) -> np.ndarray:
    """int64 [C]: the column of the teacher's logits for each of the student's classes.

    Raises:
        DistilvecError: the two do not have the same classes.

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
