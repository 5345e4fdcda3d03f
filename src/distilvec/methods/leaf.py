"""LEAF: plain regression of the student's projected output on the teacher's vector, in the teacher's own space.

    L = mean_i ||e_i W - t_i||^2

Neither side is normalised inside the loss, so that the student's output is the teacher's vector, and the student's
queries work on the teacher's index: use it with `student.space: teacher`. Meant for a long schedule.
The training code is not published; `paper` and `code` are the same: unit targets, heads from a random start.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from distilvec.functional import cosine_distance, normalize
from distilvec.methods.projected import ProjectedMethod, ProjectedOptions


class LeafOptions(ProjectedOptions):
    #: Regress on the teacher's unit vector [P, C], or on the vector as it gives it [S].
    constants: ClassVar[dict[str, Any]] = {"unit_target": False}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"unit_target": True, "init": "random"},
        "code": {"unit_target": True, "init": "random"},
    }


class Leaf(ProjectedMethod):
    """Terms: `leaf` [V, B] and, for the log only, `cosine` [V, B] (`:TEACHER` behind where there are several)."""

    name = "leaf"
    summary = "regression in the teacher's own space; the student shares the teacher's index"
    paper = "Vujanic and Rueckstiess 2025, LEAF (arXiv:2509.12539)"
    Options = LeafOptions
    implied_space = "teacher"

    def compare(self, projected: Tensor, target: Tensor) -> Tensor:
        return (projected - self._target(target)).square().sum(-1)

    def watch(self, projected: Tensor, target: Tensor) -> dict[str, Tensor]:
        return {"cosine": cosine_distance(projected, self._target(target))}

    def _target(self, target: Tensor) -> Tensor:
        return normalize(target) if self.options.fixed.unit_target else target
