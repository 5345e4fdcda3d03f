"""MinED: tokens aligned by minimum edit distance, and the teacher's distribution where they are equal.

    next token: L = mean over places where both have read the same text of KL(M p^t || p^s), M the mapping of entries
    logits:     L = KL(softmax(z^t / tau) || softmax(z^s / tau))
    embedding:  L = alpha SimCSE + (1 - alpha) mean over the pairs of 1 - cos(h^s W, h^t)

Published form (FuseLLM): for language models; token strings are aligned by time warping over their edit distance, and
where a student token stands alone against one equal teacher token, the student's next-token distribution is fitted to
the teacher's ten best logits, each mapped to the student's nearest vocabulary entry.

For students that write, places are those where both have read the same text, to which equal aligned tokens lead; that
the gold token has all mass elsewhere is what the task's own loss says.

Adaptations. With a classification task the "vocabulary" is the label set, which both sides share, and an item has one
distribution: both mappings are the identity, and what is left is KL on class logits, as EMO's authors say of their own
comparison. Without a task there is no distribution at all: the alignment is kept, and the last hidden states
of the pairs (one-to-one, equal strings) are compared in the teacher's space; that form is ours, after those of `cdm`
and `emo`, as the papers that report it do not describe theirs. The choice among several teachers by their loss on the
gold token is not made: they count by their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor, nn

from distilvec.functional import cosine_distance
from distilvec.methods import parts
from distilvec.methods.base import Batch, Options, Term
from distilvec.methods.tokens import next_tokens, pairs
from distilvec.methods.tokens.base import ALPHA, EMBEDDING_INSTEAD, FORM, Form, TokenMethod
from distilvec.methods.tokens.maps import Sides
from distilvec.students.output import StudentOutput
from distilvec.teachers.signals import TeacherSignals


class MinEDOptions(Options):
    #: Teacher token states per dimension, by the sample's statistics [S]; not [P, C].
    constants: ClassVar[dict[str, Any]] = {"standardize": True}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"top_k": 10, "mapping": "nearest", "standardize": False, "init": "random"},
        "code": {"top_k": 10, "mapping": "nearest", "standardize": False, "init": "random"},
    }

    form: Form = Field("auto", description=FORM)
    temperature: float = Field(1.0, gt=0, description="tau, of both softmaxes [P, C]")
    top_k: int | None = Field(
        None, ge=1, description="the teacher's best classes or tokens that have mass: 10 [P, C], all [S]"
    )
    mapping: next_tokens.Mapping = Field("prefix", description=next_tokens.MAPPING)
    alpha: float = Field(0.5, ge=0, lt=1, description=ALPHA)
    init: parts.Init = Field("ridge", description="start of W: ridge on the pairs [S], random [P, C]")


class MinED(TokenMethod):
    """Terms: `mined` [V, B]."""

    name = "mined"
    summary = "KL on class logits or the next token; without a task, states of equal tokens aligned by edit distance"
    paper = "Wan et al. 2024, Knowledge fusion of large language models, FuseLLM (arXiv:2401.10491)"
    Options = MinEDOptions
    writes = True
    logits_instead = EMBEDDING_INSTEAD

    def build_next(self, every: Sequence[Sides]) -> None:
        by = self.options.mapping
        self.entries = nn.ModuleList(next_tokens.EntryMap(each.student, each.teacher, by) for each in every)

    def build_states(self, every: Sequence[Sides]) -> None:
        self.build_last(every)

    def next_divergence(self, index: int, sides: next_tokens.Compared) -> Tensor:
        mapped = self.entries[index](sides.ids)
        return next_tokens.mapped_divergence(sides, mapped, self.options.temperature, self.options.top_k)

    def compare_states(self, index: int, student: StudentOutput, signals: TeacherSignals, _: Batch) -> dict[str, Term]:
        aligned, (own, their) = pairs.pairs(signals, "strict"), self.last[index]
        ours = pairs.take_rows(student.tokens[own], aligned.student)
        theirs = pairs.take_rows(signals.tokens[their], aligned.teacher)
        distances = cosine_distance(self.maps[index](ours), self.standardize[index](theirs))
        values = parts.masked_mean(distances, aligned.real)
        return {"mined": parts.counted(values, aligned.real.any(-1), 1.0)}
