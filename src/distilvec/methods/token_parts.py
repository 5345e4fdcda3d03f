"""What token-level methods share: layers, aligned pairs, importance, masses, statistics and starts of token maps.

S counts the student's token positions, T the teacher's, both in the padded tensors of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from distilvec.errors import DataError, DistilvecError
from distilvec.functional import top_tokens
from distilvec.methods import parts
from distilvec.methods.base import Sample, StudentInfo, StudentOutput, TeacherInfo, TeacherSignals
from distilvec.modules.projection import projection
from distilvec.precision import full_precision

LayerMap = Literal["floor", "scaled"]
PairMode = Literal["strict", "path", "reciprocal"]
Normalizer = Literal["sum", "softmax"]
_FIT_ROWS = 10_000


class TokenPairs(NamedTuple):
    """Aligned token positions, padded: student [B, P], teacher [B, P], real bool [B, P]."""

    student: Tensor
    teacher: Tensor
    real: Tensor


class FixedMap(nn.Module):
    """A linear map that is not trained: its weight is a buffer, saved and moved like the rest."""

    weight: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", linear.weight.detach().clone())

    def forward(self, states: Tensor) -> Tensor:
        return functional.linear(states, self.weight)


class Standardize(nn.Module):
    """(x - mean) / deviation per dimension: few outlier dimensions would dominate cosines and CKA otherwise."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, states: Tensor) -> Tensor:
        return (states.float() - self.mean) / self.deviation


def has_task(student: StudentInfo) -> bool:
    """Whether a task's loss stands beside the method's terms; where none does, SimCSE takes its place."""
    return student.classes is not None or student.regression or student.pieces is not None


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


def masks(student: StudentOutput, signals: TeacherSignals, special_tokens: bool) -> tuple[Tensor, Tensor]:
    """bool [B, S], [B, T]: the tokens that take part; none of an item that the teacher does not have.

    Raises:
        DistilvecError: student or teacher come without masks.
    """
    ours = student.mask if special_tokens else student.content
    if ours is None:
        raise DistilvecError("a token-level method was given a batch without token masks")
    return ours & signals.present.unsqueeze(-1), teacher_mask(signals, special_tokens)


def teacher_mask(signals: TeacherSignals, special_tokens: bool) -> Tensor:
    """bool [B, T]: the teacher's tokens that take part; none of an item that it does not have.

    Raises:
        DistilvecError: the signals come without masks.
    """
    theirs = signals.mask if special_tokens else signals.content
    if theirs is None:
        raise DistilvecError("a token-level method was given signals without token masks")
    return theirs & signals.present.unsqueeze(-1)


def pairs(signals: TeacherSignals, mode: str) -> TokenPairs:
    """The aligned positions of one mode.

    Raises:
        DistilvecError: the batch has no alignment of that mode.
    """
    if mode not in signals.alignments:
        raise DistilvecError(f'a batch came without the token alignment "{mode}"')
    positions = signals.alignments[mode]
    real = (positions[..., 0] >= 0) & signals.present.unsqueeze(-1)
    student, teacher = positions.clamp_min(0).unbind(-1)
    return TokenPairs(student, teacher, real)


def take_rows(states: Tensor, index: Tensor) -> Tensor:
    """[..., B, S, F] at the positions [B, P] -> [..., B, P, F]."""
    return states.gather(-2, index.unsqueeze(-1).expand(*states.shape[:-2], index.shape[-1], states.shape[-1]))


@torch.no_grad()
def best_pairs(found: TokenPairs, scores: Tensor, share: float, minimum: int) -> TokenPairs:
    """The max(minimum, floor(share * n)) of each item's n pairs whose teacher tokens score highest.

    Args:
        scores: [B, T].

    Returns:
        TokenPairs, cut to the largest number that an item keeps.
    """
    chosen = top_tokens(scores.gather(1, found.teacher), found.real, share, minimum)
    most = int(chosen.sum(-1).max()) if chosen.numel() else 0
    order = chosen.int().argsort(dim=-1, descending=True, stable=True)[:, :most]
    return TokenPairs(found.student.gather(1, order), found.teacher.gather(1, order), chosen.gather(1, order))


@torch.no_grad()
@full_precision
def importance(attention: Tensor, rows: Tensor, columns: Tensor, visible: Tensor | None = None) -> Tensor:
    """How much attention each token receives.

    Args:
        attention: [B, T, T], averaged over heads.
        rows: bool [B, T], tokens whose attention counts.
        columns: bool [B, T], tokens that are scored; the others get 0.
        visible: for causal maps, bool [B, T] of the real tokens: sums are divided by what even attention to all
            tokens seen so far would give, because early tokens are seen more often. None = no correction.

    Returns:
        [B, T] sums over rows, not normalised.

    Source: EMO, eq. 6.
    """
    scores = attention.masked_fill(~rows.unsqueeze(-1), 0).sum(-2)
    if visible is not None:
        even = rows.to(scores.dtype) / visible.cumsum(-1).clamp_min(1)
        seen = even.flip(-1).cumsum(-1).flip(-1)  # rows at and after the token
        scores = scores / seen.masked_fill(seen == 0, math.inf)
    return scores.masked_fill(~columns, 0)


