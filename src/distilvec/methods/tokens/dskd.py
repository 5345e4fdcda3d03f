"""DSKD: student and teacher are compared in both spaces, each projected into the other's.

    sentence = ||n(e P) - n(t)||^2 + ||n(e) - n(t R)||^2,  n(x) = x / ||x||
    tokens   = mean_j ||n(sum_i b_ji h^s_i P') - n(h^t_j)||^2 + mean_i ||n(h^s_i) - n(sum_j a_ij h^t_j R')||^2
               a = softmax over j of <h^s_i Q, h^t_j K>, b = softmax over i of the same
    student_space = KL(z^t || z^s) where the teacher is right,  teacher_space = KL(z^t || H(e P)), both at tau = 2
    L = alpha SimCSE + (1 - alpha) (sentence + tokens) without a task, else sentence + tokens (+ both KL)

Published form: for language models; hidden states of one model are projected into the other's space, read there by that
model's own prediction head, and compared by KL with its predictions; between different tokenizers cross-model attention
(a, b) says which tokens belong together, so that no alignment is needed. `dual_space` has it, for students that write.

Adaptations. An embedding model has no prediction head, so TALAS, appendix E, compares unit states, on sentences and on
tokens. With a classification task there are heads again, and both KL terms come back: in the student's space the
teacher's own class logits stand for those read from its projected states, in the teacher's space the projected student
vector is read by H, the teacher's class head, which is fitted to its vectors and logits before training and fixed.

A target in the student's space that is trained together with the student can come to meet it instead of leading it; in
the `sound` preset R and R' stay at their ridge start. The alignment serves that start only.

The `code` preset differs from the published code in this: both directions share Q and K, as in the published method;
means are taken per item and not over all tokens of a batch.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from distilvec.errors import DistilvecError
from distilvec.functional import normalize
from distilvec.methods import parts
from distilvec.methods.base import Batch, Needs, Options, Sample, Term
from distilvec.methods.tokens import class_logits, dual_space, pairs
from distilvec.methods.tokens.base import ALPHA, TokenMethod
from distilvec.methods.tokens.dual_space import products
from distilvec.methods.tokens.maps import ERROR, Error, FixedMap, Sides, unit_error
from distilvec.modules.blocks import token_head
from distilvec.modules.projection import RIDGES, projection, validated_ridge
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals, Wanted

logger = logging.getLogger(__name__)

#: Of the logits' variance; a class head that was fitted worse is warned of.
LEAST_EXPLAINED = 0.9
#: Of the softmax over cosines (our choice).
_ATTENTION_TEMPERATURE = 0.1
#: The ridge of a head that can be read off exactly.
_EXACT = 1e-6

#: Of both presets, the paper's and that of the published code.
_PUBLISHED: dict[str, Any] = {
    "matching": "attention",
    "token_target": "moving",
    "attention": "scaled",
    "error": "element",
    "standardize": False,
    "init": "random",
}


class DSKDOptions(Options):
    """Options of DSKD.

    Constants: `matching`: the teacher's places that go with those of a student that writes are those where both have
    read the same text [S], or those that cross-model attention finds [P, C]. The targets are maps into the student's
    space, of sentences and of tokens: trained (moving), or as they start [S]. `standardize`: teacher token states per
    dimension, by the sample's statistics [S].
    """

    constants: ClassVar[dict[str, Any]] = {
        "matching": "ends",
        "sentence_target": "fixed",
        "token_target": "fixed",
        "standardize": True,
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {**_PUBLISHED, "sentence_target": "moving"},
        "code": {**_PUBLISHED, "special_tokens": True},
    }

    sentence_weight: float = Field(1.0, ge=0, description="of the sentence vectors [P, C]; 0 leaves them out")
    token_weight: float = Field(1.0, ge=0, description="of the token states [P, C]; 0 leaves them out")
    temperature: float = Field(2.0, gt=0, description="tau of the KL terms [C, S]")
    attention: Literal["cosine", "scaled"] = Field(
        "cosine", description="products over the root of their width [P, C], or cosines over a temperature [S]"
    )
    special_tokens: bool = Field(False, description="special tokens can be attended to [C]; not [S]")
    error: Error = Field("distance", description=ERROR)
    alpha: float = Field(0.5, ge=0, lt=1, description=ALPHA)
    init: parts.Init = Field("ridge", description="start of all maps: ridge maps [S], Xavier's random ones [P, C]")


class DSKD(TokenMethod):
    """Terms: `sentence`, `tokens` [V, B]; with class logits `student_space`, `teacher_space` [V, B].

    Of a student that writes `projected`, `student_space` and `teacher_space` [V, B] (`dual_space`).
    """

    name = "dskd"
    summary = "both spaces, each projected into the other; sentences, tokens by cross-model attention, class logits"
    paper = "Zhang et al. 2024, Dual-space distillation (arXiv:2406.17328); for embedding models TALAS, appendix E"
    Options = DSKDOptions
    writes = True

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        if self.form(student) == "next":
            return dual_space.needs(self.name, student, teachers)
        return super().needs(student, teachers)

    def needs_of_states(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        options, logits = self.options, self._logit_teachers(student, teachers)
        if not (options.sentence_weight or options.token_weight or any(logits)):
            raise DistilvecError(
                "dskd has nothing to distil: sentence_weight and token_weight are 0, and there are no class logits",
                where=student.name,
                remedy="Give one of them a weight.",
            )
        needs = Needs(teachers=(Wanted(),) * len(teachers))
        if options.token_weight:
            needs = super().needs_of_states(student, teachers)
        modes = ("strict",) if options.token_weight and options.init == "ridge" else ()
        given = zip(needs.teachers, logits, strict=True)
        theirs = tuple(replace(one, logits=wanted, alignment=modes) for one, wanted in given)
        return needs._replace(teachers=theirs, sentence=options.sentence_weight > 0 or any(logits))

    def _logit_teachers(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> tuple[bool, ...]:
        """Tell for each teacher whether its class logits are compared."""
        if student.classes is None:
            return (False,) * len(teachers)
        giving = [teacher for teacher in teachers if teacher.classes is not None]
        class_logits.check_class_logits(self.name, student, giving, "Or take cosine or distillmoe.")
        return tuple(teacher.classes is not None for teacher in teachers)

    def build_next(self, every: Sequence[Sides]) -> None:
        self.spaces = nn.ModuleList(dual_space.DualSpace(self.options, sides) for sides in every)

    def build_states(self, every: Sequence[Sides]) -> None:
        options = self.options
        self.on_logits = self._logit_teachers(every[0].student, [sides.teacher for sides in every]) if every else ()
        self.backs, self.bridges, self.class_heads = nn.ModuleList(), nn.ModuleList(), nn.ModuleDict()
        for sides, on_logits in zip(every, self.on_logits, strict=True):
            ours, signals = sides.sample.student.embedding[0], sides.sample.teachers[sides.number]
            widths = sides.student.width, sides.teacher.width
            head: nn.Module = nn.Identity()
            if options.sentence_weight or on_logits:
                theirs, present = parts.sentence(signals), signals.present
                head = _start(projection(*widths, ours, theirs, options.init, present), options.init)
            self.heads.append(head)
            if options.sentence_weight:
                back = _start(projection(*widths[::-1], theirs, ours, options.init, present), options.init)
                self.backs.append(FixedMap(back) if options.fixed.sentence_target == "fixed" else back)
            if options.token_weight:
                self.bridges.append(TokenBridge(options, sides))
            if on_logits:
                self.class_heads[str(sides.number)] = ClassHead(sides.sample, sides.number)

    def compare_next(self, index: int, student: StudentOutput, signals: TeacherSignals, _: Batch) -> dict[str, Term]:
        return self.spaces[index](student, signals, self.student_head)

    def compare_states(
        self, index: int, student: StudentOutput, signals: TeacherSignals, batch: Batch
    ) -> dict[str, Term]:
        options, terms, present = self.options, {}, signals.present
        if options.sentence_weight:
            target, kind = parts.sentence(signals), options.error
            there = unit_error(self.heads[index](student.embedding), target, kind)
            values = there + unit_error(student.embedding, self.backs[index](target), kind)
            terms["sentence"] = parts.counted(values, present, options.sentence_weight)
        if options.token_weight:
            values, rows = self.bridges[index](student, signals)
            terms["tokens"] = parts.counted(values, rows, options.token_weight)
        if self.on_logits[index]:
            ours, theirs = class_logits.class_logits(student, signals)
            right = present if batch.labels is None else present & (theirs.argmax(-1) == batch.labels)
            values = class_logits.class_divergence(ours, theirs, options.temperature)
            terms["student_space"] = parts.counted(values, right, 1.0)
            read = self.class_heads[str(index)](self.heads[index](student.embedding))
            values = class_logits.class_divergence(read, theirs, options.temperature)
            terms["teacher_space"] = parts.counted(values, present, 1.0)
        return terms

    def attach(self, student: Any) -> None:
        """Keep the head of a student that writes at hand; it is the student's, which is what trains and saves it."""
        head = token_head(student)
        if head is not None:
            self.__dict__["student_head"] = head

    def teacher_map(self) -> nn.Linear | None:
        return parts.only_map(self.heads)


