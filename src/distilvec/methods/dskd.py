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
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from distilvec.errors import DistilvecError
from distilvec.functional import normalize
from distilvec.methods import baseline_parts, dual_space, parts, token_parts
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
from distilvec.modules.blocks import token_head
from distilvec.modules.projection import RIDGES, projection, validated_ridge
from distilvec.precision import full_precision

logger = logging.getLogger(__name__)

#: Of the logits' variance; a class head that was fitted worse is warned of.
LEAST_EXPLAINED = 0.9
#: Of the softmax over cosines (our choice).
_ATTENTION_TEMPERATURE = 0.1
#: The ridge of a head that can be read off exactly.
_EXACT = 1e-6


class DSKDOptions(Options):
    """Of the constants, `matching` says which of the teacher's places go with those of a student that writes: those
    where both have read the same text [S], or those that cross-model attention finds [P, C]. The targets are maps into
    the student's space, of sentences and of tokens: trained (moving), or as they start [S]. `standardize`: teacher
    token states per dimension, by the sample's statistics [S].
    """

    constants: ClassVar[dict[str, Any]] = {
        "matching": "ends",
        "sentence_target": "fixed",
        "token_target": "fixed",
        "standardize": True,
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {
            "matching": "attention",
            "sentence_target": "moving",
            "token_target": "moving",
            "attention": "scaled",
            "error": "element",
            "standardize": False,
            "init": "random",
        },
        "code": {
            "matching": "attention",
            "token_target": "moving",
            "attention": "scaled",
            "special_tokens": True,
            "error": "element",
            "standardize": False,
            "init": "random",
        },
    }

    sentence_weight: float = Field(1.0, ge=0, description="of the sentence vectors [P, C]; 0 leaves them out")
    token_weight: float = Field(1.0, ge=0, description="of the token states [P, C]; 0 leaves them out")
    temperature: float = Field(2.0, gt=0, description="tau of the KL terms [C, S]")
    attention: Literal["cosine", "scaled"] = Field(
        "cosine", description="products over the root of their width [P, C], or cosines over a temperature [S]"
    )
    special_tokens: bool = Field(False, description="special tokens can be attended to [C]; not [S]")
    error: baseline_parts.Error = Field("distance", description=baseline_parts.ERROR)
    alpha: float = Field(0.5, ge=0, lt=1, description=baseline_parts.ALPHA)
    init: parts.Init = Field("ridge", description="start of all maps: ridge maps [S], Xavier's random ones [P, C]")


