"""Jasper and Stella: cosine, similarity matrix and relative order, the last two on Matryoshka prefixes too.

    y = e W in the teacher's space, y[:p] its prefixes, s_ij = cos(y_i, y_j), t_ij = cos(t_i, t_j)
    L = 10 mean_i 1 - cos(y_i, t_i)
      + 200 mean_ij (s_ij - t_ij)^2
      + 20 mean over pairs (a, b) of text pairs with t_a > t_b of relu(0.015 - (s_a - s_b))

Stage 1 trains W alone, stage 2 everything. The order term over all pairs of pairs is O(B^4): at most `pairs` of
them are drawn, the same in both passes of a sharpness-aware step, on all ranks and in a resumed run. Ties of the
teacher give no term ([C] counts them as descending). The map has no bias ([C] has one).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from distilvec.errors import DistilvecError
from distilvec.functional import cosine_distance, relation_matrix
from distilvec.methods import parts
from distilvec.methods.base import Batch, Needs, Options, StudentInfo, StudentOutput, TeacherInfo, TeacherSignals, Term
from distilvec.methods.projected import ProjectedMethod

#: Of the three terms (paper and code).
COSINE_WEIGHT, SIMILARITY_WEIGHT, ORDER_WEIGHT = 10.0, 200.0, 20.0


class JasperStellaOptions(Options):
    presets: ClassVar[dict[str, dict[str, Any]]] = {"paper": {"init": "random"}, "code": {"init": "random"}}

    margin: float = Field(0.015, ge=0, description="of the relative order [P, C]")
    pairs: int = Field(4096, gt=0, description="pairs of pairs drawn per batch [S]; [P, C] take all, O(B^4)")
    prefixes: list[int] | None = Field(
        None, description="prefixes of y for similarity and order; null = D/2 and D/4 [S], [C] lists 256 to 3584"
    )
    heads_share: float = Field(
        2 / 7, ge=0, lt=1, description="share of the training that is stage 1 [C: 2 of 7 epochs in TALAS's comparison]"
    )
    seed: int = Field(0, ge=0, description="of the drawing of pairs [S]")
    init: parts.Init = Field("ridge", description=parts.INIT)


class JasperStella(ProjectedMethod):
    """Terms: `cosine` [V, B], `similarity` [V, B], `order` [] (`:TEACHER` behind where there are several)."""

    name = "jasper_stella"
    summary = "cosine, similarity matrix and relative order with Matryoshka prefixes, in two stages"
    paper = "Zhang et al. 2024, Jasper and Stella (arXiv:2412.19048)"
    Options = JasperStellaOptions
    coupled = True

    def needs(self, student: StudentInfo, teachers: Sequence[TeacherInfo]) -> Needs:
        for teacher in teachers:
            if max(self.options.prefixes or [0]) >= teacher.width or min(self.options.prefixes or [1]) < 1:
                raise DistilvecError(
                    f"prefixes {self.options.prefixes} must be between 1 and the teacher's width {teacher.width}",
                    where=f"jasper_stella, teacher {teacher.name}",
                )
        return super().needs(student, teachers)

    def terms_of(self, index: int, student: StudentOutput, signals: TeacherSignals, batch: Batch) -> dict[str, Term]:
        projected, target, present = self.heads[index](student.embedding), parts.sentence(signals), signals.present
        relations, wanted = self._relations(projected), relation_matrix(target)
        rows = parts.masked_mean((relations - wanted).square(), present).mean(0)
        order = self._order(relations, wanted, present, self._pairs_of_pairs(batch))
        return {
            "cosine": parts.counted(cosine_distance(projected, target), present, COSINE_WEIGHT),
            "similarity": parts.counted(rows, present, SIMILARITY_WEIGHT),
            "order": Term(order, None, ORDER_WEIGHT),
        }

    def _relations(self, projected: Tensor) -> Tensor:
        """[V, B, D] -> [P, V, B, B] similarities of the full vector and of its prefixes."""
        width = projected.shape[-1]
        prefixes = self.options.prefixes
        if prefixes is None:
            prefixes = [width // 2, width // 4] if width >= 4 else []
        return torch.stack([relation_matrix(projected[..., :prefix]) for prefix in [width, *prefixes]])

    def _pairs_of_pairs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """int64 [2, n] and [2, n], two different text pairs (i < j) each; all of them where they are few."""
        rows = len(batch.keys)
        texts = torch.triu_indices(rows, rows, 1)
        count = texts.shape[1]
        if count * (count - 1) // 2 <= self.options.pairs:
            first, second = torch.triu_indices(count, count, 1)
        else:
            generator = parts.batch_generator(batch, self.options.seed)
            first = torch.randint(count, (self.options.pairs,), generator=generator)
            apart = torch.randint(1, count, (self.options.pairs,), generator=generator)
            second = (first + apart) % count
        device = batch.keys.device
        return texts[:, first].to(device), texts[:, second].to(device)

    def _order(self, relations: Tensor, wanted: Tensor, present: Tensor, chosen: tuple[Tensor, Tensor]) -> Tensor:
        """[] mean hinge over the pairs of pairs whose texts are all present and which the teacher tells apart."""
        (i, j), (k, m) = chosen
        direction = torch.sign(wanted[i, j] - wanted[k, m])
        gap = (relations[..., i, j] - relations[..., k, m]) * direction
        usable = present[i] & present[j] & present[k] & present[m] & (direction != 0)
        return parts.masked_mean(torch.relu(self.options.margin - gap), usable).mean()

    def trains_student(self, progress: float) -> bool:
        return bool(progress >= self.options.heads_share)
