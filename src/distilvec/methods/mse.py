"""Mean squared error between the projected student embedding and the teacher's vector.

    raw:   L = mean_i ||e_i W - t_i||^2 / D
    unit:  L = mean_i ||n(e_i W) - n(t_i)||^2 / D = 2 (1 - cos) / D,  n(x) = x / ||x||

Several teachers have a W each.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from distilvec.functional import normalize
from distilvec.methods.projected import ProjectedMethod, ProjectedOptions


class MSEOptions(ProjectedOptions):
    vectors: Literal["unit", "raw"] = Field(
        "unit", description="compare unit vectors, whose error retrieval by cosine sees, or raw ones [S]"
    )


class MSE(ProjectedMethod):
    """Terms: `mse` [V, B] (`mse:TEACHER` where there are several)."""

    name = "mse"
    summary = "squared error to the teacher's vector after a linear map"
    paper = "baseline; Reimers and Gurevych 2020 (arXiv:2004.09813)"
    Options = MSEOptions

    def compare(self, projected: Tensor, target: Tensor) -> Tensor:
        if self.options.vectors == "unit":
            projected, target = normalize(projected), normalize(target)
        return (projected - target).square().mean(-1)
