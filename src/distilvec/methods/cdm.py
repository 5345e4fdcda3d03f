"""CDM: each student token follows the teacher states that the warping path gives it.

    next token: L = (KL(M p^t || p^s) + KL(p^t || M' p^s)) / 2 where both have read the same text, M and M' mappings of
                entries in either direction, within each side's best entries there
    logits:     L = KL(softmax(z^t / tau) || softmax(z^s / tau))
    embedding:  L = alpha SimCSE + (1 - alpha) (tokens + sentence)
                tokens = mean over student tokens i of ||n(h^s_i W) - n(mean over the path's cells (i, j) of h^t_j)||^2
                sentence = ||n(e P) - n(t)||^2,  n(x) = x / ||x||

Published form: for language models; time warping over the edit distance of token strings, each cell's cost weighted by
the entropies of both models' predictions there, a vocabulary mapping that is made anew for every context from the 100
best entries in both directions, and KL on the mapped logits.

For students that write, places where both have read the same text stand in the place of the warping path, on which the
entropies have nothing left to decide; the published loss of mapped logits is not known (only its description is), so
KL is taken in both directions of mapping.

Adaptations. With a classification task both sides share the label set, which needs no mapping, and an item has one
distribution, which needs no path: KL on class logits, the same as `mined` (the group's own code warps the tokens there
and then does not use the result). Without a task TALAS, appendix E: embedding models predict no tokens, so the path has
plain edit distances, and hidden states take the place of logits. The paper averages teacher states to the student's
length; the published code keeps only one-to-one pairs of equal strings and adds the sentence term.

The `code` preset differs from the published code in this: the teacher's word-start mark is recognised (there a "G" is
deleted instead), special tokens are in no pair, the mean is taken per item and not over all tokens of a batch, and the
sentence term has a map of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

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


class CDMOptions(Options):
    #: Weight of KL (the task's alpha does the rest) [S]; teacher token states per dimension, by the sample's statistics
    #: [S].
    constants: ClassVar[dict[str, Any]] = {"logit_weight": 1.0, "standardize": True}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {
            "sentence_weight": 0,
            "top_k": 100,
            "mapping": "nearest",
            "error": "element",
            "standardize": False,
            "init": "random",
        },
        "code": {
            "token_weight": 100,
            "sentence_weight": 2,
            "logit_weight": 0.1,
            "top_k": 100,
            "mapping": "nearest",
            "aggregate": "strict",
            "error": "element",
            "standardize": False,
            "init": "random",
        },
    }

    form: baseline_parts.Form = Field("auto", description=baseline_parts.FORM)
    temperature: float = Field(1.0, gt=0, description="tau, of both softmaxes [S]")
    top_k: int | None = Field(
        None, ge=1, description="the best classes or tokens that have mass: 100 [P, C], all that are known [S]"
    )
    mapping: next_tokens.Mapping = Field("prefix", description=next_tokens.MAPPING)
    token_weight: float = Field(1.0, ge=0, description="of the token states: 1 [P, S], 100 [C]")
    sentence_weight: float = Field(1.0, ge=0, description="of the sentence vectors: 0 [P], 2 [C], 1 [S]")
    aggregate: Literal["path", "strict"] = Field(
        "path", description="mean of the path's teacher states [P, S], or one-to-one pairs of equal strings [C]"
    )
    error: baseline_parts.Error = Field("distance", description=baseline_parts.ERROR)
    alpha: float = Field(0.5, ge=0, lt=1, description=baseline_parts.ALPHA)
    init: parts.Init = Field("ridge", description="start of W and P: ridge maps [S], random [P, C]")

    @model_validator(mode="after")
    def _something_to_do(self) -> CDMOptions:
        if not self.token_weight + self.sentence_weight:
            raise ValueError("token_weight and sentence_weight are both 0, so there is nothing to distil")
        return self


class CDM(Method):
    """Terms: `cdm` [V, B] on logits or the next token; else `tokens`, `sentence` [V, B].

    `:TEACHER` each where there are several. Without a task also `simcse` [B]; of a student that writes `aligned`, for
    the log.
    """

    name = "cdm"
    summary = "KL on class logits or the next token; without a task, token states averaged along the warping path"
    paper = "Chen et al. 2025, Contextual dynamic mapping; for embedding models TALAS, appendix E"
    Options = CDMOptions
    inside = True
    writes = True

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        options = self.options
        if student.pieces is not None:
            return next_tokens.needs(self.name, student, teachers)
        if baseline_parts.uses_logits(self.name, options.form, student, teachers):
            return Needs(teachers=(Wanted(logits=True),) * len(teachers), sentence=False, states=False)
        simcse = self._simcse_weight(student) > 0
        own = WantedOfStudent(views=2 if simcse else 1)
        needs = Needs(own, sentence=options.sentence_weight > 0, coupled=simcse)
        if not options.token_weight:
            return needs
        modes = ["strict"] if options.aggregate == "strict" or options.init == "ridge" else []
        modes += ["full"] if options.aggregate == "path" else []
        last, layers = baseline_parts.last_layers(self.name, student, teachers)
        return needs._replace(
            student=own._replace(tokens=(last,)),
            teachers=tuple(Wanted(tokens=(layer,), alignment=tuple(modes)) for layer in layers),
        )

    def _simcse_weight(self, student: StudentInfo) -> float:
        return 0.0 if token_parts.has_task(student) else self.options.alpha

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        options = self.options
        self.terms, self.entries, self.back = parts.names("cdm", teachers), nn.ModuleList(), nn.ModuleList()
        if student.pieces is not None:
            self.shares = parts.shares(teachers, options.fixed.logit_weight)
            for teacher in teachers:
                self.entries.append(next_tokens.entry_map(student, teacher, options.mapping))
                self.back.append(next_tokens.entry_map(student, teacher, options.mapping, backwards=True))
            return
        self.on_logits = baseline_parts.uses_logits(self.name, options.form, student, teachers)
        self.simcse_weight = 0.0 if self.on_logits else self._simcse_weight(student)
        self.shares = parts.shares(teachers, 1 - self.simcse_weight)
        self.state_terms = list(zip(parts.names("tokens", teachers), parts.names("sentence", teachers), strict=True))
        self.standardize, self.maps, self.heads = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        if self.on_logits:
            return
        if options.sentence_weight:
            self.heads = parts.teacher_heads(student, teachers, sample, options.init)
        if not options.token_weight:
            return
        self.layer, self.teacher_layers = baseline_parts.last_layers(self.name, student, teachers)
        for index, (teacher, layer) in enumerate(zip(teachers, self.teacher_layers, strict=True)):
            standardize = token_parts.standardizer(sample, index, layer, options.fixed.standardize)
            self.standardize.append(standardize)
            self.maps.append(baseline_parts.last_map(student, teacher, index, sample, options.init, standardize))

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        options = self.options
        terms: dict[str, Term] = {}
        if len(self.entries):
            return next_tokens.next_terms(self.terms, self.shares, student, teachers, "ends", self._divergence)
        if self.on_logits:
            for name, share, signals in zip(self.terms, self.shares, teachers, strict=True):
                ours, theirs = baseline_parts.class_logits(student, signals)
                values = baseline_parts.class_divergence(ours, theirs, options.temperature, options.top_k)
                terms[name] = parts.counted(values, signals.present, share * options.fixed.logit_weight)
            return terms
        if self.simcse_weight:
            terms["simcse"] = parts.simcse(student, batch, parts.SIMCSE_TEMPERATURE, self.simcse_weight)
        for index, ((tokens, sentence), signals) in enumerate(zip(self.state_terms, teachers, strict=True)):
            if options.token_weight:
                values, rows = self._tokens(index, student, signals)
                terms[tokens] = parts.counted(values, rows, self.shares[index] * options.token_weight)
            if options.sentence_weight:
                projected = self.heads[index](student.embedding)
                values = baseline_parts.unit_error(projected, parts.sentence(signals), options.error)
                terms[sentence] = parts.counted(values, signals.present, self.shares[index] * options.sentence_weight)
        return terms

    def _divergence(self, index: int, sides: next_tokens.Compared) -> Tensor:
        known = sides.ids.shape[-1]
        tau, count = self.options.temperature, self.options.top_k or known
        kept = count if count < known else None
        first = next_tokens.mapped_divergence(sides, self.entries[index](sides.ids), tau, kept)
        return (first + next_tokens.gathered_divergence(sides, self.back[index], tau, count)) / 2

    def _tokens(self, index: int, student: StudentOutput, signals: TeacherSignals) -> tuple[Tensor, Tensor]:
        """[V, B] mean error of the student's tokens, and bool [B] the items that have aligned ones."""
        own = student.tokens[self.layer]
        weight = cast(nn.Linear, self.maps[index]).weight
        states = self.standardize[index](signals.tokens[self.teacher_layers[index]].to(weight.dtype))
        if self.options.aggregate == "path":
            aligned = token_parts.pairs(signals, "full")
            target, real = average_partners(states, aligned, own.shape[-2])
        else:
            aligned = token_parts.pairs(signals, "strict")
            own, target = token_parts.take_rows(own, aligned.student), token_parts.take_rows(states, aligned.teacher)
            real = aligned.real
        errors = baseline_parts.unit_error(self.maps[index](own), target, self.options.error)
        return parts.masked_mean(errors, real), real.any(-1)

    def teacher_map(self) -> nn.Linear | None:
        return parts.only_map(self.heads)


@torch.no_grad()
def average_partners(states: Tensor, path: token_parts.TokenPairs, positions: int) -> tuple[Tensor, Tensor]:
    """Mean of the teacher's states over each student token's cells of the warping path.

    Args:
        states: [B, T, D].
        path: every cell.
        positions: S.

    Returns:
        [B, S, D], zero for tokens without a cell, and bool [B, S], the tokens that have one.

    Source: TALAS, appendix E.
    """
    partners = token_parts.take_rows(states, path.teacher).masked_fill(~path.real.unsqueeze(-1), 0)
    index = path.student.unsqueeze(-1).expand_as(partners)
    total = states.new_zeros(len(states), positions, states.shape[-1]).scatter_add(1, index, partners)
    cells = states.new_zeros(len(states), positions).scatter_add(1, path.student, path.real.to(states.dtype))
    return total / cells.clamp_min(1).unsqueeze(-1), cells > 0
