"""Maps between token states of student and teacher, and statistics of these, from a sample."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from distilvec.errors import DataError, DistilvecError
from distilvec.functional import normalize
from distilvec.methods import parts
from distilvec.methods.base import Sample, StudentInfo, StudentOutput, TeacherInfo, TeacherSignals
from distilvec.methods.tokens import pairs
from distilvec.modules.projection import projection
from distilvec.precision import full_precision

Error = Literal["distance", "element"]
ERROR = "of unit vectors: squared distance [S], or its mean over the D dimensions [P, C]"
_FIT_ROWS = 10_000


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


class Sides(NamedTuple):
    """The student and one teacher, and what both say of a sample.

    Attributes:
        number: the teacher's.
    """

    student: StudentInfo
    teacher: TeacherInfo
    number: int
    sample: Sample

    @property
    def last(self) -> tuple[int, int]:
        """The last blocks."""
        return pairs.depth(self.student), pairs.depth(self.teacher)

    @property
    def widths(self) -> tuple[int, int]:
        """Widths of the token states."""
        return self.student.hidden, self.teacher.hidden or 0

    @property
    def batches(self) -> list[tuple[StudentOutput, list[TeacherSignals]]]:
        """The batches of the sample with token states."""
        if not self.sample.batches:
            raise DistilvecError(
                "the token maps and statistics of this method are computed from token states, and the sample has none",
                remedy="Set init: random, where the method has it.",
            )
        return self.sample.batches

    def standardizer(self, layer: int, wanted: bool) -> nn.Module:
        """Per-dimension statistics of a teacher's token states over the sample's content tokens, or the identity."""
        if not wanted:
            return nn.Identity()
        count, total, squares = 0, torch.zeros(()).double(), torch.zeros(()).double()
        for _, signals in self.batches:
            one = signals[self.number]
            states = one.tokens[layer][cast(Tensor, one.content) & one.present.unsqueeze(-1)].double()
            count, total, squares = count + len(states), total + states.sum(0), squares + states.square().sum(0)
        if count == 0:
            raise DataError(
                "the sample that token statistics are taken from holds no token", remedy="Check the corpus."
            )
        mean = total / count
        deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
        constant = deviation <= 1e-6 * deviation.mean()
        return Standardize(mean.float(), deviation.masked_fill(constant, 1).float())

    def token_map(
        self,
        layers: Sequence[tuple[int, int]],
        standardize: Iterable[nn.Module],
        init: parts.Init,
        mode: str = "strict",
        backwards: bool = False,
    ) -> nn.Linear:
        """A map from the student's token states to the teacher's, fitted to aligned pairs.

        Args:
            layers: of the student and of the teacher; the map is one for all of them.
            standardize: what the teacher's states of each layer pass through first.
            mode: of the alignment.
            backwards: from the teacher's space to the student's.
        """
        width_in, width_out = reversed(self.widths) if backwards else self.widths
        if init == "random":
            return projection(width_in, width_out, init="random")
        states = [
            (ours, module(theirs))
            for layer, module in zip(layers, standardize, strict=True)
            for ours, theirs in [self.paired(layer, mode)]
        ]
        ours, theirs = (torch.cat(side) for side in zip(*states, strict=True))
        source, target = (theirs, ours) if backwards else (ours, theirs)
        return projection(width_in, width_out, source=source, target=target, init="ridge")

    def paired(self, layers: tuple[int, int], mode: str) -> tuple[Tensor, Tensor]:
        """States of aligned pairs, student's [n, d] and teacher's [n, D]: about 10,000, evenly from all batches."""
        batches = self.batches
        limit = max(1, _FIT_ROWS // len(batches))
        ours, theirs = [], []
        for student, signals in batches:
            aligned = pairs.pairs(signals[self.number], mode)
            own = pairs.take_rows(student.tokens[layers[0]][0], aligned.student)[aligned.real]
            other = pairs.take_rows(signals[self.number].tokens[layers[1]], aligned.teacher)[aligned.real]
            every = max(1, math.ceil(len(own) / limit))
            ours.append(own[::every].float())
            theirs.append(other[::every].float())
        return torch.cat(ours), torch.cat(theirs)


@full_precision
def unit_error(x: Tensor, y: Tensor, kind: Error) -> Tensor:
    """Squared distance of the unit vectors, 2 (1 - cos), or that over D: [..., D], [..., D] -> [...].

    A zero vector is at the distance 1 from every other and gets no gradient.
    """
    squares = (normalize(x) - normalize(y)).square()
    return squares.sum(-1) if kind == "distance" else squares.mean(-1)
