"""Common parts of methods on the next token: places where both have read the same text, and both sides' distributions.

A teacher gives its k likeliest tokens and the logarithm of the rest's mass (`TeacherSignals.next`); the rest is one
more class. A student gives its logits (`extras["next_logits"]`). Places are counted along the answer, 0 = the end of
the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from distilvec.alignment.pieces import ENDS, nearest_entries, prefix_entries
from distilvec.errors import DistilvecError
from distilvec.methods import parts
from distilvec.methods.base import Needs, StudentInfo, StudentOutput, TeacherInfo, TeacherSignals, Term, Wanted
from distilvec.methods.tokens.pairs import TokenPairs, pairs, take_rows
from distilvec.precision import full_precision

Positions = Literal["ends", "index"]
Mapping = Literal["prefix", "nearest"]
POSITIONS = (
    "of a student that writes, where the next token is compared: where both have read the same text [S], or after as "
    "many tokens on both sides [P, C]"
)
MAPPING = (
    "of a student that writes, which of its tokens stands for one of the teacher's: the longest that it begins with "
    "[S], or the nearest by edit distance [P, C]"
)
LEAST = 1e-6  # of a mass that is left of 1: float32 knows no smaller one
_TINY = 1e-30  # of any other mass whose logarithm is taken


class Compared(NamedTuple):
    """Both sides at P places of each item.

    Attributes:
        ours: [V, B, P, C] the student's log-probabilities.
        ids, logs: [B, P, k] the teacher's likeliest tokens, and their log-probabilities.
        rest: [B, P] the logarithm of what is left.
        real: bool [B, P].
        places: int64 [B, P], of the student, and of the teacher.
    """

    ours: Tensor
    ids: Tensor
    logs: Tensor
    rest: Tensor
    real: Tensor
    places: tuple[Tensor, Tensor]


def needs(method: str, teachers: Sequence[TeacherInfo], positions: Positions = "ends") -> Needs:
    """Say what a method on the next token wants.

    Raises:
        DistilvecError: a teacher that writes nothing.
    """
    for teacher in teachers:
        if teacher.pieces is None:
            raise DistilvecError(
                f"{method} compares what is written next, and this teacher writes nothing",
                where=teacher.name,
                remedy="Take a causal language model.",
            )
    wanted = Wanted(next=True, alignment=(ENDS,) if positions == "ends" else ())
    return Needs(teachers=(wanted,) * len(teachers), sentence=False)


def compared(student: StudentOutput, signals: TeacherSignals, positions: Positions = "ends") -> Compared:
    """Both sides, at the places that are compared."""
    logits = parts.given(student.extras.get("next_logits"), "the student's logits of the next token")
    parts.given(signals.next or None, "what the teacher expects next")
    places = _places(student, signals, positions)
    theirs = {name: take_rows(signals.next[name], places.teacher) for name in ("ids", "logs")}
    rest = signals.next["rest"].gather(1, places.teacher)
    ours = full_precision(torch.log_softmax)(take_rows(logits, places.student), -1)
    return Compared(
        ours, theirs["ids"], theirs["logs"].float(), rest.float(), places.real, (places.student, places.teacher)
    )


def _places(student: StudentOutput, signals: TeacherSignals, positions: Positions) -> TokenPairs:
    if positions == "ends":
        return pairs(signals, ENDS)
    assert student.content is not None and signals.content is not None
    counts = torch.minimum(student.content.sum(-1), signals.content.sum(-1)) + 1
    steps = torch.arange(signals.next["rest"].shape[1], device=counts.device).expand(len(counts), -1)
    real = (steps < counts.unsqueeze(-1)) & signals.present.unsqueeze(-1)
    steps = steps.masked_fill(~real, 0)
    return TokenPairs(steps, steps, real)


def term(values: Tensor, real: Tensor, weight: float) -> Term:
    """The mean over the `real` places, [V, B, P] -> [V, B]; an item counts as often as it has such places."""
    return parts.counted(parts.masked_mean(values, real), real.sum(-1).float(), weight)


def aligned_share(student: StudentOutput, real: Tensor) -> Term:
    """For the log: compared places over those of the student's answer [B]."""
    assert student.content is not None
    share = real.sum(-1) / (student.content.sum(-1) + 1)
    return parts.counted(share.float(), real.any(-1), 0.0)


