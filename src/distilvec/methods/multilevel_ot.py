"""MultiLevelOT: the k largest logits of both sides, ordered, compared by absolute and logarithmic cost.

    z_(1) >= .. >= z_(k),  p = softmax(z_(1..k)) on each side
    absolute = sum_c |p^s_(c) - p^t_(c)|,  logarithmic = KL(p^t_() || p^s_())
    L = 1.5 (absolute + 0.1 logarithmic)

Published form: for language models; the vocabulary is ordered once for a whole sequence, both costs are the closed
form of a transport over ordered entries, and a third term is the Sinkhorn distance between the positions of the two
sequences. Adaptation (EMO and DistillMoE's comparisons): an item has one vector of class logits, hence one position,
between which and itself nothing can be transported: the sequence term falls away. There is no embedding form.

The `code` preset differs from the published code in this: the logarithmic term has its arguments in the paper's order,
and softmax is not applied to probabilities a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator
from torch import Tensor

from distilvec.methods import baseline_parts, parts
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
from distilvec.precision import full_precision

_TINY = 1e-4  # added to the deviation, as published


class MultiLevelOTOptions(Options):
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"absolute_weight": 1.5, "logarithmic_weight": 0.15},
        "code": {
            "absolute_weight": 1.5,
            "logarithmic_weight": 0.15,
            "order": "batch",
            "divide_by_deviation": True,
        },
    }

    absolute_weight: float = Field(1.0, ge=0, description="1.5 [P, C]; 1, the task's alpha does the rest [S]")
    logarithmic_weight: float = Field(0.1, ge=0, description="a tenth of the other [P, C, S]")
    top_k: int = Field(50, ge=1, description="k, logits that are kept on each side [P, C]")
    order: Literal["item", "batch"] = Field(
        "item", description="classes ordered per item [P, S], or by their probability summed over the batch [C]"
    )
    divide_by_deviation: bool = Field(
        False, description="logits over their deviation within the item [C], which hides how sure a side is; not [S]"
    )

    @model_validator(mode="after")
    def _something_to_do(self) -> MultiLevelOTOptions:
        if not self.absolute_weight + self.logarithmic_weight:
            raise ValueError("absolute_weight and logarithmic_weight are 0, so there is nothing to distil")
        return self


class MultiLevelOT(Method):
    """Terms: `absolute`, `logarithmic` [V, B] (`:TEACHER` where there are several)."""

    name = "multilevel_ot"
    summary = "ordered class probabilities by absolute and logarithmic cost; needs class logits"
    paper = "Cui et al. 2024, Multi-level optimal transport (arXiv:2412.14528)"
    Options = MultiLevelOTOptions
    inside = True

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        instead = "Take a method on vectors or token states: cosine, dskd, emo or distillmoe."
        baseline_parts.check_class_logits(self.name, student, teachers, instead, same_classes=False)
        return Needs(
            teachers=(Wanted(logits=True, same_classes=False),) * len(teachers),
            sentence=False,
            coupled=self.options.order == "batch",
            states=False,
        )

    def build(self, student: StudentInfo, teachers: Sequence[TeacherInfo], sample: Sample) -> None:
        self.terms = list(zip(parts.names("absolute", teachers), parts.names("logarithmic", teachers), strict=True))
        self.shares = parts.shares(teachers)

    def forward(self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch) -> dict[str, Term]:
        options = self.options
        terms = {}
        for (absolute, logarithmic), share, signals in zip(self.terms, self.shares, teachers, strict=True):
            ours, theirs = baseline_parts.class_logits(student, signals)
            keep = min(options.top_k, ours.shape[-1], theirs.shape[-1])
            ours, theirs = self._ordered(ours, signals.present, keep), self._ordered(theirs, signals.present, keep)
            if options.absolute_weight:
                values = (ours.softmax(-1) - theirs.softmax(-1)).abs().sum(-1)
                terms[absolute] = parts.counted(values, signals.present, options.absolute_weight * share)
            if options.logarithmic_weight:
                values = baseline_parts.class_divergence(ours, theirs, 1.0)
                terms[logarithmic] = parts.counted(values, signals.present, options.logarithmic_weight * share)
        return terms

    def _ordered(self, logits: Tensor, present: Tensor, keep: int) -> Tensor:
        """[..., B, C] -> [..., B, keep], the largest first."""
        return _ordered(logits, present, keep, self.options.order == "batch", self.options.divide_by_deviation)


@full_precision
def _ordered(logits: Tensor, present: Tensor, keep: int, over_batch: bool, divide: bool) -> Tensor:
    if divide:
        logits = logits / (logits.std(-1, keepdim=True, correction=min(1, logits.shape[-1] - 1)) + _TINY)
    if not over_batch:
        return logits.sort(dim=-1, descending=True).values[..., :keep]
    mass = logits.softmax(-1).masked_fill(~present.unsqueeze(-1), 0)
    order = mass.reshape(-1, mass.shape[-1]).sum(0).argsort(descending=True)
    return logits[..., order[:keep]]
