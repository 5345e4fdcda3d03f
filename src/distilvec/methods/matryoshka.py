"""A method at several prefixes of the student's vector (Kusupati et al. 2022, arXiv:2205.13147).

    L = mean over the dims and the full width of L_of(e[:dim])

Modules that the method ships (an expert head) are those of the full vector; at a prefix, each of their vectors is cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field, field_validator
from torch import nn

from distilvec.errors import DistilvecError
from distilvec.methods.base import BaseOptions, Batch, Method, Needs, Sample, Term
from distilvec.methods.combined import Holder
from distilvec.methods.table import build_method
from distilvec.students.output import VECTORS, StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals


class MatryoshkaOptions(BaseOptions):
    dims: list[int] = Field(
        [64, 128, 256],
        description="prefixes of the student's vector, each below its width; 8, 16, 32 ... [P]",
        min_length=1,
    )
    of: dict[str, Any] = Field(
        {"name": "cosine"}, description="the method at each of them: its name, or {name: ..., and its options} [S]"
    )

    @field_validator("dims")
    @classmethod
    def _prefixes(cls, dims: list[int]) -> list[int]:
        if min(dims) < 1:
            raise ValueError(f"{dims} must be prefixes of at least 1")
        return sorted(set(dims))

    @field_validator("of", mode="before")
    @classmethod
    def _mapping(cls, of: Any) -> Any:
        of = {"name": of} if isinstance(of, str) else of
        if isinstance(of, Mapping) and not isinstance(of.get("name"), str):
            raise ValueError("it needs the name of a method")
        return of


class Matryoshka(Holder):
    """Holds one method, with heads of its own, per prefix and one for the full vector. Terms: `TERM@DIM`.

    Raises:
        DistilvecError: prefixes out of range (in `needs`), or a method without a term that a prefix could change (in
            `needs`): the task's head reads the full vector.
    """

    name = "matryoshka"
    summary = "another method at several prefixes of the student's vector"
    paper = "Kusupati et al. 2022, Matryoshka representation learning (arXiv:2205.13147)"
    Options: ClassVar[type[BaseOptions]] = MatryoshkaOptions

    def __init__(self, options: BaseOptions | None = None) -> None:
        super().__init__(options)
        of = dict(self.options.of)
        name = of.pop("name")
        self.dims = self.prefixes = tuple(self.options.dims)
        self.methods = nn.ModuleList(build_method(name, of) for _ in range(len(self.dims) + 1))
        full = self.full
        self.inside = full.inside
        self.needs_teacher, self.trains_on_pairs = full.needs_teacher, full.trains_on_pairs

    @property
    def full(self) -> Method:
        """The method of the full vector."""
        return self.each[-1]

    @property
    def shipping(self) -> list[Method]:
        return [self.full]

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        if self.dims[-1] >= student.width:
            raise DistilvecError(
                f"matryoshka: the prefix {self.dims[-1]} is not below the student's width {student.width}",
                where=student.name,
            )
        needs = self.full.needs(student, teachers)
        for dim, method in zip(self.dims, self.each, strict=False):  # too short, perhaps
            method.needs(replace(student, width=dim, hidden=min(dim, student.hidden)), teachers)
        if not needs.states:
            raise DistilvecError(
                f"matryoshka: {self.full.name} looks at class logits or attention alone here, which do not depend on a "
                "prefix, so that none would be trained",
                where=student.name,
                remedy="Leave matryoshka out, or let it be of a method on vectors or token states: cosine or dskd.",
            )
        return needs

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.widths = [*self.dims, student.width]
        self.full.build(student, teachers, sample)
        shipped = self.full.attached(sample.student)
        for dim, method in zip(self.dims, self.each, strict=False):
            info = replace(student, width=dim, hidden=min(dim, student.hidden))
            batches = [(_prefix(output, dim), signals) for output, signals in sample.batches]
            pairs = [(_prefix(output, dim), batch) for output, batch in sample.pairs]
            method.build(info, teachers, Sample(_prefix(shipped, dim), sample.teachers, batches, pairs))

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        terms = {}
        for dim, method in zip(self.widths, self.each, strict=True):
            method.lookup = self.lookup
            for name, term in method(_prefix(student, dim), teachers, batch).items():
                terms[f"{name}@{dim}"] = term._replace(weight=term.weight / len(self.widths))
        return terms


def _prefix(student: StudentOutput, dim: int) -> StudentOutput:
    """The student as if its vectors were `dim` wide. Attention, masks and gates stay; slices are views."""
    if dim >= student.embedding.shape[-1]:
        return student
    return replace(
        student,
        embedding=student.embedding[..., :dim],
        layers=None if student.layers is None else student.layers[..., :dim],
        tokens={layer: states[..., :dim] for layer, states in student.tokens.items()},
        extras={name: value[..., :dim] if name in VECTORS else value for name, value in student.extras.items()},
    )