@full_precision
def normalized(scores: Tensor, mask: Tensor, by: Normalizer) -> Tensor:
    """Scores [..., n] as masses that sum to 1 over `mask`, 0 elsewhere; all 0 where nothing has a score."""
    if by == "softmax":
        return parts.masked_softmax(scores, mask).masked_fill(~mask, 0)
    scores = scores.masked_fill(~mask, 0)
    total = scores.sum(-1, keepdim=True)
    return scores / total.masked_fill(total == 0, math.inf)


@torch.no_grad()
@full_precision
def path_masses(scores: Tensor, path: TokenPairs, positions: int) -> tuple[Tensor, Tensor]:
    """Masses of both sides when each teacher token shares its own equally over its cells of the warping path.

    Args:
        scores: [B, T], >= 0.
        path: every cell of the path.
        positions: S.

    Returns:
        student [B, S], teacher [B, T], each summing to 1, or 0 for an item without path.
    """
    cell = path.real.to(scores.dtype)
    cells = torch.zeros_like(scores).scatter_add(1, path.teacher, cell)
    theirs = normalized(scores, cells > 0, "sum")
    share = theirs.gather(1, path.teacher) / cells.gather(1, path.teacher).clamp_min(1) * cell
    return scores.new_zeros(len(scores), positions).scatter_add(1, path.student, share), theirs


@torch.no_grad()
@full_precision
def pair_masses(scores: Tensor, columns: Tensor, found: TokenPairs, rows: Tensor, by: Normalizer) -> Tensor:
    """The student's masses [B, S]: a mapped token takes its partner's score, every other the least score there is.

    Args:
        scores: [B, T], normalised.
        columns: bool [B, T], teacher tokens that have a score.
        rows: bool [B, S], student tokens that get a mass.
        by: how they are normalised at the end.

    Source: EMO, eq. 16.
    """
    real = found.real.to(scores.dtype)
    empty = scores.new_zeros(rows.shape)
    mapped = empty.scatter_add(1, found.student, real) > 0
    given = empty.scatter_add(1, found.student, scores.gather(1, found.teacher) * real)
    least = scores.masked_fill(~columns, math.inf).amin(-1, keepdim=True)
    usable = rows & columns.any(-1, keepdim=True)
    return normalized(torch.where(mapped, given, least.masked_fill(least.isinf(), 0)), usable, by)


def standardizer(sample: Sample, teacher: int, layer: int, wanted: bool) -> nn.Module:
    """Per-dimension statistics of a teacher's token states over the sample's content tokens, or the identity.

    Raises:
        DataError: the sample holds no token.
    """
    if not wanted:
        return nn.Identity()
    count, total, squares = 0, torch.zeros(()).double(), torch.zeros(()).double()
    for _, signals in _batches(sample):
        one = signals[teacher]
        states = one.tokens[layer][cast(Tensor, one.content) & one.present.unsqueeze(-1)].double()
        count, total, squares = count + len(states), total + states.sum(0), squares + states.square().sum(0)
    if count == 0:
        raise DataError("the sample that token statistics are taken from holds no token", remedy="Check the corpus.")
    mean = total / count
    deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
    constant = deviation <= 1e-6 * deviation.mean()
    return Standardize(mean.float(), deviation.masked_fill(constant, 1).float())


def token_map(
    sample: Sample,
    teacher: int,
    layers: Sequence[tuple[int, int]],
    mode: str,
    widths: tuple[int, int],
    init: parts.Init,
    standardize: Iterable[nn.Module],
    backwards: bool = False,
) -> nn.Linear:
    """A map between token states, fitted to aligned pairs.

    Args:
        teacher: its number.
        layers: of the student and of the teacher; the map is one for all of them.
        mode: of the alignment.
        widths: of the student's and of the teacher's states.
        standardize: what the teacher's states of each layer pass through first.
        backwards: from the teacher's space to the student's.
    """
    width_in, width_out = reversed(widths) if backwards else widths
    if init == "random":
        return projection(width_in, width_out, init="random")
    states = [
        (ours, module(theirs))
        for layer, module in zip(layers, standardize, strict=True)
        for ours, theirs in [paired_states(sample, teacher, layer, mode)]
    ]
    ours, theirs = (torch.cat(side) for side in zip(*states, strict=True))
    source, target = (theirs, ours) if backwards else (ours, theirs)
    return projection(width_in, width_out, source=source, target=target, init="ridge")


def paired_states(sample: Sample, teacher: int, layers: tuple[int, int], mode: str) -> tuple[Tensor, Tensor]:
    """States of aligned pairs, student's [n, d] and teacher's [n, D]: about 10,000, evenly from all batches."""
    batches = _batches(sample)
    limit = max(1, _FIT_ROWS // len(batches))
    ours, theirs = [], []
    for student, signals in batches:
        aligned = pairs(signals[teacher], mode)
        own = take_rows(student.tokens[layers[0]][0], aligned.student)[aligned.real]
        other = take_rows(signals[teacher].tokens[layers[1]], aligned.teacher)[aligned.real]
        every = max(1, math.ceil(len(own) / limit))
        ours.append(own[::every].float())
        theirs.append(other[::every].float())
    return torch.cat(ours), torch.cat(theirs)


def _batches(sample: Sample) -> list[tuple[StudentOutput, list[TeacherSignals]]]:
    if not sample.batches:
        raise DistilvecError(
            "the token maps and statistics of this method are computed from token states, and the sample has none",
            remedy="Set init: random and standardize: false, where the method has these options.",
        )
    return sample.batches