class EntryMap(nn.Module):
    """Maps one tokenizer's entries to those that stand for them in another; -1 for none. Not trained, not saved.

    Args:
        by: see `MAPPING`.
        backwards: from the student's entries to the teacher's, in place of the reverse.
    """

    table: Tensor

    def __init__(self, student: StudentInfo, teacher: TeacherInfo, by: Mapping, backwards: bool = False) -> None:
        super().__init__()
        assert student.pieces is not None and teacher.pieces is not None
        source, target = (student.pieces, teacher.pieces) if backwards else (teacher.pieces, student.pieces)
        make = prefix_entries if by == "prefix" else nearest_entries
        # Heads are often longer than their tokenizers (Qwen's by some hundred rows): such ids stand for nothing.
        table = nn.functional.pad(torch.from_numpy(make(source, target)), (0, 1), value=-1)
        self.register_buffer("table", table, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """int64 of any shape."""
        return self.table[ids.clamp_max(len(self.table) - 1)]


def coarse_divergence(theirs: Tensor, ours: Tensor, share: Tensor, temperature: float) -> Tensor:
    """KL(theirs || ours) in nats between two distributions over the same classes, at a temperature.

    Both are brought to it as classes. Single entries brought to it first would let the rest weigh by how many they
    are, which is known of the student alone: a student that says what its teacher says would be far from it.

    Args:
        theirs, ours: [..., n] logarithms of the classes' masses.
        share: [..., n], how much each counts: 0 = not at all, a part where one class stands here several times.

    Returns:
        [...].
    """
    powers = [logs / temperature for logs in (theirs, ours)]
    wanted, own = (each - (each + share.log()).logsumexp(-1, keepdim=True) for each in powers)
    return (share * wanted.exp() * (wanted - own)).sum(-1)


def left_of(mass: Tensor) -> Tensor:
    """The logarithm of what is left of 1, [..., n] -> [..., 1]."""
    return (1 - mass.sum(-1, keepdim=True)).clamp_min(LEAST).log()


def candidates_of(found: Compared) -> Tensor:
    """[B, P, k + 1] the logarithms of the teacher's masses, that of the rest last, normalised (a store rounds)."""
    return torch.cat([found.logs, found.rest.unsqueeze(-1).clamp_min(math.log(LEAST))], -1).log_softmax(-1)


def sorted_difference(found: Compared, temperature: float) -> Tensor:
    """L1 between both sides' probabilities in descending order, the teacher's k and the rest: [V, B, P] in [0, 2].

    What either side has beyond its k is compared as one, so that this is at most twice the smaller rest below the
    distance of the whole sorted vectors. Both are brought to the temperature as in `coarse_divergence`.
    """
    theirs = candidates_of(found).div(temperature).softmax(-1)
    best = found.ours.topk(min(found.logs.shape[-1], found.ours.shape[-1]), -1).values
    ours = torch.cat([best, left_of(best.exp())], -1).div(temperature).softmax(-1)
    best, kept = ours[..., :-1], theirs[..., :-1]
    best = nn.functional.pad(best, (0, kept.shape[-1] - best.shape[-1]))
    return (best - kept).abs().sum(-1) + (ours[..., -1] - theirs[..., -1]).abs()


def mapped_divergence(found: Compared, mapped: Tensor, temperature: float, top_k: int | None) -> Tensor:
    """KL(teacher || student) in nats, over those of the student's entries that stand for the teacher's: [V, B, P].

    Args:
        mapped: int64 [B, P, k], the student's entry for each of the teacher's likeliest; -1 = none.
        top_k: only so many of the teacher's best, which then have all mass; None = all k, and the rest (with what is
            mapped to nothing) is one more class.
    """
    known, index = mapped >= 0, mapped.clamp_min(0)
    if top_k is not None:
        known = known & (torch.arange(known.shape[-1], device=known.device) < top_k)
    # Several of the teacher's entries may stand behind one of the student's: their masses add up.
    same = (index.unsqueeze(-1) == index.unsqueeze(-2)) & known.unsqueeze(-1) & known.unsqueeze(-2)
    index = index.expand(*found.ours.shape[:-1], index.shape[-1])
    if top_k is not None:
        mass = (found.logs / temperature).softmax(-1).masked_fill(~known, 0)
        mass = mass / mass.sum(-1, keepdim=True).clamp_min(LEAST)
        whole = (same * mass.unsqueeze(-2)).sum(-1).clamp_min(LEAST).log()
        ours = found.ours if temperature == 1 else (found.ours / temperature).log_softmax(-1)
        return (mass * (whole - ours.gather(-1, index))).sum(-1)
    mass, share = candidates_of(found)[..., :-1].exp().masked_fill(~known, 0), known / same.sum(-1).clamp_min(1)
    whole = (same * mass.unsqueeze(-2)).sum(-1).clamp_min(_TINY).log()
    own = found.ours.gather(-1, index)
    theirs = torch.cat([whole, left_of(mass)], -1)
    return coarse_divergence(
        theirs, torch.cat([own, left_of(own.exp() * share)], -1), nn.functional.pad(share, (0, 1), value=1), temperature
    )


def gathered_divergence(found: Compared, back: nn.Module, temperature: float, count: int) -> Tensor:
    """KL(teacher || student) in nats, over the teacher's likeliest entries: [V, B, P].

    The student's mass on each of them is that of those of its own `count` best that `back` maps to it; an entry
    to which none is mapped belongs to the rest.
    """
    best = found.ours.topk(min(count, found.ours.shape[-1]), -1)
    stands = back(best.indices).unsqueeze(-1) == found.ids.unsqueeze(-2)  # [V, B, P, K, k]
    own, met = (best.values.exp().unsqueeze(-1) * stands).sum(-2), stands.any(-2).float()
    logs = candidates_of(found)[..., :-1].expand_as(own)
    theirs = torch.cat([logs, left_of(logs.exp() * met)], -1)
    ours = torch.cat([own.clamp_min(_TINY).log(), left_of(own)], -1)
    return coarse_divergence(theirs, ours, nn.functional.pad(met, (0, 1), value=1), temperature)