class TokenBridge(nn.Module):
    """Cross-model attention between the last token states of the student and of one teacher."""

    def __init__(self, options: DSKDOptions, sides: Sides) -> None:
        super().__init__()
        self.options, self.layers = options, sides.last
        self.standardize = sides.standardizer(self.layers[1], options.fixed.standardize)
        ours, theirs = sides.widths

        def fitted(backwards: bool) -> nn.Linear:
            linear = sides.token_map([self.layers], [self.standardize], options.init, backwards=backwards)
            return _start(linear, options.init)

        self.there, back = fitted(False), fitted(True)
        self.back = FixedMap(back) if options.fixed.token_target == "fixed" else back
        # Both sides are compared in the narrower space, where one of the two starts as it is and the other mapped.
        narrow = min(ours, theirs)
        self.query, self.key = (nn.Linear(width, narrow, bias=False) for width in sides.widths)
        if options.init == "random":
            for linear in (self.query, self.key):
                _start(linear, options.init)
        else:
            with torch.no_grad():
                self.query.weight.copy_(torch.eye(ours) if ours == narrow else self.there.weight)
                self.key.weight.copy_(back.weight if ours == narrow else torch.eye(theirs))

    def forward(self, student: StudentOutput, signals: TeacherSignals) -> tuple[Tensor, Tensor]:
        """[V, B] the errors in both spaces, each a mean over content tokens, and bool [B] the items that count."""
        own = student.tokens[self.layers[0]]
        states = self.standardize(signals.tokens[self.layers[1]].to(self.key.weight.dtype))
        rows, columns = pairs.masks(student, signals, special_tokens=False)
        seen_rows, seen_columns = pairs.masks(student, signals, self.options.special_tokens)
        scores = self._scores(own, states)  # [V, B, S, T]
        read = parts.masked_softmax(scores.mT, seen_rows.unsqueeze(-2)) @ self.there(own)
        there = parts.masked_mean(unit_error(read, states, self.options.error), columns)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.options.fixed.token_target == "moving"):
            target = parts.masked_softmax(scores, seen_columns.unsqueeze(-2)) @ self.back(states)
        here = parts.masked_mean(unit_error(own, target, self.options.error), rows)
        return there + here, rows.any(-1) & columns.any(-1)

    def _scores(self, own: Tensor, states: Tensor) -> Tensor:
        query, key = self.query(own), self.key(states)
        if self.options.attention == "cosine":
            return products(normalize(query), normalize(key), _ATTENTION_TEMPERATURE)
        return products(query, key, math.sqrt(query.shape[-1]))


