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
from distilvec.methods import baseline_parts, next_tokens, parts, token_parts
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
    WantedOfStudent,
)


class MinEDOptions(Options):
    #: Teacher token states per dimension, by the sample's statistics [S]; not [P, C].
    constants: ClassVar[dict[str, Any]] = {"standardize": True}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"top_k": 10, "mapping": "nearest", "standardize": False, "init": "random"},
        "code": {"top_k": 10, "mapping": "nearest", "standardize": False, "init": "random"},
    }

    form: baseline_parts.Form = Field("auto", description=baseline_parts.FORM)
    temperature: float = Field(1.0, gt=0, description="tau, of both softmaxes [P, C]")
    top_k: int | None = Field(
        None, ge=1, description="the teacher's best classes or tokens that have mass: 10 [P, C], all [S]"
    )
    mapping: next_tokens.Mapping = Field("prefix", description=next_tokens.MAPPING)
    alpha: float = Field(0.5, ge=0, lt=1, description=baseline_parts.ALPHA)
    init: parts.Init = Field("ridge", description="start of W: ridge on the pairs [S], random [P, C]")


class MinED(Method):
    """Terms: `mined` [V, B] (`mined:TEACHER` where there are several), and `simcse` [B] without a task.

    Of a student that writes also `aligned`, for the log.
    """

    name = "mined"
    summary = "KL on class logits or the next token; without a task, states of equal tokens aligned by edit distance"
    paper = "Wan et al. 2024, Knowledge fusion of large language models, FuseLLM (arXiv:2401.10491)"
    Options = MinEDOptions
    inside = True
    writes = True

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        if student.pieces is not None:
            return next_tokens.needs(self.name, student, teachers)
        if baseline_parts.uses_logits(self.name, self.options.form, student, teachers):
            return Needs(teachers=(Wanted(logits=True),) * len(teachers), sentence=False, states=False)
        simcse = self._simcse_weight(student) > 0
        last, layers = baseline_parts.last_layers(self.name, student, teachers)
        return Needs(
            WantedOfStudent(views=2 if simcse else 1, tokens=(last,)),
            tuple(Wanted(tokens=(layer,), alignment=("strict",)) for layer in layers),
            sentence=False,
            coupled=simcse,
        )

    def _simcse_weight(self, student: StudentInfo) -> float:
        return 0.0 if token_parts.has_task(student) else self.options.alpha

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        options = self.options
        self.terms, self.entries = parts.names("mined", teachers), nn.ModuleList()
        if student.pieces is not None:
            self.shares = parts.shares(teachers)
            self.entries.extend(next_tokens.entry_map(student, teacher, options.mapping) for teacher in teachers)
            return
        self.on_logits = baseline_parts.uses_logits(self.name, options.form, student, teachers)
        self.simcse_weight = 0.0 if self.on_logits else self._simcse_weight(student)
        self.shares = parts.shares(teachers, 1 - self.simcse_weight)
        self.standardize, self.maps = nn.ModuleList(), nn.ModuleList()
        if self.on_logits:
            return
        self.layer, self.teacher_layers = baseline_parts.last_layers(self.name, student, teachers)
        for index, (teacher, layer) in enumerate(zip(teachers, self.teacher_layers, strict=True)):
            standardize = token_parts.standardizer(sample, index, layer, options.fixed.standardize)
            self.standardize.append(standardize)
            self.maps.append(baseline_parts.last_map(student, teacher, index, sample, options.init, standardize))

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        options = self.options
        if len(self.entries):
            return next_tokens.next_terms(self.terms, self.shares, student, teachers, "ends", self._divergence)
        terms = {}
        if self.simcse_weight:
            terms["simcse"] = parts.simcse(student, batch, parts.SIMCSE_TEMPERATURE, self.simcse_weight)
        for index, (name, signals) in enumerate(zip(self.terms, teachers, strict=True)):
            if self.on_logits:
                ours, theirs = baseline_parts.class_logits(student, signals)
                values = baseline_parts.class_divergence(ours, theirs, options.temperature, options.top_k)
                terms[name] = parts.counted(values, signals.present, self.shares[index])
            else:
                values, rows = self._paired(index, student, signals)
                terms[name] = parts.counted(values, rows, self.shares[index])
        return terms

    def _divergence(self, index: int, sides: next_tokens.Compared) -> Tensor:
        mapped = self.entries[index](sides.ids)
        return next_tokens.mapped_divergence(sides, mapped, self.options.temperature, self.options.top_k)

    def _paired(self, index: int, student: StudentOutput, signals: TeacherSignals) -> tuple[Tensor, Tensor]:
        """[V, B] mean distance of the pairs, and bool [B] the items that have some."""
        aligned = token_parts.pairs(signals, "strict")
        ours = token_parts.take_rows(student.tokens[self.layer], aligned.student)
        theirs = token_parts.take_rows(signals.tokens[self.teacher_layers[index]], aligned.teacher)
        distances = cosine_distance(self.maps[index](ours), self.standardize[index](theirs))
        return parts.masked_mean(distances, aligned.real), aligned.real.any(-1)
