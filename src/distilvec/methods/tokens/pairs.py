"""Tokens of student and teacher that belong together: layers, masks and aligned positions.

S counts the student's token positions, T the teacher's, both in the padded tensors of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

from torch import Tensor

from distilvec.errors import DistilvecError
from distilvec.methods import parts
from distilvec.methods.base import StudentInfo, StudentOutput, TeacherInfo, TeacherSignals

LayerMap = Literal["floor", "scaled"]
PairMode = Literal["strict", "path", "reciprocal"]


class TokenPairs(NamedTuple):
    """Aligned token positions, padded: student [B, P], teacher [B, P], real bool [B, P]."""

    student: Tensor
    teacher: Tensor
    real: Tensor


def check_layers(method: str, student: StudentInfo, teachers: Sequence[TeacherInfo], count: int) -> None:
    """Refuse models without the last `count` blocks.

    Raises:
        DistilvecError: a student or a teacher whose layers cannot be seen, or fewer of them than asked.
    """
    models: list[StudentInfo | TeacherInfo] = [student, *teachers]
    for info in models:
        if info.layers is None or info.hidden is None:
            raise DistilvecError(
                f"{method} looks at token states or attention, and this model shows none",
                where=info.name,
                remedy="Take a transformer, or a method that works on sentence vectors, such as cosine.",
            )
        if count > info.layers:
            raise DistilvecError(
                f"{method} is to use {count} layers, this model has {info.layers}",
                where=info.name,
                remedy=f"Set method.layers to {info.layers} or fewer (compare: -m {method}:layers={info.layers}).",
            )


def depth(info: StudentInfo | TeacherInfo) -> int:
    """Number of blocks, of a model that `check_layers` let through."""
    return cast(int, info.layers)


def last(info: StudentInfo | TeacherInfo, count: int) -> tuple[int, ...]:
    """The numbers of the last `count` blocks."""
    return tuple(range(depth(info) - count + 1, depth(info) + 1))


def matching_layer(student: StudentInfo, teacher: TeacherInfo, layer: int, rule: LayerMap) -> int:
    """The teacher's layer for a student's (1-based).

    `floor` is floor(h_t / h_s) * layer (EMO, section 3.1); `scaled` max(1, floor(layer * h_t / h_s + 1/2)), which
    takes last to last whatever the depths.

    Raises:
        DistilvecError: `floor` for a teacher with fewer blocks than the student, where it gives layer 0.
    """
    ours, theirs = depth(student), depth(teacher)
    if rule == "scaled":
        return max(1, math.floor(layer * theirs / ours + 0.5))
    if theirs < ours:
        raise DistilvecError(
            f"layer_map floor needs at least the student's {ours} layers, this teacher has {theirs}",
            where=teacher.name,
            remedy="Set layer_map: scaled.",
        )
    return theirs // ours * layer


def last_layers(method: str, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> tuple[int, tuple[int, ...]]:
    """The last block of the student and of every teacher."""
    check_layers(method, student, teachers, 1)
    return depth(student), tuple(depth(one) for one in teachers)


def masks(student: StudentOutput, signals: TeacherSignals, special_tokens: bool) -> tuple[Tensor, Tensor]:
    """bool [B, S], [B, T]: the tokens that take part; none of an item that the teacher does not have."""
    present = signals.present
    return side_mask(student, present, special_tokens), side_mask(signals, present, special_tokens)


def side_mask(side: StudentOutput | TeacherSignals, present: Tensor, special_tokens: bool) -> Tensor:
    """One side's of `masks`."""
    mask = side.mask if special_tokens else side.content
    return parts.given(mask, "token masks") & present.unsqueeze(-1)


def pairs(signals: TeacherSignals, mode: str) -> TokenPairs:
    """The aligned positions of one mode."""
    positions = parts.given(signals.alignments.get(mode), f'the token alignment "{mode}"')
    real = (positions[..., 0] >= 0) & signals.present.unsqueeze(-1)
    student, teacher = positions.clamp_min(0).unbind(-1)
    return TokenPairs(student, teacher, real)


def take_rows(states: Tensor, index: Tensor) -> Tensor:
    """[..., B, S, F] at the positions [B, P] -> [..., B, P, F]."""
    return states.gather(-2, index.unsqueeze(-1).expand(*states.shape[:-2], index.shape[-1], states.shape[-1]))
