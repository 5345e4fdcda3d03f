"""Common parts of methods for many teachers: kernels in each teacher's units, and how the teachers are weighed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from distilvec.errors import DataError
from distilvec.methods import parts
from distilvec.methods.base import Batch, Method, Needs, Options, Sample, Term
from distilvec.modules.kernel_head import GaussianKernels, Kernel
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals


class KernelOptions(Options):
    vectors: Literal["standardised", "raw"] = Field(
        "standardised",
        description="teachers' coordinates at mean 0, deviation 1 over the store [S], or as they are [C]",
    )
    clip: float | None = Field(
        3.0,
        gt=0,
        description="standardised coordinates beyond so many deviations count as that [S]; null: as they are [P, C]",
    )
    depth: int = Field(3, ge=1, description="hidden layers of a kernel; 2, 3 and 5 [P]")
    width: int | None = Field(
        1024, ge=1, description="of a kernel's hidden layers [P, molecules]; null: as wide as the student's vector"
    )
    width_factor: float | None = Field(
        None, gt=0, description="hidden layers so many times as wide as the teacher's vector instead; 1.4 [C]"
    )
    init: parts.Init = Field(
        "ridge",
        description="a kernel's mean starts as the ridge map of the untrained student, which is added to its network "
        "[S], or from nothing [P, C]",
    )
    teacher_weight: Literal["mean", "sum", "per_dim"] = Field(
        "mean",
        description="mean: every teacher counts the same, by the share of its coordinates that vary [S]; sum: each "
        "coordinate does, added up [C, Alg. 1]; per_dim: each does, averaged",
    )


class KernelMethod(Method):
    """A kernel per teacher, a term per teacher. Subclasses say what the term is (`compare`).

    Terms: TERM [V, B] per coordinate, and `explained` [V, B], weight 0: the share of the teacher's variance that the
    kernel's mean explains, 1 - mean_d (t_d - m_d)^2 / var_d. Each is `TERM:TEACHER` where there are several.

    Coordinates that are constant over the store add nothing to any sum. One that is nearly always the same (a bit of
    a fingerprint, a unit that seldom fires) is far from its mean where it is not: unclipped, such items rule the
    gradient of the squared error, and more so of the likelihood, which adds their squares over a small deviation.
    """

    term: str
    spread = False
    #: Whether the term is a mean over coordinates, so that weighing these is its weight times their number.
    per_coordinate = True

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        return Needs()

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        options = self.options
        if options.init == "ridge" and not sample.student.embedding.shape[1]:
            raise DataError("kernels start from a fit to a sample, and it is empty", remedy='Use "init: random".')
        self.kernels = GaussianKernels(
            student.width,
            [teacher.name for teacher in teachers],
            [teacher.width for teacher in teachers],
            depth=options.depth,
            hidden=(options.width or student.width) if options.width_factor is None else float(options.width_factor),
            components=getattr(options, "components", 1),
            spread=self.spread,
            triangular=getattr(options, "covariance", "diagonal") == "triangular",
            linear=options.init == "ridge",
        )
        self.suffixes = parts.names("", teachers)
        dims = []
        for number, (teacher, signals) in enumerate(zip(teachers, sample.teachers, strict=True)):
            mean, std = _statistics(teacher, signals)
            self.kernels.learn_units(number, mean, std, standardise=options.vectors == "standardised")
            dims.append(int(self.kernels.live(number).sum()))
            if options.init == "ridge" and int(signals.present.sum()) > 1:
                target = self.kernels.standardise(number, parts.sentence(signals)[signals.present].float())
                target = self._clipped(target)
                source = sample.student.embedding[0][signals.present].float()
                self.kernels.start_linear(number, source, target, self.said)
        self.weights = self._weights(teachers, dims)

    def _weights(self, teachers: Sequence[TeacherInfo], dims: Sequence[int]) -> list[float]:
        """w_k times the number of coordinates that a term is the mean over; `dims` are those that count.

        In 1 / (K D_k), D_k is the whole width, and coordinates that are constant add nothing: a teacher of which
        little varies has little to say, and would else drown the others.
        """
        shares, how = parts.shares(teachers), self.options.teacher_weight
        if how == "mean":
            varying = [
                dim / teacher.width if self.per_coordinate else 1 for dim, teacher in zip(dims, teachers, strict=True)
            ]
            return [share * part for share, part in zip(shares, varying, strict=True)]
        sizes = list(dims) if self.per_coordinate else [1] * len(dims)
        whole = sum(sizes) if how == "per_dim" else 1
        return [share * len(dims) * size / max(whole, 1) for share, size in zip(shares, sizes, strict=True)]

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        terms = {}
        kernels = self.kernels(student.embedding)
        for number, (kernel, signals, suffix) in enumerate(zip(kernels, teachers, self.suffixes, strict=True)):
            target = self.kernels.standardise(number, parts.sentence(signals))
            values, seen = self.compare(kernel, self._clipped(target), self.kernels.live(number))
            terms[self.term + suffix] = parts.counted(values, signals.present, self.weights[number])
            with torch.no_grad():
                explained = self._explained(number, kernel, target)
            for name, value in {"explained": explained, **seen}.items():
                terms[name + suffix] = parts.counted(value, signals.present, 0.0)
        return terms

    def _clipped(self, target: Tensor) -> Tensor:
        clip = self.options.clip if self.options.vectors == "standardised" else None
        return target if clip is None else target.clamp(-clip, clip)

    def said(self, log_variance: Tensor) -> Tensor:
        """The kernel output that gives this log-variance, [D]: the inverse of its bound."""
        return log_variance

    def compare(self, kernel: Kernel, target: Tensor, live: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss per coordinate, [V, B], and what else is logged.

        Args:
            target: [B, D] in the kernel's units.
            live: bool [D], the coordinates that count.
        """
        raise NotImplementedError

    def _explained(self, number: int, kernel: Kernel, target: Tensor) -> Tensor:
        # The quotient first: of descriptors near the end of float32 a product would be beyond it.
        units = self.kernels.scale(number) / self.kernels.deviation(number)
        residual = (target - centre(kernel).float()) * units
        return 1 - live_mean(residual.square(), self.kernels.live(number))


def centre(kernel: Kernel) -> Tensor:
    """[..., D] the mean of the whole mixture."""
    if kernel.weights is None:
        return kernel.mean.squeeze(-2)
    return (kernel.weights.exp().unsqueeze(-1) * kernel.mean).sum(-2)


def live_mean(values: Tensor, live: Tensor) -> Tensor:
    """[..., D] -> [...], the mean over the coordinates that count; 0 where none does."""
    return values.masked_fill(~live, 0.0).sum(-1) / live.sum().clamp_min(1)


def _statistics(teacher: TeacherInfo, signals: TeacherSignals) -> tuple[Tensor, Tensor]:
    """Mean and deviation [D] of the teacher's vectors: over its store, or over the sample where it has none."""
    if teacher.mean is not None and teacher.std is not None:
        return teacher.mean.float(), teacher.std.float()
    vectors = parts.sentence(signals)[signals.present].float()
    if not len(vectors):
        return torch.zeros(teacher.width), torch.ones(teacher.width)
    return vectors.mean(0), vectors.std(0, correction=0)