class ClassHead(nn.Module):
    """The teacher's linear class head, as far as its vectors and logits tell: fitted once, never trained.

    Args:
        sample: whose batches hold the teacher's sentence vectors and class logits.
        index: the teacher's number.

    Attributes:
        explained: share of the logits' variance that the fit explains on rows it has not seen, at most 1.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, sample: Sample, index: int) -> None:
        super().__init__()
        seen = [signals[index] for _, signals in sample.batches]
        vectors = torch.cat([parts.sentence(one)[one.present] for one in seen])
        logits = torch.cat([cast(Tensor, one.logits)[one.present] for one in seen])
        if len(vectors) < 2:
            raise DistilvecError(
                f"the sample has {len(vectors)} vectors with class logits of the teacher to fit its head to"
            )
        # Teachers are often as wide as there are rows: what a fit explains of its own rows would say nothing.
        weight, bias, missed = validated_ridge(vectors, logits, (_EXACT, *RIDGES))
        varies = logits.double().var(0, correction=0).sum().clamp_min(1e-12)
        self.explained = 1 - float(missed.double().sum() / varies)
        # A final `Normalize` of the teacher stands between its head and its vectors.
        level = logging.WARNING if self.explained < LEAST_EXPLAINED else logging.INFO
        logger.log(
            level,
            "the teacher's class head, fitted to its vectors, explains %.1f %% of the variance of its class logits on "
            "texts that it was not fitted to",
            100 * self.explained,
        )
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, vectors: Tensor) -> Tensor:
        """[..., D] -> [..., C]."""
        return functional.linear(vectors, self.weight, self.bias)


def _start(linear: nn.Linear, init: parts.Init) -> nn.Linear:
    """Xavier's uniform start where it is to be random."""
    if init == "random":
        nn.init.xavier_uniform_(linear.weight)
    return linear
