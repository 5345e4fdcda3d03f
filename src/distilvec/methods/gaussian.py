"""Many teachers by the likelihood of their vectors (Gaussian-kernel distillation).

    L = sum_k w_k mean_{i: teacher k has i} -log N(t_ik; mu_k(e_i), Sigma_k(e_i))

A kernel per teacher gives mean and deviation from the student's vector. Maximising the likelihood maximises a lower
bound on the mutual information between student and teachers (section 3.3 of the paper).

Deviations, per coordinate:
    soft:  log variance = 10 tanh(x / 10)                                       [S]
    tanh:  1 / deviation = exp(tanh(x)), so between 0.37 and 2.7                 [C]
On raw vectors of unit length the second bound saturates, and the loss is squared error (checked in a test).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from distilvec.functional import gaussian_nll, triangular_gaussian_nll
from distilvec.methods.kernels import KernelMethod, KernelOptions, live_mean
from distilvec.modules.kernel_head import Kernel, bounded

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class GaussianOptions(KernelOptions):
    presets = {  # noqa: RUF012
        "paper": {"vectors": "raw", "teacher_weight": "sum", "init": "random", "beta_nll": 0},
        "code": {
            "vectors": "raw",
            "teacher_weight": "sum",
            "bound": "tanh",
            "width_factor": 1.4,
            "init": "random",
            "beta_nll": 0,
        },
    }

    bound: Literal["soft", "tanh"] = Field("soft", description="of the deviation: soft clamp [S] or exp(tanh) [C]")
    covariance: Literal["diagonal", "triangular"] = Field(
        "diagonal", description="diagonal [P, C], or triangular: coordinates go together, by one trained matrix [S]"
    )
    components: int = Field(1, ge=1, description="Gaussians per teacher: 1 [P, C], or a mixture [S]")
    beta_nll: float | None = Field(
        None,
        ge=0,
        le=1,
        description="weigh each coordinate by variance^beta, so that badly fitted ones still learn; 0 [P, C]; null: 1 "
        "[S], and 0 with several components or triangular covariance",
    )
    keep_kernels: bool = Field(
        False, description="save the kernels beside the student, for distilvec.load(path).explain(items) [S]"
    )

    @property
    def apart(self) -> bool:
        """Tell whether each coordinate has a likelihood of its own."""
        return self.components == 1 and self.covariance == "diagonal"

    @model_validator(mode="after")
    def _fits(self) -> GaussianOptions:
        if self.beta_nll and not self.apart:
            raise ValueError(
                "beta_nll weighs single coordinates: it goes with components: 1 and covariance: diagonal, "
                f"not with {self.components} and {self.covariance}"
            )
        return self

    @property
    def beta(self) -> float:
        """The exponent that applies."""
        return float(self.apart) if self.beta_nll is None else self.beta_nll


class Gaussian(KernelMethod):
    """Terms per teacher: `nll` [V, B] per coordinate in nats; logged beside it: `explained` (see `KernelMethod`) and
    `calibration`, the mean squared standardised residual, which is 1 where the predicted deviations are right. With
    a beta the term is the weighted one, and `plain_nll`, without weights, is logged too."""

    name = "gaussian"
    summary = "likelihood of many teachers' vectors under Gaussian kernels of the student's"
    paper = "How to distill task-agnostic representations from many teachers?"
    Options = GaussianOptions
    term = "nll"
    spread = True

    def compare(self, kernel: Kernel, target: Tensor, live: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        options = self.options
        assert kernel.spread is not None
        target = target.unsqueeze(-2)
        log_variance = bounded(kernel.spread.float(), options.bound)
        if kernel.factor is None:
            nll = gaussian_nll(target, kernel.mean, log_variance)
            if options.beta:
                nll = nll * (options.beta * log_variance.detach()).exp()
            per_component = live_mean(nll, live)
        else:
            per_component = _triangular(kernel, target, log_variance, live)
        count = live.sum().clamp_min(1)
        if kernel.weights is None:
            values = per_component.squeeze(-1)
        else:
            values = -(kernel.weights - per_component * count).logsumexp(-1) / count
        seen = {}
        with torch.no_grad():
            seen["calibration"] = _calibration(kernel, target, log_variance, live, per_component * count)
            if options.beta:
                seen["plain_nll"] = live_mean(gaussian_nll(target, kernel.mean, log_variance), live).squeeze(-1)
        return values, seen

    def said(self, log_variance: Tensor) -> Tensor:
        if self.options.bound == "soft":
            return 10 * torch.atanh((log_variance / 10).clamp(-0.99, 0.99))
        return torch.atanh((-log_variance / 2).clamp(-0.99, 0.99))

    def keep(self, folder: Path) -> None:
        if self.options.keep_kernels:
            self.kernels.save(folder, bound=self.options.bound)


def _triangular(kernel: Kernel, target: Tensor, log_variance: Tensor, live: Tensor) -> Tensor:
    """[V, B, n] -log N per coordinate, with precision factor F = diag(1 / deviation) U.

    Coordinates that do not count are given no residual, no deviation and no share of the constant.
    """
    assert kernel.factor is not None
    log_variance = log_variance.masked_fill(~live, 0.0)
    inverse = (-0.5 * log_variance).exp()
    mean = torch.where(live, kernel.mean.float(), target)
    nll = triangular_gaussian_nll(inverse * target, inverse * mean, kernel.factor) + 0.5 * log_variance.sum(-1)
    return (nll - _HALF_LOG_TWO_PI * (~live).sum()) / live.sum().clamp_min(1)


def _calibration(kernel: Kernel, target: Tensor, log_variance: Tensor, live: Tensor, nll: Tensor) -> Tensor:
    """[V, B] mean squared standardised residual, over components by how likely each is to have given the target."""
    residual = ((target - kernel.mean.float()) * (-0.5 * log_variance).exp()).masked_fill(~live, 0.0)
    if kernel.factor is not None:
        residual = residual @ kernel.factor.tril()
    squared = live_mean(residual.square(), live)
    if kernel.weights is None:
        return squared.squeeze(-1)
    return ((kernel.weights - nll).softmax(-1) * squared).sum(-1)
