"""ULD: the sorted probabilities of student and teacher are brought together, whatever the entries stand for.

    L = sum_c |p^s_(c) - p^t_(c)|,  p = softmax(z / tau), both sorted downwards, the shorter padded with zeros   (eq. 5)

Published form: for language models, over the vocabulary, averaged over the answer's tokens, beside the cross-entropy
with weight 1.5; that is the form for students that write, over the teacher's likeliest tokens and the rest as one.
Adaptation (EMO and DistillMoE's comparisons): an item has one vector of class logits, so the sum runs
over classes. Class identity is lost by sorting; with equal label sets a KL divergence (`mined`) says strictly more.
There is no embedding form: without class logits there is no distribution to sort, and the papers have none either.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from distilvec.functional import sorted_wasserstein
from distilvec.methods.base import Options
from distilvec.methods.tokens import next_tokens
from distilvec.methods.tokens.base import TokenMethod


class ULDOptions(Options):
    #: Of the term; the task's alpha does the rest [S].
    constants: ClassVar[dict[str, Any]] = {"weight": 1.0}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"weight": 1.5, "positions": "index"},
        "code": {"weight": 1.5, "positions": "index"},
    }

    temperature: float = Field(1.0, gt=0, description="tau, of both softmaxes [P, C]")
    positions: next_tokens.Positions = Field("ends", description=next_tokens.POSITIONS)


class ULD(TokenMethod):
    """Terms: `uld` [V, B]."""

    name = "uld"
    summary = "sorted probabilities, of classes or of the next token, follow the teacher's"
    paper = "Boizard et al. 2024, Universal logit distillation (arXiv:2402.12030)"
    Options = ULDOptions
    writes = True
    same_classes = False
    usual_form = "logits"

    def next_divergence(self, index: int, sides: next_tokens.Compared) -> Tensor:
        return next_tokens.sorted_difference(sides, self.options.temperature)

    def class_divergence(self, ours: Tensor, theirs: Tensor) -> Tensor:
        tau = self.options.temperature
        return sorted_wasserstein((ours.float() / tau).softmax(-1), (theirs.float() / tau).softmax(-1))