class DSKD(Method):
    """Terms: `sentence`, `tokens` [V, B]; with class logits `student_space`, `teacher_space` [V, B].

    Of a student that writes `projected`, `student_space` and `teacher_space` [V, B] (`dual_space`). Each `:TEACHER`
    where there are several. Without a task also `simcse` [B].
    """

    name = "dskd"
    summary = "both spaces, each projected into the other; sentences, tokens by cross-model attention, class logits"
    paper = "Zhang et al. 2024, Dual-space distillation (arXiv:2406.17328); for embedding models TALAS, appendix E"
    Options = DSKDOptions
    inside = True
    writes = True

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        options = self.options
        if student.pieces is not None:
            return dual_space.needs(self.name, student, teachers)
        logits = self._logit_teachers(student, teachers)
        if not (options.sentence_weight or options.token_weight or any(logits)):
            raise DistilvecError(
                "dskd has nothing to distil: sentence_weight and token_weight are 0, and there are no class logits",
                where=student.name,
                remedy="Give one of them a weight.",
            )
        simcse = self._simcse_weight(student) > 0
        own: tuple[int, ...] = ()
        theirs: tuple[tuple[int, ...], ...] = ((),) * len(teachers)
        if options.token_weight:
            last, layers = baseline_parts.last_layers(self.name, student, teachers)
            own, theirs = (last,), tuple((layer,) for layer in layers)
        modes = ("strict",) if options.token_weight and options.init == "ridge" else ()
        return Needs(
            WantedOfStudent(views=2 if simcse else 1, tokens=own),
            tuple(
                Wanted(tokens=layers, logits=given, alignment=modes)
                for layers, given in zip(theirs, logits, strict=True)
            ),
            sentence=options.sentence_weight > 0 or any(logits),
            coupled=simcse,
        )

    def _logit_teachers(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> tuple[bool, ...]:
        """Which teachers' class logits are compared."""
        if student.classes is None:
            return (False,) * len(teachers)
        giving = [teacher for teacher in teachers if teacher.classes is not None]
        baseline_parts.check_class_logits(self.name, student, giving, "Or take cosine or distillmoe.")
        return tuple(teacher.classes is not None for teacher in teachers)

    def _simcse_weight(self, student: StudentInfo) -> float:
        return 0.0 if token_parts.has_task(student) else self.options.alpha

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        options = self.options
        self.simcse_weight = self._simcse_weight(student)
        self.shares = parts.shares(teachers, 1 - self.simcse_weight)
        self.names = [[f"{term}:{one.name}" if len(teachers) > 1 else term for term in _TERMS] for one in teachers]
        self.spaces = nn.ModuleList()
        if student.pieces is not None:
            for index, teacher in enumerate(teachers):
                self.spaces.append(dual_space.DualSpace(options, student, teacher, index, sample))
            self.names = [list(names) for names in zip(*(parts.names(term, teachers) for term in dual_space.TERMS))]
            return
        self.on_logits = self._logit_teachers(student, teachers)
        self.heads, self.backs, self.bridges = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        self.class_heads = nn.ModuleDict()
        for index, (teacher, signals) in enumerate(zip(teachers, sample.teachers, strict=True)):
            ours, widths = sample.student.embedding[0], (student.width, teacher.width)
            head: nn.Module = nn.Identity()
            if options.sentence_weight or self.on_logits[index]:
                theirs, present = parts.sentence(signals), signals.present
                head = _start(projection(*widths, ours, theirs, options.init, present), options.init)
            self.heads.append(head)
            if options.sentence_weight:
                back = _start(projection(*widths[::-1], theirs, ours, options.init, present), options.init)
                self.backs.append(token_parts.FixedMap(back) if options.fixed.sentence_target == "fixed" else back)
            if options.token_weight:
                self.bridges.append(TokenBridge(options, student, teacher, index, sample))
            if self.on_logits[index]:
                self.class_heads[str(index)] = ClassHead(sample, index)

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        options = self.options
        terms: dict[str, Term] = {}
        for names, share, space, signals in zip(self.names, self.shares, self.spaces, teachers):
            terms |= space(names, student, signals, self.student_head, share)
        if len(self.spaces):
            return terms
        if self.simcse_weight:
            terms["simcse"] = parts.simcse(student, batch, parts.SIMCSE_TEMPERATURE, self.simcse_weight)
        for index, (names, signals) in enumerate(zip(self.names, teachers, strict=True)):
            sentence, tokens, student_space, teacher_space = names
            share = self.shares[index]
            if options.sentence_weight:
                values = self._sentence(index, student, signals)
                terms[sentence] = parts.counted(values, signals.present, share * options.sentence_weight)
            if options.token_weight:
                values, rows = cast(TokenBridge, self.bridges[index])(student, signals)
                terms[tokens] = parts.counted(values, rows, share * options.token_weight)
            if self.on_logits[index]:
                weight, present = share, signals.present
                ours, theirs = baseline_parts.class_logits(student, signals)
                right = present if batch.labels is None else present & (theirs.argmax(-1) == batch.labels)
                values = baseline_parts.class_divergence(ours, theirs, options.temperature)
                terms[student_space] = parts.counted(values, right, weight)
                read = self.class_heads[str(index)](self.heads[index](student.embedding))
                values = baseline_parts.class_divergence(read, theirs, options.temperature)
                terms[teacher_space] = parts.counted(values, present, weight)
        return terms

    def attach(self, student: Any) -> None:
        """Keep the head of a student that writes at hand; it is the student's, which is what trains and saves it."""
        head = token_head(student)
        if head is not None:
            self.__dict__["student_head"] = head

    def _sentence(self, index: int, student: StudentOutput, signals: TeacherSignals) -> Tensor:
        """[V, B] the errors in both spaces."""
        target, kind = parts.sentence(signals), self.options.error
        there = baseline_parts.unit_error(self.heads[index](student.embedding), target, kind)
        return there + baseline_parts.unit_error(student.embedding, self.backs[index](target), kind)

    def teacher_map(self) -> nn.Linear | None:
        return parts.only_map(self.heads)


_TERMS = ("sentence", "tokens", "student_space", "teacher_space")


class TokenBridge(nn.Module):
    """Cross-model attention between the last token states of the student and of one teacher.

    Args:
        index: the teacher's number.
        sample: what the ridge starts and the statistics are taken from.
    """

    def __init__(
        self, options: DSKDOptions, student: StudentInfo, teacher: TeacherInfo, index: int, sample: Sample
    ) -> None:
        super().__init__()
        self.options = options
        self.layers = token_parts.depth(student), token_parts.depth(teacher)
        self.standardize = token_parts.standardizer(sample, index, self.layers[1], options.fixed.standardize)
        ours, theirs = widths = student.hidden, teacher.hidden or 0

        def fitted(backwards: bool) -> nn.Linear:
            arguments = (student, teacher, index, sample, options.init, self.standardize, backwards)
            return _start(baseline_parts.last_map(*arguments), options.init)

        self.there, back = fitted(False), fitted(True)
        self.back = token_parts.FixedMap(back) if options.fixed.token_target == "fixed" else back
        # Both sides are compared in the narrower space, where one of the two starts as it is and the other mapped.
        narrow = min(ours, theirs)
        self.query, self.key = (nn.Linear(width, narrow, bias=False) for width in widths)
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
        rows, columns = token_parts.masks(student, signals, special_tokens=False)
        seen_rows, seen_columns = token_parts.masks(student, signals, self.options.special_tokens)
        scores = self._scores(own, states)  # [V, B, S, T]
        read = parts.masked_softmax(scores.mT, seen_rows.unsqueeze(-2)) @ self.there(own)
        there = parts.masked_mean(baseline_parts.unit_error(read, states, self.options.error), columns)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.options.fixed.token_target == "moving"):
            target = parts.masked_softmax(scores, seen_columns.unsqueeze(-2)) @ self.back(states)
        here = parts.masked_mean(baseline_parts.unit_error(own, target, self.options.error), rows)
        return there + here, rows.any(-1) & columns.any(-1)

    def _scores(self, own: Tensor, states: Tensor) -> Tensor:
        query, key = self.query(own), self.key(states)
        if self.options.attention == "cosine":
            return _products(normalize(query), normalize(key), _ATTENTION_TEMPERATURE)
        return _products(query, key, math.sqrt(query.shape[-1]))


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
        if not seen:
            raise DistilvecError("the sample has no class logits of the teacher to fit its head to")
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


@full_precision
def _products(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """[V, B, S, a], [B, T, a] -> [V, B, S, T]."""
    return query @ key.mT / scale


def _start(linear: nn.Linear, init: parts.Init) -> nn.Linear:
    """Xavier's uniform start where it is to be random."""
    if init == "random":
        nn.init.xavier_uniform_(linear.weight)
    return linear
