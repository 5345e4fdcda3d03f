"""Class logits of student and teacher: when there are none, and how far one distribution is from the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distilvec.errors import DistilvecError
from distilvec.functional import soft_cross_entropy
from distilvec.methods import parts
from distilvec.methods.base import StudentInfo, StudentOutput, TeacherInfo, TeacherSignals
from distilvec.precision import full_precision


def check_class_logits(
    method: str, student: StudentInfo, teachers: Sequence[TeacherInfo], instead: str, same_classes: bool = True
) -> None:
    """Refuse what has no class logits on both sides.

    Args:
        instead: what to choose instead, a sentence.
        same_classes: whether class i has to be the same class on both sides.

    Raises:
        DistilvecError: no task, a regression task, a teacher without class logits or with other classes.
    """
    what = f"{method} compares class probabilities, and "
    if student.regression:
        raise DistilvecError(what + "a regression task has none", where=student.name, remedy=instead)
    if student.classes is None:
        raise DistilvecError(what + "without a classification task there are none", where=student.name, remedy=instead)
    for teacher in teachers:
        if teacher.classes is None:
            raise DistilvecError(
                what + "this teacher gives none",
                where=teacher.name,
                remedy="Fine-tune it on the task first: distilvec finetune, of pairs with --encoding joint, because of "
                f"two texts encoded apart neither has a class. {instead}",
            )
        if same_classes and teacher.classes != student.classes:
            raise DistilvecError(
                f"{method} needs the same classes on both sides; the task has {student.classes}, "
                f"this teacher {teacher.classes}",
                where=teacher.name,
                remedy=f"Fine-tune it on this task. {instead}",
            )


def class_logits(student: StudentOutput, signals: TeacherSignals) -> tuple[Tensor, Tensor]:
    """The student's [V, B, C] and the teacher's [B, C], as a step brought them."""
    ours = parts.given(student.logits, "the student's class logits")
    return ours, parts.given(signals.logits, "the teacher's class logits")


@full_precision
def class_divergence(student: Tensor, teacher: Tensor, temperature: float, top_k: int | None = None) -> Tensor:
    """KL(teacher || student) of the two softmaxes at the temperature, in nats, not multiplied by temperature^2.

    Args:
        student: [V, B, C] logits.
        teacher: [B, C] logits.
        top_k: only the teacher's k best classes have mass; None = all.

    Returns:
        [V, B], >= 0 up to rounding; 0 where the distributions agree.

    Source: Hinton et al. 2015, section 2.
    """
    if top_k is not None and top_k < teacher.shape[-1]:
        best = teacher.topk(top_k, -1).indices
        kept = torch.zeros_like(teacher, dtype=torch.bool).scatter(-1, best, True)
        teacher = teacher.masked_fill(~kept, -torch.inf)
    entropy = torch.special.entr((teacher / temperature).softmax(-1)).sum(-1)
    rows = teacher.expand(student.shape).reshape(-1, teacher.shape[-1])
    crossed = soft_cross_entropy(student.reshape(rows.shape), rows, temperature)
    return crossed.reshape(student.shape[:-1]) - entropy
