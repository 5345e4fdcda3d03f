"""Cosine distance to many teachers' vectors, each behind a kernel of its own.

    L = sum_k w_k mean_{i: teacher k has i} 1 - cos(t_ik, mu_k(e_i))

The companion of the likelihood in its paper's comparisons. Vectors are the teachers' own by default: a cosine is
about directions from their origin, which standardising moves.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from distilvec.functional import cosine_distance
from distilvec.methods.kernels import KernelMethod, KernelOptions, centre
from distilvec.modules.kernel_head import Kernel


class MultiCosineOptions(KernelOptions):
    presets = {  # noqa: RUF012
        "paper": {"teacher_weight": "sum", "init": "random"},
        "code": {"teacher_weight": "sum", "init": "random"},
    }

    vectors: Literal["standardised", "raw"] = Field(
        "raw", description="the teachers' own vectors [P, C], or standardised [S]"
    )
    teacher_weight: Literal["mean", "sum"] = Field("mean", description="mean over the teachers [S], or sum [P, C]")


class MultiCosine(KernelMethod):
    """Terms per teacher: `cosine` [V, B], and `explained` (see `KernelMethod`) by kernels of the vectors' own length: a
    cosine says nothing of theirs.
    """

    name = "multi_cosine"
    summary = "cosine distance to many teachers' vectors, each behind a small network"
    paper = "How to distill task-agnostic representations from many teachers?, appendix G"
    Options = MultiCosineOptions
    term = "cosine"
    per_coordinate = False

    def compare(self, kernel: Kernel, target: Tensor, live: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        mean = centre(kernel).float()
        return cosine_distance(mean.masked_fill(~live, 0.0), target.masked_fill(~live, 0.0)), {}

    def _explained(self, number: int, kernel: Kernel, target: Tensor) -> Tensor:
        mean, live = centre(kernel).float(), self.kernels.live(number)
        own, wanted = (each.masked_fill(~live, 0.0).norm(dim=-1, keepdim=True) for each in (mean, target))
        at_length = mean / own.clamp_min(1e-12) * wanted
        return super()._explained(number, kernel._replace(mean=at_length.unsqueeze(-2), weights=None), target)
