"""ULD: the sorted probabilities of student and teacher are brought together, whatever the entries stand for.

    L = sum_c |p^s_(c) - p^t_(c)|,  p = softmax(z / tau), both sorted downwards, the shorter padded with zeros   (eq. 5)

Published form: for language models, over the vocabulary, averaged over the answer's tokens, beside the cross-entropy
with weight 1.5; that is the form for students that write, over the teacher's likeliest tokens and the rest as one.
Adaptation (EMO and DistillMoE's comparisons): an item has one vector of class logits, so the sum runs
over classes. Class identity is lost by sorting; with equal label sets a KL divergence (`mined`) says strictly more.
There is no embedding form: without class logits there is no distribution to sort, and the papers have none either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from distilvec.functional import sorted_wasserstein
from distilvec.methods import baseline_parts, next_tokens, parts
from distilvec.methods.base import (
    Batch,
    Method,
    Needs,
    Options,
    Sample,
    StudentInfo,
    StudentOutput,
    TeacherInfo,
    TeacherSignals,
    Term,
    Wanted,
)


class ULDOptions(Options):
    #: Of the term; the task's alpha does the rest [S].
    constants: ClassVar[dict[str, Any]] = {"weight": 1.0}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"weight": 1.5, "positions": "index"},
        "code": {"weight": 1.5, "positions": "index"},
    }

    temperature: float = Field(1.0, gt=0, description="tau, of both softmaxes [P, C]")
    positions: next_tokens.Positions = Field("ends", description=next_tokens.POSITIONS)


class ULD(Method):
    """Terms: `uld` [V, B] (`uld:TEACHER` where there are several); of a student that writes `aligned`, for the log."""

    name = "uld"
    summary = "sorted probabilities, of classes or of the next token, follow the teacher's"
    paper = "Boizard et al. 2024, Universal logit distillation (arXiv:2402.12030)"
    Options = ULDOptions
    inside = True
    writes = True

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        if student.pieces is not None:
            return next_tokens.needs(self.name, student, teachers, self.options.positions)
        instead = "Take a method on vectors or token states: cosine, dskd, emo or distillmoe."
        baseline_parts.check_class_logits(self.name, student, teachers, instead, same_classes=False)
        return Needs(teachers=(Wanted(logits=True, same_classes=False),) * len(teachers), sentence=False, states=False)

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.terms, self.shares = parts.names("uld", teachers), parts.shares(teachers, self.options.fixed.weight)
        self.on_tokens = student.pieces is not None

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        tau = self.options.temperature
        if self.on_tokens:

            def differ(_: int, sides: next_tokens.Compared) -> Tensor:
                return next_tokens.sorted_difference(sides, tau)

            return next_tokens.next_terms(self.terms, self.shares, student, teachers, self.options.positions, differ)
        terms = {}
        for name, share, signals in zip(self.terms, self.shares, teachers, strict=True):
            ours, theirs = baseline_parts.class_logits(student, signals)
            values = sorted_wasserstein((ours.float() / tau).softmax(-1), (theirs.float() / tau).softmax(-1))
            terms[name] = parts.counted(values, signals.present, share)
        return terms
