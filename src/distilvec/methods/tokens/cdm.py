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
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from distilvec.methods import parts
from distilvec.methods.base import Batch, Needs, Options, Term
from distilvec.methods.tokens import next_tokens, pairs
from distilvec.methods.tokens.base import ALPHA, EMBEDDING_INSTEAD, FORM, Form, TokenMethod
from distilvec.methods.tokens.maps import ERROR, Error, Sides, unit_error
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals


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

    form: Form = Field("auto", description=FORM)
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
    error: Error = Field("distance", description=ERROR)
    alpha: float = Field(0.5, ge=0, lt=1, description=ALPHA)
    init: parts.Init = Field("ridge", description="start of W and P: ridge maps [S], random [P, C]")

    @model_validator(mode="after")
    def _something_to_do(self) -> CDMOptions:
        if not self.token_weight + self.sentence_weight:
            raise ValueError("token_weight and sentence_weight are both 0, so there is nothing to distil")
        return self


class CDM(TokenMethod):
    """Terms: `cdm` [V, B] on logits or the next token; else `tokens`, `sentence` [V, B]."""

    name = "cdm"
    summary = "KL on class logits or the next token; without a task, token states averaged along the warping path"
    paper = "Chen et al. 2025, Contextual dynamic mapping; for embedding models TALAS, appendix E"
    Options = CDMOptions
    writes = True
    logits_instead = EMBEDDING_INSTEAD

    def needs_of_states(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        options = self.options
        sentence = options.sentence_weight > 0
        if not options.token_weight:
            return Needs(sentence=sentence)
        modes = ["strict"] if options.aggregate == "strict" or options.init == "ridge" else []
        modes += ["full"] if options.aggregate == "path" else []
        needs = super().needs_of_states(student, teachers)
        wanted = tuple(replace(one, alignment=tuple(modes)) for one in needs.teachers)
        return needs._replace(teachers=wanted, sentence=sentence)

    def build_next(self, every: Sequence[Sides]) -> None:
        by = self.options.mapping
        self.entries = nn.ModuleList(next_tokens.EntryMap(each.student, each.teacher, by) for each in every)
        self.back = nn.ModuleList(next_tokens.EntryMap(each.student, each.teacher, by, True) for each in every)

    def build_states(self, every: Sequence[Sides]) -> None:
        if self.options.sentence_weight:
            self.heads = parts.teacher_heads([each.teacher for each in every], every[0].sample, self.options.init)
        if self.options.token_weight:
            self.build_last(every)

    @property
    def weight(self) -> float:
        return float(self.options.fixed.logit_weight)

    def next_divergence(self, index: int, sides: next_tokens.Compared) -> Tensor:
        known = sides.ids.shape[-1]
        tau, count = self.options.temperature, self.options.top_k or known
        kept = count if count < known else None
        first = next_tokens.mapped_divergence(sides, self.entries[index](sides.ids), tau, kept)
        return (first + next_tokens.gathered_divergence(sides, self.back[index], tau, count)) / 2

    def compare_states(self, index: int, student: StudentOutput, signals: TeacherSignals, _: Batch) -> dict[str, Term]:
        options, terms = self.options, {}
        if options.token_weight:
            values, rows = self._tokens(index, student, signals)
            terms["tokens"] = parts.counted(values, rows, options.token_weight)
        if options.sentence_weight:
            values = unit_error(self.heads[index](student.embedding), parts.sentence(signals), options.error)
            terms["sentence"] = parts.counted(values, signals.present, options.sentence_weight)
        return terms

    def _tokens(self, index: int, student: StudentOutput, signals: TeacherSignals) -> tuple[Tensor, Tensor]:
        """[V, B] mean error of the student's tokens, and bool [B] the items that have aligned ones."""
        ours, theirs = self.last[index]
        own = student.tokens[ours]
        weight = cast(nn.Linear, self.maps[index]).weight
        states = self.standardize[index](signals.tokens[theirs].to(weight.dtype))
        if self.options.aggregate == "path":
            target, real = average_partners(states, pairs.pairs(signals, "full"), own.shape[-2])
        else:
            aligned = pairs.pairs(signals, "strict")
            own, target = pairs.take_rows(own, aligned.student), pairs.take_rows(states, aligned.teacher)
            real = aligned.real
        return parts.masked_mean(unit_error(self.maps[index](own), target, self.options.error), real), real.any(-1)

    def teacher_map(self) -> nn.Linear | None:
        return parts.only_map(self.heads)


@torch.no_grad()
def average_partners(states: Tensor, path: pairs.TokenPairs, positions: int) -> tuple[Tensor, Tensor]:
    """Mean of the teacher's states [B, T, D] over each student token's cells of the whole warping path.

    Returns:
        [B, S, D], zero for tokens without a cell, and bool [B, S], the tokens that have one.

    Source: TALAS, appendix E.
    """
    partners = pairs.take_rows(states, path.teacher).masked_fill(~path.real.unsqueeze(-1), 0)
    index = path.student.unsqueeze(-1).expand_as(partners)
    total = states.new_zeros(len(states), positions, states.shape[-1]).scatter_add(1, index, partners)
    cells = states.new_zeros(len(states), positions).scatter_add(1, path.student, path.real.to(states.dtype))
    return total / cells.clamp_min(1).unsqueeze(-1), cells > 0
