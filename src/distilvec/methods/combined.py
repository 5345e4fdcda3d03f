"""Several methods at once, as a recipe lists them.

    L = sum_k weight_k L_k

Where one of them learns from pairs or scores, the batch is its own: anchors with all their documents, which the others
see as items. Where an anchor has fewer documents than others, its positive fills the gap, and counts once there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from distilvec.errors import DistilvecError
from distilvec.methods.base import Batch, Method, Needs, Sample, Term, WantedOfStudent
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals, Wanted


class Holder(Method):
    """A method made of others. What goes with the student is that of `shipping`, one behind the other."""

    methods: nn.ModuleList

    @property
    def each(self) -> list[Method]:
        """The methods, in their order."""
        return [cast(Method, method) for method in self.methods]

    @property
    def shipping(self) -> list[Method]:
        """The methods whose modules, maps and files are the student's. Default: all."""
        return self.each

    @property
    def has_map(self) -> bool:
        return any(method.has_map for method in self.shipping)

    def attach(self, student: Any) -> None:
        for method in self.shipping:
            method.attach(student)

    def attached(self, student: StudentOutput) -> StudentOutput:
        for method in self.shipping:
            student = method.attached(student)
        return student

    def rates(self) -> dict[nn.Module, float]:
        return {module: rate for method in self.shipping for module, rate in method.rates().items()}

    def keep(self, folder: Path) -> None:
        for method in self.shipping:
            method.keep(folder)

    def teacher_map(self) -> nn.Linear | None:
        at_home = sorted(self.shipping, key=lambda method: method.implied_space != "teacher")
        maps = (method.teacher_map() for method in at_home)
        return next((linear for linear in maps if linear is not None), None)

    def trains_student(self, progress: float) -> bool:
        return all(method.trains_student(progress) for method in self.shipping)


class Combined(Holder):
    """Holds the methods. Terms: theirs; of two with the same name the later one's is METHOD.TERM.

    Args:
        methods: at least one, and no two of one name.
        weights: of their terms, > 0.
    """

    def __init__(self, methods: Sequence[Method], weights: Sequence[float]) -> None:
        super().__init__(methods[0].options)
        names = [method.name for method in methods]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise DistilvecError(f"{twice} stands there twice", where="method", remedy="Name each method once.")
        self.methods, self.weights = nn.ModuleList(methods), list(weights)
        self.name = " + ".join(names)  # type: ignore[misc]
        self.paper = "; ".join(method.paper for method in methods)  # type: ignore[misc]
        self.inside = any(method.inside for method in methods)
        self.writes = all(method.writes for method in methods)
        self.ranks = all(method.ranks for method in methods)
        self.needs_teacher = any(method.needs_teacher for method in methods)
        self.trains_on_pairs = any(method.trains_on_pairs for method in methods)
        self.implied_space = "teacher" if any(method.implied_space == "teacher" for method in methods) else "own"
        self.prefixes = tuple(sorted({prefix for method in methods for prefix in method.prefixes}))

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        every = [method.needs(student, teachers) for method in self.each]
        views = [needs.student.views for needs in every]
        if self.trains_on_pairs and max(views) > 1:
            several, pairs = (
                self.each[views.index(max(views))],
                next(each for each in self.each if each.trains_on_pairs),
            )
            raise DistilvecError(
                f"{several.name} reads each text {max(views)} times, {pairs.name} once",
                where="method",
                remedy=f"Take a method with one view (cosine, mse, leaf) beside {pairs.name}.",
            )
        companions = [needs.companions for needs in every]
        return Needs(
            _student([needs.student for needs in every]),
            tuple(_teacher([needs.of(index) for needs in every]) for index in range(len(teachers))),
            sentence=any(needs.sentence for needs in every),
            coupled=any(needs.coupled for needs in every),
            companions=None if None in companions else max(count or 0 for count in companions),
            states=any(needs.states for needs in every),
            scores=any(needs.scores for needs in every),
            same_pieces=any(needs.same_pieces for needs in every),
        )

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        for method in self.each:
            method.build(student, teachers, sample)
            # What ships with the student stands behind it when the next one sees it.
            pairs = [(method.attached(output), batch) for output, batch in sample.pairs]
            sample = replace(sample, student=method.attached(sample.student), pairs=pairs)

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        repeated = _repeated(batch) if self.trains_on_pairs else None
        terms: dict[str, Term] = {}
        for method, weight in zip(self.each, self.weights, strict=True):
            method.lookup = self.lookup
            for name, term in method(student, teachers, batch).items():
                counted = term if method.trains_on_pairs else _without(term, repeated)
                key = f"{method.name}.{name}" if name in terms else name
                terms[key] = counted._replace(weight=weight * term.weight)
        return terms


def _student(every: Sequence[WantedOfStudent]) -> WantedOfStudent:
    return WantedOfStudent(
        views=max(wanted.views for wanted in every),
        layers=any(wanted.layers for wanted in every),
        tokens=tuple(sorted({layer for wanted in every for layer in wanted.tokens})),
        attention=tuple(sorted({layer for wanted in every for layer in wanted.attention})),
    )


def _teacher(every: Sequence[Wanted]) -> Wanted:
    """All that is asked of one teacher."""
    looking = [wanted for wanted in every if wanted.attention]
    return Wanted(
        tokens=tuple(sorted({layer for wanted in every for layer in wanted.tokens})),
        attention=tuple(sorted({layer for wanted in looking for layer in wanted.attention})),
        logits=any(wanted.logits for wanted in every),
        same_classes=all(wanted.same_classes for wanted in every if wanted.logits),
        alignment=tuple(dict.fromkeys(mode for wanted in every for mode in wanted.alignment)),
        # A digest stands for the maps; where a second method looks at these, both get the maps.
        digest=looking[0].digest if len(looking) == 1 else None,
        next=any(wanted.next for wanted in every),
    )


def _repeated(batch: Batch) -> Tensor | None:
    """bool [B], the rows that repeat an earlier one of their own group; None where an anchor has one document.

    Whether it is None is the same for all batches of a training: of a term, every item counts in all or in none.
    """
    assert batch.group is not None and batch.role is not None
    if len(batch.role) <= 2 * int(batch.role.eq(0).sum()):
        return None
    return (batch.duplicate & (batch.group[:, None] == batch.group)).tril(-1).any(1)


def _without(term: Term, repeated: Tensor | None) -> Term:
    """A term in whose mean these rows do not count."""
    if repeated is None or term.values.dim() == 0:
        return term
    counted = torch.ones_like(term.values, dtype=torch.bool) if term.counted is None else term.counted
    return term._replace(counted=counted.masked_fill(repeated, 0))
