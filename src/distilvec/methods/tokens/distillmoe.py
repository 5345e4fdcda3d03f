"""DistillMoE: experts on the student's sentence vector, each with a loss of its own, and CKA of token states.

    MoE        = mean_i sum_k gate_ik L_i^(k) + diversity                                            (eqs. 1 to 7)
    L^(1)      = 1 - cos(W1 f_1(s), t);  L^(2) = InfoNCE(W2 f_2(s), t);  L^(3) = margin gap of cosines, in the batch
    DynamicCKA = mean over the last Z layers of 1 - sqrt(CKA(H_s, aligned H_t))                      (eqs. 10 to 13)
    L          = alpha task + (1 - alpha) (lambda MoE + (1 - lambda) DynamicCKA)

The mixture of the experts is the student's embedding and ships with it. With `start: identity` it starts as the vector
that it replaces: each expert has that vector, turned at right angles to the others', under an even gate, and trains
slowly. Without a term that keeps it even (`gate_kl`) the gate ends at one expert for each text, another for its
neighbour, and similar texts get orthogonal vectors.
Several teachers have their own experts each under one gate. The Distiller adds the task; without one SimCSE on the
mixture takes its place.

The `code` preset differs from the published code in this: padding takes no part, students and teachers with equally
many tokens are aligned like the rest, and the teacher's sentence vector is the teacher's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field, field_validator, model_validator
from torch import nn

from distilvec.errors import DataError, DistilvecError
from distilvec.methods import parts
from distilvec.methods.base import Batch, Needs, Options, Sample, Term, WantedOfStudent
from distilvec.methods.tokens import pairs
from distilvec.methods.tokens.base import TokenMethod
from distilvec.methods.tokens.dynamic_cka import PAIRS, DynamicCKA
from distilvec.methods.tokens.experts import Expert, ExpertLosses
from distilvec.methods.tokens.maps import FixedMap, Sides
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import TeacherInfo, TeacherSignals, Wanted

if TYPE_CHECKING:
    from distilvec.modules.expert_head import ExpertHead

#: Of both presets, the paper's and that of the published code.
_PUBLISHED: dict[str, Any] = {
    "gate_gradient": "loss",
    "gate_kl": 0.0,
    "attention_temperature": 1.0,
    "differentiate_weights": True,
    "cka": "plain",
    "standardize": False,
    "init": "random",
    "start": "random",
}


class DistillMoEOptions(Options):
    """Options of DistillMoE.

    Constants: `vector_dropout` of the student's vector before experts and gate. `gate_floor` over the number of experts
    is the least weight that a gate should have, and `floor_weight` weighs that. `attention_temperature` of the softmax
    over the teacher's tokens (1 is nearly flat), of which at most `most_tokens` are kept. `standardize`: teacher states
    per dimension, by the sample's statistics [S].
    """

    constants: ClassVar[dict[str, Any]] = {
        "vector_dropout": 0.0,
        "gate_floor": 0.3,
        "floor_weight": 1.0,
        "attention_temperature": 0.1,
        "most_tokens": None,
        "standardize": True,
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {**_PUBLISHED, "token_map": "trained"},
        "code": {
            **_PUBLISHED,
            "moe_weight": 0.7,
            "gate": "mlp",
            "vector_dropout": 0.1,
            "gate_floor": 0.75,
            "floor_weight": 20.0,
            "maps": "shared",
            "layers": 2,
            "mass": 0.95,
            "most_tokens": 3,
            "least_cosine": 0.3,
            "token_map": "fixed",
            "projected": True,
            "special_tokens": True,
            "scope": "batch",
        },
    }

    alpha: float = Field(0.5, ge=0, lt=1, description="weight of SimCSE where there is no task [S]; 0 = none")
    temperature: float = Field(0.05, gt=0, description="of SimCSE [S]")
    moe_weight: float = Field(
        0.8, ge=0, le=1, description="lambda: 0.8 [P, S], 0.7 [C]; 1 leaves DynamicCKA out, which has the rest"
    )
    experts: list[Expert] = Field(
        ["cosine", "contrast", "margin"], description="one expert per loss and teacher [P, C]; none = no MoE part"
    )
    width: int = Field(1024, ge=1, description="hidden width of an expert [P, C]")
    gate: Literal["linear", "mlp"] = Field("linear", description="linear [P, S], or with a hidden layer [C]")
    aggregation: Literal["linear", "sba", "norm_free", "unit", "nlerp"] = Field(
        "linear", description="the mixture: weighted sum [P, C, S], or a mean length and direction on the sphere"
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="in the experts [C, S]")
    head: bool = Field(
        True, description="false: the losses act on the student's own embedding, by loss_weights [P, table 11]"
    )
    loss_weights: list[float] | None = Field(
        None, description="fixed weights of the experts' losses instead of the gate's [P, table 11]"
    )
    margin: float = Field(0.1, ge=0, description="delta of the third expert [C, S]")
    gate_gradient: Literal["loss", "task", "scaled"] = Field(
        "scaled", description="the gate learns from the losses [P, C], from the task only, or from their ratios [S]"
    )
    gate_kl: float = Field(
        1.0,
        ge=0,
        description="beta of KL(gate || uniform), lemma 3.1: 0 [P, C], with which one expert takes nearly all unless "
        "the floor forbids it; 1 [S]",
    )
    head_rate: float | None = Field(
        None,
        gt=0,
        description="learning rate of the head over the student's; null = 1 from a random start [P, C], 0.1 from the "
        "identity [S]",
    )
    maps: Literal["separate", "shared"] = Field(
        "separate", description="W1, W2 and Q, trained [P, S]; or one random map for all, not trained [C]"
    )
    layers: int = Field(3, ge=1, description="Z, last layers of DynamicCKA: 3 [P, S], 2 [C]")
    mass: float = Field(
        0.9, gt=0, le=1, description="probability that the tokens kept must reach: 0.9 [P, S], 0.95 [C]"
    )
    least_cosine: float | None = Field(
        None, ge=-1, le=1, description="tokens below it go, but for one: 0.3 [C]; null [P, S]"
    )
    token_map: Literal["fixed", "pairs", "trained"] = Field(
        "fixed", description="Q: kept as it starts [S, C], trained on aligned pairs, or by DynamicCKA itself [P]"
    )
    differentiate_weights: bool = Field(
        False, description="gradient through the alignment, which can make its own target [P, C]; not [S]"
    )
    projected: bool = Field(False, description="CKA of the mapped student states [C], or of them as they are [P, S]")
    scope: Literal["sentence", "batch"] = Field(
        "sentence", description="CKA over each sentence's tokens [P, S], or over the batch's [C]"
    )
    cka: Literal["plain", "debiased"] = Field("debiased", description="plain [P, C]; debiased [S]")
    special_tokens: bool = Field(False, description="special tokens take part [C], the paper is silent; not [S]")
    init: parts.Init = Field("ridge", description="start of W1, W2 and Q: ridge maps [S], random [P, C]")
    start: Literal["identity", "random"] = Field(
        "identity",
        description="the mixture starts as the student's own vector, which each expert has turned its own way [S], or "
        "at random [P, C]",
    )

    @field_validator("experts")
    @classmethod
    def _each_once(cls, experts: list[Expert]) -> list[Expert]:
        if len(set(experts)) < len(experts):
            raise ValueError("an expert is named twice")
        return experts

    @model_validator(mode="after")
    def _consistent(self) -> DistillMoEOptions:
        if not (self.experts and self.moe_weight) and self.moe_weight == 1:
            raise ValueError("without experts and with moe_weight 1 there is nothing to distil")
        if self.loss_weights is not None and len(self.loss_weights) != len(self.experts):
            raise ValueError(
                f"loss_weights has {len(self.loss_weights)} weights, and experts {len(self.experts)} names"
            )
        if self.token_map == "trained" and not self.differentiate_weights:
            raise ValueError("token_map: trained needs differentiate_weights: true, which is all that trains it")
        if self.maps == "shared" and self.token_map != "fixed":
            raise ValueError("maps: shared is not trained, so it needs token_map: fixed")
        return self


class DistillMoE(TokenMethod):
    """The head is made in `build` and handed to the student in `attach`; it is not part of the method.

    Terms: `simcse` [B] without a task; `moe`, `diversity`, `gate_floor`, `gate_kl` [V, B]; `dynamic_cka` [V, B] or,
    over the batch, []; `token_map` [V, B] with token_map: pairs. For the log, of weight 0: each expert's loss, its
    gate weight, the gate's entropy, and `true_cka` [], the debiased CKA of the last layers over the batch's aligned
    tokens. It should rise where `dynamic_cka` falls; its value cannot be set against that distance's, which may be of
    plain CKA and of single sentences. `:TEACHER` is added where there are several.
    """

    name = "distillmoe"
    summary = "gated experts on the sentence vector, each with its own loss, and CKA of softly aligned token states"
    paper = "DistillMoE: multi-faceted knowledge distillation for cross-tokenizer embedding models (2025)"
    Options = DistillMoEOptions
    writes = True
    only_states = True
    expert_head: ExpertHead | None

    def needs_of_states(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        options = self.options
        cka, experts = options.moe_weight < 1, self._experts()
        if cka:
            pairs.check_layers(self.name, student, teachers, options.layers)
        if options.maps == "shared":
            self._check_shared(student, teachers, cka)
        alike = bool({"contrast", "margin"} & set(experts))
        scaled = bool(experts) and options.gate_gradient == "scaled"
        theirs = (
            tuple(Wanted(tokens=pairs.last(one, options.layers), alignment=(PAIRS,)) for one in teachers) if cka else ()
        )
        return Needs(
            WantedOfStudent(tokens=pairs.last(student, options.layers) if cka else ()),
            theirs,
            sentence=bool(experts),
            coupled=alike or scaled or (cka and options.scope == "batch"),
        )

    def _experts(self) -> list[Expert]:
        return list(self.options.experts) if self.options.moe_weight > 0 else []

    def _check_shared(self, student: StudentInfo, teachers: Sequence[TeacherInfo], cka: bool) -> None:
        models: list[StudentInfo | TeacherInfo] = [student, *teachers]
        for info in models:
            if cka and info.hidden != info.width:
                raise DistilvecError(
                    f"maps: shared needs token states as wide as sentence vectors, not {info.hidden} and {info.width}",
                    where=info.name,
                    remedy="Set maps: separate.",
                )

    def build_states(self, every: Sequence[Sides]) -> None:
        options, experts = self.options, self._experts()
        student, sample, teachers = every[0].student, every[0].sample, [sides.teacher for sides in every]
        count = len(experts) * len(teachers)
        # Not a submodule: it belongs to the student, which is what trains and saves it.
        self.__dict__["expert_head"] = self._head(student, sample, count)
        before = self.attached(sample.student)
        shared = [self._shared_map(student, teacher) for teacher in teachers]
        self.expert_losses = nn.ModuleList()
        if experts:
            outputs = before.extras.get("expert_outputs")
            if outputs is None:
                outputs = sample.student.embedding.unsqueeze(-2).expand(-1, -1, count, -1)
            self.expert_losses.append(ExpertLosses(options, experts, teachers, sample.teachers, outputs[0], shared))
        self.dynamic_cka = nn.ModuleList(
            DynamicCKA(options, sides, shared[sides.number]) for sides in (every if options.moe_weight < 1 else ())
        )

    def _head(self, student: StudentInfo, sample: Sample, count: int) -> ExpertHead | None:
        """The head of so many experts; None where there is none to make."""
        # They import sentence-transformers, which takes a while.
        from distilvec.modules.expert_head import ExpertHead
        from distilvec.modules.expert_start import start_as_identity

        options = self.options
        # At a prefix of the student's vector, the head is that of the full one, and has been there already.
        if not options.head or not count or "expert_outputs" in sample.student.extras:
            return None
        shape = (options.width, options.gate, options.aggregation, options.dropout, options.fixed.vector_dropout)
        head, vectors = ExpertHead(student.width, count, *shape), sample.student.embedding[0]
        if options.start == "identity":
            if not len(vectors):
                raise DataError("the experts start from a sample, and it is empty", remedy='Use "start: random".')
            start_as_identity(head, vectors)
        return head

    def _shared_map(self, student: StudentInfo, teacher: TeacherInfo) -> FixedMap | None:
        if self.options.maps == "separate":
            return None
        linear = nn.Linear(student.width, teacher.width, bias=False)
        nn.init.xavier_uniform_(linear.weight)
        return FixedMap(linear)

    def attach(self, student: Any) -> None:
        """Put the head behind the student's last module (an earlier run's head, too), before a final `Normalize`."""
        from sentence_transformers.base.modules import Normalize

        from distilvec.modules.pipeline import free_name

        if self.expert_head is None:
            return
        modules = student._modules
        final = modules.popitem() if isinstance(modules[next(reversed(modules))], Normalize) else None
        student.add_module(
            free_name(modules, "expert_head"), self.expert_head.to(student.device).train(student.training)
        )
        if final is not None:
            student.add_module(*final)

    @torch.no_grad()
    def attached(self, student: StudentOutput) -> StudentOutput:
        if self.expert_head is None:
            return student
        features = self.expert_head.eval()({"sentence_embedding": student.embedding[0]})
        extras = {name: features[name][None] for name in ("expert_outputs", "gate")}
        return replace(student, embedding=features["sentence_embedding"][None], extras={**student.extras, **extras})

    def rates(self) -> dict[nn.Module, float]:
        if self.expert_head is None:
            return {}
        return {self.expert_head: self.options.head_rate or (0.1 if self.options.start == "identity" else 1.0)}

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        terms = super().forward(student, teachers, batch)
        for module in self.expert_losses:  # one gate over the experts of all teachers
            terms |= module(student, teachers, batch, (1 - self.simcse_weight) * self.options.moe_weight)
        return terms

    def compare_states(self, index: int, student: StudentOutput, signals: TeacherSignals, _: Batch) -> dict[str, Term]:
        return self.dynamic_cka[index](student, signals, 1 - self.options.moe_weight) if self.dynamic_cka else {}
