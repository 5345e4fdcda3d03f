"""MultiLevelOT: the k largest logits of both sides, ordered, compared by absolute and logarithmic cost.

    z_(1) >= .. >= z_(k),  p = softmax(z_(1..k)) on each side
    absolute = sum_c |p^s_(c) - p^t_(c)|,  logarithmic = KL(p^t_() || p^s_())
    sequence = <T, C>, T = the entropic plan between the places of both answers, C_ij = sum_c |p^s_i(c) - p^t_j(c)|
    L = 1.5 (absolute + 0.1 logarithmic + 0.1 sequence)

Published form: for language models; the vocabulary is ordered once for a whole sequence, both costs are the closed
form of a transport over ordered entries, and a third term is the Sinkhorn distance between the positions of the two
sequences. For students that write all three are there; the k entries are each place's own largest. Adaptation (EMO and
DistillMoE's comparisons): an item has one vector of class logits, hence one position, between which and itself nothing
can be transported: the sequence term falls away. There is no embedding form.

The `code` preset differs from the published code in this: the logarithmic term has its arguments in the paper's order,
and softmax is not applied to probabilities a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from distilvec.functional import sinkhorn, transport_cost
from distilvec.methods import parts
from distilvec.methods.base import Batch, Needs, Options, StudentInfo, StudentOutput, TeacherInfo, TeacherSignals, Term
from distilvec.methods.tokens import class_logits, next_tokens
from distilvec.methods.tokens.base import TokenMethod
from distilvec.precision import full_precision

_EPSILON, _ITERATIONS = 0.1, 10  # of the transport between places, as published
_TINY = 1e-4  # added to the deviation, as published
#: Of both presets, the paper's and that of the published code.
_PUBLISHED = {"absolute_weight": 1.5, "logarithmic_weight": 0.15, "sequence_weight": 0.15, "positions": "index"}


class MultiLevelOTOptions(Options):
    """Options of MultiLevelOT.

    Constants: the weights of two terms are a tenth of the first's; the task's alpha does the rest [S].
    `divide_by_deviation`: logits over their deviation within the item [C], which hides how sure a side is; not [S].
    """

    constants: ClassVar[dict[str, Any]] = {
        "absolute_weight": 1.0,
        "logarithmic_weight": 0.1,
        "sequence_weight": 0.1,
        "divide_by_deviation": False,
    }
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": _PUBLISHED,
        "code": {**_PUBLISHED, "order": "batch", "divide_by_deviation": True},
    }

    positions: next_tokens.Positions = Field("ends", description=next_tokens.POSITIONS)
    top_k: int = Field(50, ge=1, description="k, logits that are kept on each side [P, C]")
    order: Literal["item", "batch"] = Field(
        "item", description="classes ordered per item [P, S], or by their probability summed over the batch [C]"
    )


class MultiLevelOT(TokenMethod):
    """Terms: `absolute`, `logarithmic` [V, B]; of a student that writes also `sequence` [V, B]."""

    name = "multilevel_ot"
    summary = "ordered probabilities, of classes or of the next token, by absolute and logarithmic cost"
    paper = "Cui et al. 2024, Multi-level optimal transport (arXiv:2412.14528)"
    Options = MultiLevelOTOptions
    writes = True
    same_classes = False
    usual_form = "logits"

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        needs = super().needs(student, teachers)
        return needs._replace(coupled=needs.logits and self.options.order == "batch")

    def compare_logits(self, index: int, student: StudentOutput, signals: TeacherSignals, _: Batch) -> dict[str, Term]:
        ours, theirs = class_logits.class_logits(student, signals)
        keep, fixed = min(self.options.top_k, ours.shape[-1], theirs.shape[-1]), self.options.fixed
        ours, theirs = (self._ordered(each, signals.present, keep) for each in (ours, theirs))
        differences = (ours.softmax(-1) - theirs.softmax(-1)).abs().sum(-1)
        divergences = class_logits.class_divergence(ours, theirs, 1.0)
        return {
            "absolute": parts.counted(differences, signals.present, fixed.absolute_weight),
            "logarithmic": parts.counted(divergences, signals.present, fixed.logarithmic_weight),
        }

    def compare_next(self, index: int, student: StudentOutput, signals: TeacherSignals, _: Batch) -> dict[str, Term]:
        sides, fixed = next_tokens.compared(student, signals, self.positions), self.options.fixed
        keep = min(self.options.top_k, sides.ours.shape[-1], sides.logs.shape[-1])
        ours, theirs = sides.ours.topk(keep, -1).values, sides.logs[..., :keep]
        differences = (ours.softmax(-1) - theirs.softmax(-1)).abs().sum(-1)
        divergences = class_logits.class_divergence(ours.flatten(1, 2), theirs.flatten(0, 1), 1.0)
        values, there = _sequence_cost(student, signals, keep)
        return {
            "absolute": next_tokens.term(differences, sides.real, fixed.absolute_weight),
            "logarithmic": next_tokens.term(divergences.view_as(differences), sides.real, fixed.logarithmic_weight),
            "sequence": parts.counted(values, there, fixed.sequence_weight),
        }

    @full_precision
    def _ordered(self, logits: Tensor, present: Tensor, keep: int) -> Tensor:
        """[..., B, C] -> [..., B, keep], the largest first."""
        if self.options.fixed.divide_by_deviation:
            logits = logits / (logits.std(-1, keepdim=True, correction=min(1, logits.shape[-1] - 1)) + _TINY)
        if self.options.order == "item":
            return logits.sort(dim=-1, descending=True).values[..., :keep]
        mass = logits.softmax(-1).masked_fill(~present.unsqueeze(-1), 0)
        order = mass.reshape(-1, mass.shape[-1]).sum(0).argsort(descending=True)
        return logits[..., order[:keep]]


def _sequence_cost(student: StudentOutput, signals: TeacherSignals, keep: int) -> tuple[Tensor, Tensor]:
    """[V, B] cost of moving one answer's places to the other's, each weighing alike; bool [B], those that have any."""
    assert student.content is not None and signals.content is not None
    ours = student.extras["next_logits"].float().topk(keep, -1).values.softmax(-1)
    theirs = signals.next["logs"][..., :keep].float().softmax(-1)
    cost = torch.cdist(ours, theirs.expand(len(ours), *theirs.shape), p=1.0)
    masses = []
    for content, places in ((student.content, ours.shape[-2]), (signals.content, theirs.shape[-2])):
        counts = content.sum(-1, keepdim=True) + 1
        real = torch.arange(places, device=counts.device) < counts
        masses.append((real & signals.present.unsqueeze(-1)) / counts)
    with torch.no_grad():
        plan = sinkhorn(cost, masses[0], masses[1], _EPSILON, _ITERATIONS)
    return transport_cost(cost, plan), signals.present
