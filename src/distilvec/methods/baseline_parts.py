"""What the cross-tokenizer baselines share: class logits, the form they take without a task, errors of unit vectors.

These methods were made for language models that predict tokens. An embedding model predicts none, so each has two
adaptations: on the class logits of a supervised task, or on sentence and token states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from distilvec.errors import DistilvecError
from distilvec.functional import normalize, soft_cross_entropy
from distilvec.methods import parts, token_parts
from distilvec.methods.base import Sample, StudentInfo, StudentOutput, TeacherInfo, TeacherSignals
from distilvec.precision import full_precision

Form = Literal["auto", "logits", "embedding"]
Error = Literal["distance", "element"]
FORM = "on class logits, on token states, or auto: logits where there is a task, token states where there is none [S]"
ERROR = "of unit vectors: squared distance [S], or its mean over the D dimensions [P, C]"
ALPHA = "weight of SimCSE where there is no task [P, C]; 0 = none"


def last_layers(method: str, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> tuple[int, tuple[int, ...]]:
    """The last block of the student and of every teacher.

    Raises:
        DistilvecError: a model whose token states cannot be seen.
    """
    token_parts.check_layers(method, student, teachers, 1)
    return token_parts.depth(student), tuple(token_parts.depth(one) for one in teachers)


def last_map(
    student: StudentInfo,
    teacher: TeacherInfo,
    index: int,
    sample: Sample,
    init: parts.Init,
    standardize: nn.Module,
    backwards: bool = False,
) -> nn.Linear:
    """A map from the last token states of the student to those of a teacher, fitted to one-to-one pairs.

    Args:
        index: the teacher's number.
        standardize: what the teacher's states pass through first.
        backwards: from the teacher's to the student's.
    """
    layers, widths = (token_parts.depth(student), token_parts.depth(teacher)), (student.hidden, teacher.hidden or 0)
    return token_parts.token_map(sample, index, [layers], "strict", widths, init, [standardize], backwards)


def uses_logits(method: str, form: Form, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> bool:
    """Whether a method of two forms takes the one on class logits.

    Raises:
        DistilvecError: it is to take it, and there are no class logits.
    """
    if form == "embedding" or (form == "auto" and not token_parts.has_task(student)):
        return False
    instead = "Set form: embedding, which needs token states only, or take dskd, emo or distillmoe."
    check_class_logits(method, student, teachers, instead)
    return True


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
    """The student's [V, B, C] and the teacher's [B, C], as a step brought them.

    Raises:
        DistilvecError: one of them is missing.
    """
    if student.logits is None or signals.logits is None:
        side = "student" if student.logits is None else "teacher"
        raise DistilvecError(f"a batch came without the class logits of the {side}")
    return student.logits, signals.logits


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


@full_precision
def unit_error(x: Tensor, y: Tensor, kind: Error) -> Tensor:
    """Squared distance of the unit vectors, 2 (1 - cos), or that over D: [..., D], [..., D] -> [...].

    A zero vector is at the distance 1 from every other and gets no gradient.
    """
    squares = (normalize(x) - normalize(y)).square()
    return squares.sum(-1) if kind == "distance" else squares.mean(-1)
