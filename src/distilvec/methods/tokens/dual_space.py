"""DSKD for a student that writes: each side's states read by the other side's own prediction head.

    projected     = CE of the gold token under W^s P h^t                                                      (trains P)
    student_space = KL(softmax(W^s P h^t / tau) || softmax(W^s h^s / tau)) where the first's likeliest token is gold
    teacher_space = KL(p^t || softmax(W^t P' h^s)), both over the teacher's likeliest tokens and the rest as one, at tau

W^s and W^t are the heads, both fixed here; what W^s P h^t says is a constant in the second term. Which of the teacher's
places goes with one of the student's: where both have read the same text, which is exact where there is one, or
cross-model attention between their states, as published (there of the embeddings of input and target tokens).

Source: Zhang et al. 2024 (arXiv:2406.17328), sections 3.2 and 3.3; exact places as in its sequel (arXiv:2504.11426).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from distilvec.errors import DistilvecError
from distilvec.methods import parts
from distilvec.methods.base import Needs, StudentInfo, StudentOutput, TeacherInfo, TeacherSignals, Term, WantedOfStudent
from distilvec.methods.tokens import next_tokens
from distilvec.methods.tokens.maps import Sides
from distilvec.methods.tokens.pairs import last_layers, pairs, take_rows
from distilvec.modules.projection import projection
from distilvec.precision import full_precision


def needs(method: str, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
    """The next token along the answer, and the last states of both."""
    needed = next_tokens.needs(method, teachers)
    for teacher in teachers:
        if teacher.head is None:
            raise DistilvecError(
                f"{method} reads states by the teacher's own head, and it has none", where=teacher.name
            )
    own, theirs = last_layers(method, student, teachers)
    wanted = tuple(replace(one, tokens=(layer,)) for one, layer in zip(needed.teachers, theirs, strict=True))
    return needed._replace(student=WantedOfStudent(tokens=(own,)), teachers=wanted)


class DualSpace(nn.Module):
    """Both directions for one teacher."""

    teacher_head: Tensor

    def __init__(self, options: Any, sides: Sides) -> None:
        super().__init__()
        self.options, self.layers, widths = options, sides.last, sides.widths
        assert sides.teacher.head is not None
        axes = sides.teacher.axes.get(self.layers[1])  # of a store that keeps its states on them: W h = (W A) (A'h)
        # It belongs to the teacher, which is the one that saves it.
        head = sides.teacher.head if axes is None else sides.teacher.head @ axes.float()
        self.register_buffer("teacher_head", head, persistent=False)
        ours, theirs = _pairs(sides) if options.init == "ridge" else (None, None)
        self.there = projection(*widths, ours, theirs, options.init)
        self.back = projection(*widths[::-1], theirs, ours, options.init)
        if options.fixed.matching == "attention":
            self.query, self.key = (nn.Linear(width, min(widths), bias=False) for width in widths)

    def forward(self, student: StudentOutput, signals: TeacherSignals, head: nn.Linear) -> dict[str, Term]:
        """The terms; `head` is the student's."""
        tau = self.options.temperature
        sides = next_tokens.compared(student, signals)
        ours = answer_states(student.tokens[self.layers[0]], student.content)
        theirs = answer_states(signals.tokens[self.layers[1]], signals.content)
        own, other = (take_rows(s, p) for s, p in zip((ours, theirs), sides.places, strict=True))
        if self.options.fixed.matching == "attention":
            own, other = self._attended(student, signals, ours, theirs, sides)
        gold = student.extras["next_ids"][0].gather(1, sides.places[0])
        scored = sides.real & (gold >= 0)
        linear = full_precision(functional.linear)
        read = linear(self.back(other), head.weight.detach())  # [B or V B, P, C]
        likely = read.log_softmax(-1)
        losses = -likely.gather(-1, gold.clamp_min(0).expand(read.shape[:-1]).unsqueeze(-1)).squeeze(-1)
        right = _by_view(read.argmax(-1), sides.ours) == gold
        target, said = (read.detach() / tau).log_softmax(-1), (sides.ours / tau).log_softmax(-1)
        here = linear(self.there(own), self.teacher_head).log_softmax(-1)
        return {
            "projected": next_tokens.term(_by_view(losses, sides.ours), scored, 1.0),
            "student_space": next_tokens.term((target.exp() * (target - said)).sum(-1), scored & right, 1.0),
            "teacher_space": next_tokens.term(candidate_divergence(here, sides, tau), sides.real, 1.0),
        }

    def _attended(
        self, student: StudentOutput, signals: TeacherSignals, ours: Tensor, theirs: Tensor, sides: next_tokens.Compared
    ) -> tuple[Tensor, Tensor]:
        """The student's states as the teacher's places see them, and the reverse: [V, B, P, d], [V, B, P, D]."""
        assert student.content is not None and signals.content is not None
        real = [
            torch.arange(states.shape[-2], device=states.device) <= content.sum(-1, keepdim=True)
            for content, states in ((student.content, ours), (signals.content, theirs))
        ]
        query = self.query(ours)
        scores = products(query, self.key(theirs), math.sqrt(query.shape[-1]))
        seen = parts.masked_softmax(scores.mT, real[0].unsqueeze(-2)) @ ours
        read = parts.masked_softmax(scores, real[1].unsqueeze(-2)) @ theirs
        return take_rows(seen, sides.places[1]), take_rows(read, sides.places[0])


def answer_states(states: Tensor, content: Tensor | None) -> Tensor:
    """States [..., B, S, d] at the end of the prompt and at each token of the answer, [..., B, A, d].

    What is beyond an answer is anywhere in its row.
    """
    assert content is not None
    steps = torch.arange(int(content.sum(-1).max()) + 1, device=content.device)
    places = (content.int().argmax(-1, keepdim=True) - 1 + steps).clamp(0, content.shape[1] - 1)
    return take_rows(states, places)


@full_precision
def candidate_divergence(ours: Tensor, found: next_tokens.Compared, temperature: float) -> Tensor:
    """KL of the teacher's likeliest tokens and its rest to log-probabilities [V, B, P, entries]: [V, B, P]."""
    theirs, own = next_tokens.candidates_of(found), ours.gather(-1, found.ids.expand(*ours.shape[:-1], -1))
    own = torch.cat([own, next_tokens.left_of(own.exp())], -1)
    return next_tokens.coarse_divergence(theirs, own, torch.ones_like(theirs), temperature)


def _pairs(sides: Sides) -> tuple[Tensor, Tensor]:
    """States where both have read the same text, the student's [n, d] and the teacher's [n, D]."""
    ours, theirs = [], []
    for student, signals in sides.batches:
        told = signals[sides.number]
        aligned = pairs(told, "ends")
        own = answer_states(student.tokens[sides.last[0]][0], student.content)
        other = answer_states(told.tokens[sides.last[1]], told.content)
        ours.append(take_rows(own, aligned.student)[aligned.real].float())
        theirs.append(take_rows(other, aligned.teacher)[aligned.real].float())
    return torch.cat(ours), torch.cat(theirs)


def _by_view(values: Tensor, ours: Tensor) -> Tensor:
    return values.expand(ours.shape[:-1])


@full_precision
def products(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """[V, B, S, a], [B, T, a] -> [V, B, S, T]."""
    return query @ key.mT / scale
