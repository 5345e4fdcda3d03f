"""Squared error to many teachers' vectors, each behind a kernel of its own: the means of `gaussian` alone.

    L = sum_k w_k mean_{i: teacher k has i} ||t_ik - mu_k(e_i)||^2

The companion of the likelihood in its paper's comparisons. Its formula there has no heads, so that student and
teacher would need one width, and a sign that would maximise it; the published code has heads and the right sign.
"""

from __future__ import annotations

from torch import Tensor

from distilvec.methods.kernels import KernelMethod, KernelOptions, centre, live_mean
from distilvec.modules.kernel_head import Kernel


class MultiMSEOptions(KernelOptions):
    presets = {  # noqa: RUF012
        "paper": {"vectors": "raw", "teacher_weight": "sum", "init": "random"},
        "code": {"vectors": "raw", "depth": 2, "width": None, "init": "random"},
    }


class MultiMSE(KernelMethod):
    """Terms per teacher: `squared_error` [V, B] per coordinate, and `explained` (see `KernelMethod`)."""

    name = "multi_mse"
    summary = "squared error to many teachers' vectors, each behind a small network"
    paper = "How to distill task-agnostic representations from many teachers?, appendix G"
    Options = MultiMSEOptions
    term = "squared_error"

    def compare(self, kernel: Kernel, target: Tensor, live: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return live_mean((target - centre(kernel).float()).square(), live), {}
