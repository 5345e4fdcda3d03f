"""EMO: attention patterns of the important aligned tokens, and transport between the last hidden states.

    IRA  = sum over the last z layers of 1 - sqrt(CKA(A_s, A_t)), rows = the m selected pairs        (eqs. 9 to 14)
    OTIS = <T, C>, T = the entropic plan between importance masses, C = cost of the token states     (eqs. 15 to 21)
    L    = alpha task + (1 - alpha) (IRA + OTIS)                                                     (eq. 22)

The Distiller adds the task. Without one SimCSE takes its place, weighed by `alpha` here.

The `code` preset differs from the published code in this: tokens are aligned by position, not by the set of token
strings (which pairs repeated words wrongly and depends on the string hash); pairs stay paired; the masses of OTIS come
from the mutually nearest pairs (published: from the nearest teacher string, mutual or not, at all its occurrences);
special tokens are in the masses but never in a pair; padding is left out; the text is not run again without its
stop-words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from distilvec.functional import centred_gram, cka_distance_to_gram, normalize, sinkhorn, transport_cost
from distilvec.methods import parts
from distilvec.methods.base import Batch, Needs, Options, Term, WantedOfStudent
from distilvec.methods.tokens import importance, pairs
from distilvec.methods.tokens.base import TokenMethod
from distilvec.methods.tokens.importance import Normalizer
from distilvec.methods.tokens.maps import Sides
from distilvec.methods.tokens.pairs import LayerMap, PairMode
from distilvec.precision import full_precision
from distilvec.students.output import StudentInfo, StudentOutput
from distilvec.teachers.signals import DIGEST, Digest, TeacherInfo, TeacherSignals, Wanted

#: Of both presets, the paper's and that of the published code.
_PUBLISHED: dict[str, Any] = {
    "layer_map": "floor",
    "cka": "plain",
    "minimum": 1,
    "special_tokens": True,
    "causal_correction": False,
    "student_mass": "pairs",
    "cost": "softmax",
    "plan": "unrolled",
    "epsilon": 0.1,
    "standardize": False,
    "init": "random",
}


class EMOOptions(Options):
    """Options of EMO.

    Constants: `reduction` of IRA over sentences: mean [P, S] or sum [C]. `student_mass`: each teacher token's mass is
    shared over the warping path [S], or comes from the pairs, the least for the rest [P, C]. `standardize`: teacher
    states per dimension, by the sample's statistics [S]. `average_views`: IRA and OTIS over both views [S], or the
    first only [C].
    """

    constants: ClassVar[dict[str, Any]] = {
        "reduction": "mean",
        "student_mass": "path",
        "standardize": True,
        "average_views": True,
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {**_PUBLISHED, "ira_weight": 1.0},
        "code": {
            **_PUBLISHED,
            "ira_weight": 0.1,
            "reduction": "sum",
            "layers": 1,
            "pairs": "reciprocal",
            "importance": "softmax",
            "average_views": False,
        },
    }

    alpha: float = Field(0.5, ge=0, lt=1, description="weight of SimCSE where there is no task [C]; 0 = none")
    temperature: float = Field(0.05, gt=0, description="of SimCSE [C]")
    ira_weight: float = Field(0.1, ge=0, description="of IRA: 1 [P], 0.1 [C, S]; 0 leaves it out")
    otis_weight: float = Field(1.0, ge=0, description="of OTIS [P, C]; 0 leaves it out")
    layers: int = Field(2, ge=1, description="z, the student's last layers of IRA: 2 [P, S], 1 [C]")
    layer_map: LayerMap = Field(
        "scaled", description="teacher layer of layer k: floor(h_t/h_s) k [P, C], or k h_t/h_s rounded [S]"
    )
    pairs: PairMode = Field("strict", description="one-to-one pairs: equal strings [P, S], any cost, or reciprocal [C]")
    share: float = Field(1 / 3, gt=0, le=1, description="m / n, of the pairs that IRA uses [P, C]; 1 = all")
    minimum: int | None = Field(
        None, ge=1, description="least m: null = 4, or 8 with the debiased CKA [S]; 1 = no bound [P, C]"
    )
    cka: Literal["plain", "debiased"] = Field(
        "debiased", description="plain [P, C] is near 1 for few unrelated rows; debiased [S] weighs by m(m - 3)"
    )
    importance: Normalizer = Field(
        "sum", description="received attention over its sum [P, S], or its softmax, on both sides [C]"
    )
    special_tokens: bool = Field(False, description="special tokens have masses [C], the paper is silent; not [S]")
    causal_correction: bool = Field(
        True, description="causal teachers: divide by even attention, drop the first token [S]; not [P, C]"
    )
    cost: Literal["cosine", "softmax"] = Field(
        "cosine", description="1 - cos in the teacher's space [S]; 1 - softmax in the student's, nearly flat [P, C]"
    )
    epsilon: float = Field(
        0.02, gt=0, description="entropic weight of the plan: 0.1 [C], which blurs tokens into each other; 0.02 [S]"
    )
    iterations: int = Field(100, ge=1, description="most Sinkhorn iterations [C, S]")
    tolerance: float = Field(1e-6, gt=0, description="L1 error of the masses at which Sinkhorn stops [S]")
    plan: Literal["detached", "unrolled"] = Field(
        "detached", description="the plan is a constant for the gradient [S], or goes through the iterations [C]"
    )
    init: parts.Init = Field("ridge", description="start of the token map: ridge on the pairs [S], random [P, C]")

    @model_validator(mode="after")
    def _something_to_do(self) -> EMOOptions:
        if not self.ira_weight + self.otis_weight:
            raise ValueError("ira_weight and otis_weight are both 0, so there is nothing to distil")
        return self


@dataclass(frozen=True)
class _Maps:
    """Reduces a teacher's attention maps to importance, the selected pairs, and the Gram matrices of their rows.

    Attributes:
        compared: layers that IRA compares, one for each of the student's.
        last: layer that gives the importance.
        causal: whether sums of attention are corrected for a causal teacher.
    """

    options: EMOOptions
    compared: tuple[int, ...]
    last: int
    causal: bool

    def digest(self) -> Digest:
        chosen = ("pairs", "share", "minimum", "cka", "importance", "special_tokens")
        state = self.options.model_dump(include=set(chosen))
        name = f"emo {sorted(state.items())} {self.compared} {self.last} {self.causal}"
        squares = tuple(dict.fromkeys(map(_gram, self.compared)))
        return Digest(name, ("importance",), squares, self)

    def columns(self, signals: TeacherSignals) -> Tensor:
        """bool [B, T], tokens that have an importance."""
        columns = pairs.side_mask(signals, signals.present, self.options.special_tokens)
        if not self.causal:
            return columns
        visible = signals.mask
        assert visible is not None
        return columns & ~(visible & (visible.cumsum(-1) == 1))

    @torch.no_grad()
    def __call__(self, signals: TeacherSignals) -> tuple[Tensor, dict[str, Tensor]]:
        """Pairs [B, m, 2], and `importance` [B, T], normalised, and a Gram matrix [B, m, m] for each layer."""
        options = self.options
        rows, columns = pairs.side_mask(signals, signals.present, options.special_tokens), self.columns(signals)
        visible = signals.mask if self.causal else None
        scores = importance.importance(signals.attention[self.last], rows, columns, visible)
        scores = importance.normalized(scores, columns, options.importance)
        if not self.compared:
            return torch.full((len(scores), 1, 2), -1), {"importance": scores}
        minimum = options.minimum or (8 if options.cka == "debiased" else 4)
        aligned = importance.best_pairs(pairs.pairs(signals, options.pairs), scores, options.share, minimum)
        assert signals.mask is not None
        grams = {}
        for layer in self.compared:
            patterns = pairs.take_rows(signals.attention[layer], aligned.teacher)
            patterns = patterns.masked_fill(~signals.mask.unsqueeze(1), 0)
            grams[_gram(layer)] = centred_gram(patterns, aligned.real)
        chosen = torch.stack([aligned.student, aligned.teacher], -1).masked_fill(~aligned.real.unsqueeze(-1), -1)
        return chosen, {"importance": scores, **grams}


def _gram(layer: int) -> str:
    return f"gram-{layer}"


class EMO(TokenMethod):
    """Terms: `ira` [V, B], `otis` [V, B]."""

    name = "emo"
    summary = "attention patterns of important aligned tokens and transport of token states; any two tokenizers"
    paper = "EMO: Embedding model distillation via intra-model relation and optimal transport alignments (2025)"
    Options = EMOOptions
    writes = True
    only_states = True

    def needs_of_states(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        options = self.options
        ira, otis = options.ira_weight > 0, options.otis_weight > 0
        pairs.check_layers(self.name, student, teachers, options.layers if ira else 1)
        maps = [self._maps(student, one) for one in teachers]
        by_pairs = options.fixed.student_mass == "pairs"
        modes = [options.pairs] if ira or by_pairs or options.init == "ridge" else []
        modes += ["full"] if otis and not by_pairs else []
        own = WantedOfStudent(
            tokens=(pairs.depth(student),) if otis else (),
            attention=pairs.last(student, options.layers) if ira else (),
        )
        theirs = tuple(
            Wanted(
                tokens=(each.last,) if otis else (),
                attention=tuple(sorted({*each.compared, each.last})),
                alignment=tuple(modes),
                digest=each.digest(),
            )
            for each in maps
        )
        return Needs(own, theirs, sentence=False, states=otis or self.simcse(student) > 0)

    def _maps(self, student: StudentInfo, teacher: TeacherInfo) -> _Maps:
        options = self.options
        layers = pairs.last(student, options.layers) if options.ira_weight else ()
        compared = tuple(pairs.matching_layer(student, teacher, layer, options.layer_map) for layer in layers)
        return _Maps(options, compared, pairs.depth(teacher), teacher.causal and options.causal_correction)

    def build_states(self, every: Sequence[Sides]) -> None:
        options = self.options
        self.from_maps = [self._maps(sides.student, sides.teacher) for sides in every]
        self.compared = pairs.last(every[0].student, options.layers) if options.ira_weight else ()
        if options.otis_weight:
            self.build_last(every, options.pairs, backwards=options.cost == "softmax")

    def compare_states(self, index: int, student: StudentOutput, signals: TeacherSignals, _: Batch) -> dict[str, Term]:
        options, terms = self.options, {}
        found, seen = (signals.alignments[DIGEST], signals.digest) if signals.digest else self.from_maps[index](signals)
        if options.ira_weight:
            terms["ira"] = self._ira(index, student, found, seen)
        if options.otis_weight:
            terms["otis"] = self._otis(index, student, signals, seen["importance"])
        return terms

    def _ira(self, index: int, student: StudentOutput, found: Tensor, seen: dict[str, Tensor]) -> Term:
        """Distances of the attention patterns of the m most important pairs, summed over the layers."""
        maps = self.from_maps[index]
        options, debiased = self.options, self.options.cka == "debiased"
        real, chosen = found[..., 0] >= 0, found[..., 0].clamp_min(0)
        assert student.mask is not None
        distances = []
        for ours, theirs in zip(self.compared, maps.compared, strict=True):
            own = pairs.take_rows(self._views(student.attention[ours]), chosen)
            own = own.masked_fill(~student.mask.unsqueeze(1), 0)
            distances.append(cka_distance_to_gram(own, seen[_gram(theirs)], real, debiased))
        count = real.sum(-1)
        enough = count >= (4 if debiased else 3)
        values = torch.stack(distances).sum(0)
        # The debiased estimate's variance falls with m(m - 3), so its mean over sentences is weighed by that.
        present = (count * (count - 3)).where(enough, 0).float() if debiased else enough
        term = parts.counted(values, present, options.ira_weight)
        return term._replace(summed=options.fixed.reduction == "sum")

    def _otis(self, index: int, student: StudentOutput, signals: TeacherSignals, scores: Tensor) -> Term:
        """Cost of moving the student's token states to the teacher's, important tokens weighing more."""
        options, maps = self.options, self.from_maps[index]
        rows, _ = pairs.masks(student, signals, options.special_tokens)
        columns = maps.columns(signals)
        if options.fixed.student_mass == "path":
            ours, theirs = importance.path_masses(scores, pairs.pairs(signals, "full"), rows.shape[-1])
        else:
            aligned = pairs.pairs(signals, options.pairs)
            ours, theirs = importance.pair_masses(scores, columns, aligned, rows, options.importance), scores
        states = self.standardize[index](signals.tokens[maps.last])
        own = self._views(student.tokens[self.last[index][0]])
        if options.cost == "cosine":
            cost = _cosine_cost(self.maps[index](own), states)
        else:
            cost = _softmax_cost(own, self.maps[index](states), columns)
        with torch.set_grad_enabled(torch.is_grad_enabled() and options.plan == "unrolled"):
            plan = sinkhorn(cost, ours, theirs, options.epsilon, options.iterations, options.tolerance)
        there = (ours.sum(-1) > 0) & (theirs.sum(-1) > 0)
        return parts.counted(transport_cost(cost, plan), there, options.otis_weight)

    def _views(self, values: Tensor) -> Tensor:
        return values if self.options.fixed.average_views else values[:1]


@full_precision
def _cosine_cost(own: Tensor, states: Tensor) -> Tensor:
    """[V, B, S, D], [B, T, D] -> [V, B, S, T] in [0, 2]."""
    return 1 - normalize(own) @ normalize(states).mT


@full_precision
def _softmax_cost(own: Tensor, states: Tensor, columns: Tensor) -> Tensor:
    """[V, B, S, d], [B, T, d] -> [V, B, S, T]: 1 - softmax over the teacher's tokens (eqs. 17 and 18)."""
    return 1 - parts.masked_softmax(own @ states.mT / math.sqrt(own.shape[-1]), columns.unsqueeze(-2))
