"""DynamicCKA: each student token finds its teacher tokens by likeness, and the two sets of states are compared.

    a_pq = softmax_q(cos(Q h_p, h_q) / temperature), cut to the likeliest tokens of the wanted mass, renormalised
    loss = mean over the last Z layers of 1 - sqrt(CKA(h_p, sum_q a_pq h_q))

A student that moves its own alignment can reach a CKA of 0.99 against a target of its making, so by default the
weights are constants; `true_cka` on aligned pairs is logged beside the loss.

Source: DistillMoE, section 3.2, eqs. 10 to 13.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from distilvec.functional import cka_distance, cosine_distance, linear_cka, normalize, smallest_mass_set
from distilvec.methods import parts
from distilvec.methods.base import StudentOutput, TeacherSignals, Term
from distilvec.methods.tokens import pairs
from distilvec.methods.tokens.importance import normalized
from distilvec.methods.tokens.maps import FixedMap, Sides
from distilvec.precision import full_precision

PAIRS = "strict"


class DynamicCKA(nn.Module):
    """The token part of DistillMoE for one teacher; `shared` stands for Q where there is one map for all."""

    def __init__(self, options: Any, sides: Sides, shared: nn.Module | None) -> None:
        super().__init__()
        self.options = options
        both = pairs.last(sides.student, options.layers), pairs.last(sides.teacher, options.layers)
        self.layers = list(zip(*both, strict=True))
        self.standardize = nn.ModuleList(
            sides.standardizer(theirs, options.fixed.standardize) for _, theirs in self.layers
        )
        if shared is None:
            linear = sides.token_map(self.layers, self.standardize, options.init, PAIRS)
            shared = FixedMap(linear) if options.token_map == "fixed" else linear
        self.query = shared

    def forward(self, student: StudentOutput, signals: TeacherSignals, weight: float) -> dict[str, Term]:
        """The loss `dynamic_cka`, and `token_map` and `true_cka` beside it."""
        rows, columns = pairs.masks(student, signals, self.options.special_tokens)
        rows = rows & columns.any(-1, keepdim=True)  # there is nothing to align an item with
        layers = [
            (student.tokens[ours], standardize(signals.tokens[theirs]))
            for (ours, theirs), standardize in zip(self.layers, self.standardize, strict=True)
        ]
        values = torch.stack([self._distance(own, states, rows, columns) for own, states in layers]).mean(0)
        if self.options.scope == "sentence":
            enough = rows.sum(-1) >= (4 if self.options.cka == "debiased" else 3)
            terms = {"dynamic_cka": parts.counted(values, enough, weight)}
        else:
            terms = {"dynamic_cka": Term(values.mean(), None, weight)}
        aligned = pairs.pairs(signals, PAIRS)
        if self.options.token_map == "pairs":
            terms["token_map"] = self._map_term(layers, aligned)
        own, states = layers[-1]
        terms["true_cka"] = Term(_true_cka(own[0], states, aligned), None, 0.0)
        return terms

    def _distance(self, own: Tensor, states: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """[V, B, S, d], [B, T, D] -> [V, B], or over the batch's tokens [V]."""
        options, debiased = self.options, self.options.cka == "debiased"
        with torch.set_grad_enabled(torch.is_grad_enabled() and options.differentiate_weights):
            weights = soft_alignment(
                self.query(own),
                states,
                columns,
                options.fixed.attention_temperature,
                options.mass,
                options.fixed.most_tokens,
                options.least_cosine,
            )
        aligned = full_precision(torch.matmul)(weights, states)
        compared = self.query(own) if options.projected else own
        if options.scope == "sentence":
            return cka_distance(compared, aligned, rows, debiased)
        return cka_distance(compared[:, rows], aligned[:, rows], None, debiased)

    def _map_term(self, layers: list[tuple[Tensor, Tensor]], aligned: pairs.TokenPairs) -> Term:
        """Q learns to take the student's states, as they are, to those of their partners."""
        distances = [
            cosine_distance(
                self.query(pairs.take_rows(own.detach(), aligned.student)),
                pairs.take_rows(states, aligned.teacher),
            )
            for own, states in layers
        ]
        values = parts.masked_mean(torch.stack(distances).mean(0), aligned.real)
        return parts.counted(values, aligned.real.any(-1), 1.0)


@full_precision
def soft_alignment(
    queries: Tensor,
    states: Tensor,
    columns: Tensor,
    temperature: float,
    mass: float,
    most: int | None = None,
    least_cosine: float | None = None,
) -> Tensor:
    """Weights of the teacher's tokens for each of the student's.

    Args:
        queries: [V, B, S, D], student states in the teacher's space.
        states: [B, T, D].
        columns: bool [B, T], tokens to choose from.
        mass: the likeliest tokens that reach it are kept.
        most: at most so many.
        least_cosine: those kept that are less alike go too, unless all are.

    Returns:
        [V, B, S, T], rows that sum to 1, or 0 where there is nothing to choose from.

    Source: DistillMoE, eqs. 10 and 11.
    """
    allowed = columns.unsqueeze(-2)
    cosines = normalize(queries) @ normalize(states).mT
    weights = parts.masked_softmax(cosines / temperature, allowed).masked_fill(~allowed, 0)
    kept = smallest_mass_set(weights, mass, allowed, most)
    if least_cosine is not None:
        alike = kept & (cosines >= least_cosine)
        best = kept & (weights == weights.amax(-1, keepdim=True))
        kept = torch.where(alike.any(-1, keepdim=True), alike, best)
    return normalized(weights, kept, "sum")


@torch.no_grad()
def _true_cka(own: Tensor, states: Tensor, aligned: pairs.TokenPairs) -> Tensor:
    """[] debiased CKA of the last layers over all aligned tokens of the batch: [B, S, d], [B, T, D]."""
    ours = pairs.take_rows(own, aligned.student)[aligned.real]
    theirs = pairs.take_rows(states, aligned.teacher)[aligned.real]
    return linear_cka(ours, theirs, None, debiased=True)
