"""The experts' losses of DistillMoE, and the gate that weighs them.

Source: DistillMoE, section 3.1, eqs. 1 to 7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from distilvec.functional import cosine_distance, expert_similarity, gate_floor_penalty, info_nce, margin_gap
from distilvec.methods import parts
from distilvec.methods.base import Batch, StudentOutput, TeacherInfo, TeacherSignals, Term

Expert = Literal["cosine", "contrast", "margin"]
CONTRAST_TEMPERATURE = 0.1  # tau of the second expert, as in the published code


class ExpertLosses(nn.Module):
    """One loss per expert: those of the first teacher, then those of the next, all under one gate.

    A teacher's weight multiplies what its experts teach; the gate compares their losses as they are, or it would turn
    to the teacher that counts least.

    Args:
        options: of DistillMoE.
        experts: of each teacher.
        signals: of the sample, for the ridge starts.
        outputs: [N, E, d] what the untrained experts make of the sample.
        shared: per teacher the map that stands for W1 and W2, where there is one for all.
    """

    teacher_weights: Tensor

    def __init__(
        self,
        options: Any,
        experts: Sequence[Expert],
        teachers: Sequence[TeacherInfo],
        signals: Sequence[TeacherSignals],
        outputs: Tensor,
        shared: Sequence[nn.Module | None],
    ) -> None:
        super().__init__()
        self.options, self.experts, self.teachers = options, list(experts), len(teachers)
        # [E], 1 where teachers count the same. Not saved: it follows from the recipe.
        weights = torch.tensor(parts.shares(teachers, len(teachers))).repeat_interleave(len(experts))
        self.register_buffer("teacher_weights", weights, persistent=False)
        by_expert = [parts.names(expert, teachers) for expert in experts]
        self.names = [names[teacher] for teacher in range(len(teachers)) for names in by_expert]
        self.maps = nn.ModuleList()  # per teacher W1 and W2; the third expert stays in the student's space
        for index, teacher in enumerate(teachers):
            maps = nn.ModuleDict()
            for place, expert in enumerate(experts, index * len(experts)):
                if expert != "margin":
                    maps[expert] = shared[index] or parts.teacher_head(
                        outputs[:, place], teacher, signals[index], options.init
                    )
            self.maps.append(maps)

    def forward(
        self, student: StudentOutput, teachers: Sequence[TeacherSignals], batch: Batch, weight: float
    ) -> dict[str, Term]:
        """The mixture's terms, and each expert's loss and gate weight for the log."""
        options, count = self.options, len(self.names)
        outputs = student.embedding.unsqueeze(-2).expand(*student.embedding.shape[:-1], count, -1)
        if options.head:
            outputs = parts.given(
                student.extras.get("expert_outputs"), '"expert_outputs" (attach(student) adds a head)'
            )
        losses = self._losses(outputs, teachers, batch)  # [V, B, E]
        known = torch.stack([one.present for one in teachers], -1).repeat_interleave(len(self.experts), -1)  # [B, E]
        gate = student.extras["gate"].float() if options.head else None
        values = self._weighted(losses, known, gate)
        terms = {"moe": parts.counted(values, known.any(-1), weight)}
        for place, name in enumerate(self.names):
            terms[name] = parts.counted(losses[..., place].detach(), known[:, place], 0.0)
        if gate is not None:
            diversity = expert_similarity(outputs.flatten(0, 1)).view(outputs.shape[:2])
            terms["diversity"] = Term(diversity, None, weight)
            floor = gate_floor_penalty(gate, options.fixed.gate_floor / count)
            terms["gate_floor"] = Term(floor, None, weight * options.fixed.floor_weight)
            negentropy = (gate * gate.clamp_min(1e-12).log()).sum(-1)
            if options.gate_kl:
                terms["gate_kl"] = Term(negentropy + math.log(count), None, weight * options.gate_kl)
            terms["gate_entropy"] = Term(-negentropy.detach(), None, 0.0)
            terms.update((f"gate_{name}", Term(gate[..., i].detach(), None, 0.0)) for i, name in enumerate(self.names))
        return terms

    def _losses(self, outputs: Tensor, teachers: Sequence[TeacherSignals], batch: Batch) -> Tensor:
        """[V, B, E] every expert's loss on every item, 0 where its teacher has nothing."""
        losses = []
        for index, signals in enumerate(teachers):
            target, present = parts.sentence(signals), signals.present
            maps = cast(nn.ModuleDict, self.maps[index])
            for place, expert in enumerate(self.experts):
                own = outputs[..., index * len(self.experts) + place, :]
                if expert == "margin":
                    values = margin_gap(own, target, self.options.margin, present)
                elif expert == "cosine":
                    values = cosine_distance(maps[expert](own), target)
                else:
                    values = self._contrast(maps[expert](own), target, present, batch)
                losses.append(values.masked_fill(~present, 0))
        return torch.stack(losses, -1)

    def _contrast(self, own: Tensor, target: Tensor, present: Tensor, batch: Batch) -> Tensor:
        """[V, B] InfoNCE against the teacher's vectors of the batch."""
        views, items = own.shape[:2]
        own_key = torch.arange(items, device=own.device).repeat(views)
        exclude = (batch.duplicate | ~present).repeat(views, 1)
        values = info_nce(own.flatten(0, 1), target, CONTRAST_TEMPERATURE, own_key, exclude)
        return values.view(views, items)

    def _weighted(self, losses: Tensor, known: Tensor, gate: Tensor | None) -> Tensor:
        """[V, B] the losses by the gate (its weights of absent teachers going to the others), or by fixed weights."""
        fixed, weighted = self.options.loss_weights, losses * self.teacher_weights
        if fixed is not None or gate is None:
            each = losses.new_tensor(fixed or [1 / len(self.experts)] * len(self.experts)) / self.teachers
            return (weighted * each.repeat(self.teachers)).sum(-1)
        gate = gate.masked_fill(~known, 0)
        gate = gate / gate.sum(-1, keepdim=True).clamp_min(1e-12)
        values = (gate.detach() * weighted).sum(-1)
        if self.options.gate_gradient == "task":
            return values
        compared = losses.detach()
        if self.options.gate_gradient == "scaled":
            seen = known.expand_as(losses)
            level = compared.sum((0, 1)) / seen.sum((0, 1)).clamp_min(1)
            compared = compared / level.clamp_min(1e-6)
        return values + ((gate - gate.detach()) * compared).sum(-1)
