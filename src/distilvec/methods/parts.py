"""Common parts of methods: maps into the teachers' spaces, masked terms, SimCSE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from distilvec.errors import DistilvecError
from distilvec.functional import relation_matrix
from distilvec.methods.base import Batch, Sample, StudentOutput, TeacherInfo, TeacherSignals, Term
from distilvec.modules.projection import projection

T = TypeVar("T")
Init = Literal["ridge", "random"]
_OUT = -1e9  # finite, so that a row without any entry gives no NaN
SIMCSE_TEMPERATURE = 0.05  # Gao et al. 2021, and all papers of baselines that stand beside it
INIT = "start of the projections: ridge map of the untrained student [S] or torch's random start [C]"


def teacher_heads(teachers: Sequence[TeacherInfo], sample: Sample, init: Init) -> nn.ModuleList:
    """One bias-free map per teacher from the student's final embedding to the teacher's space."""
    source = sample.student.embedding[0]
    pairs = zip(teachers, sample.teachers, strict=True)
    return nn.ModuleList(teacher_head(source, teacher, signals, init) for teacher, signals in pairs)


def teacher_head(source: Tensor, teacher: TeacherInfo, signals: TeacherSignals, init: Init) -> nn.Linear:
    """A bias-free map from vectors [N, d] of a sample to one teacher's space."""
    return projection(source.shape[-1], teacher.width, source, sentence(signals), init, signals.present)


def only_map(heads: nn.ModuleList) -> nn.Linear | None:
    """The map of the one teacher; None for several, whose spaces a student cannot all live in."""
    return heads[0] if len(heads) == 1 and isinstance(heads[0], nn.Linear) else None


def given(value: T | None, what: str) -> T:
    """The parts that a method's needs ask for.

    Raises:
        DistilvecError: a batch came without it.
    """
    if value is None:
        raise DistilvecError(f"a batch came without {what}, which this method needs")
    return value


def sentence(signals: TeacherSignals) -> Tensor:
    """[B, D] the teacher's sentence vectors."""
    return given(signals.sentence, "the teacher's sentence vectors")


def names(term: str, teachers: Sequence[TeacherInfo]) -> list[str]:
    """The term's name for each teacher: `term`, or `term:teacher` where there are several."""
    return [term] if len(teachers) == 1 else [f"{term}:{teacher.name}" for teacher in teachers]


def shares(teachers: Sequence[TeacherInfo], of: float = 1.0) -> list[float]:
    """Split `of` among the teachers by their weights.

    >>> shares([TeacherInfo("a", 8), TeacherInfo("b", 8, weight=3.0)])
    [0.25, 0.75]
    >>> shares([TeacherInfo("a", 8), TeacherInfo("b", 8)], of=2.0)
    [1.0, 1.0]
    """
    whole = sum(teacher.weight for teacher in teachers)
    return [of * teacher.weight / whole for teacher in teachers]


def mean_relations(teachers: Sequence[TeacherSignals], weights: Tensor) -> tuple[Tensor, Tensor]:
    """[B, B] mean cosine, by the weights [K], over the teachers that have both items, and where there is one at all."""
    known = torch.stack([signals.present[:, None] & signals.present for signals in teachers])
    cosines = torch.stack([relation_matrix(sentence(signals)) for signals in teachers])
    counts = known * weights[:, None, None]
    whole = counts.sum(0)
    return (cosines.masked_fill(~known, 0.0) * counts).sum(0) / whole.masked_fill(whole == 0, 1), known.any(0)


def counted(values: Tensor, present: Tensor, weight: float) -> Term:
    """A per-item term in which only the items of `present` count.

    Args:
        values: [..., B].
        present: [B], bool, or float >= 0: how much an item counts.
    """
    rows = present.expand_as(values)
    return Term(values.masked_fill(rows == 0, 0.0), rows, weight)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the last dimension of the entries that `mask` (bool, broadcastable) lets through; none gives 0."""
    mask = mask.expand_as(values)
    return values.masked_fill(~mask, 0.0).sum(-1) / mask.sum(-1).clamp_min(1)


def masked_softmax(logits: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension; what `mask` leaves out gets 0, or 1/n where it leaves out all."""
    return logits.masked_fill(~mask, _OUT).softmax(-1)


def row_cross_entropy(student: Tensor, teacher: Tensor, allowed: Tensor) -> Tensor:
    """[..., B, B] logits each -> [..., B] cross-entropy of the softmax rows over the `allowed` [B, B] entries.

    A row without allowed entries gives 0.
    """
    target = masked_softmax(teacher, allowed).masked_fill(~allowed, 0.0)
    return -(target * student.masked_fill(~allowed, _OUT).log_softmax(-1)).sum(-1)


def tanh_layer(width: int, wanted: bool) -> nn.Module:
    """SimCSE's training-only layer, started as BERT's, or the identity."""
    if not wanted:
        return nn.Identity()
    dense = nn.Linear(width, width)
    nn.init.normal_(dense.weight, std=0.02)
    nn.init.zeros_(dense.bias)
    return nn.Sequential(dense, nn.Tanh())


def simcse(student: StudentOutput, batch: Batch, temperature: float, weight: float) -> Term:
    """SimCSE (Gao et al. 2021, eq. 4) between the first two views; equal items are not negatives."""
    from distilvec.functional import info_nce

    first, second = student.embedding[0], student.embedding[1]
    return Term(info_nce(first, second, temperature, exclude=batch.duplicate), None, weight)


def batch_generator(batch: Batch, seed: int) -> torch.Generator:
    """A CPU generator seeded by the batch's own keys, so that drawing from it has no state.

    Both passes of a sharpness-aware step, all ranks and a resumed run draw the same; other batches differ.
    """
    mixing = torch.arange(1, batch.keys.shape[-1] + 1, device=batch.keys.device) * 0x9E3779B97F4A7C1
    digest = int((batch.keys.long() * mixing).sum())
    return torch.Generator().manual_seed((digest ^ seed) & 0x7FFFFFFFFFFFFFFF)
