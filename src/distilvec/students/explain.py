"""A student that kept its kernels: which teacher it reproduces of an item, and how surely."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

from distilvec.modules.kernel_head import GaussianKernels, Kernel, bounded
from distilvec.modules.pipeline import default_prompt
from distilvec.modules.task_head import sentence_vectors


@dataclass(frozen=True)
class Reproduction:
    """A student's prediction of one teacher's vector of one item.

    Attributes:
        uncertainty: root mean square of the predicted deviations, in units of how much the teacher's coordinates vary
            over its store: near 0 where the student is sure, 1 where it knows no more than their average.
        explained: 1 - uncertainty^2, the share of the teacher's variance that the student expects to get right.
        mean: float32 [D], the predicted vector in the teacher's own units.
        deviation: float32 [D], its standard deviation in the same units.
    """

    uncertainty: float
    explained: float
    mean: np.ndarray
    deviation: np.ndarray


class ExplainingStudent(SentenceTransformer):
    """A `SentenceTransformer` with the kernels that it was trained with; what `distilvec.load` gives for such a folder.

    Attributes:
        kernels: on the CPU.
        bound: how they bound deviations.
        marginals: per teacher [D_k], see `GaussianKernels.marginal`.
    """

    kernels: GaussianKernels
    bound: str
    marginals: list[Tensor]

    def explain(self, items: Any, batch_size: int = 32) -> list[dict[str, Reproduction]]:
        """By teacher, what the student knows of its vector, for each item.

        Args:
            items: one text, image (path, Pillow image or array [h, w] or [h, w, 3]) or molecule, or several of them.
            batch_size: items per forward pass.
        """
        given = [items] if _one(items) else list(items)
        reproductions: list[dict[str, Reproduction]] = []
        self.eval()
        for start in range(0, len(given), batch_size):
            reproductions += self._explained(given[start : start + batch_size])
        return reproductions

    @torch.inference_mode()
    def _explained(self, items: list[Any]) -> list[dict[str, Reproduction]]:
        prompt = default_prompt(self) or None
        features: dict[str, Any] = dict(self.preprocess(items, prompt=prompt))
        features = {name: v.to(self.device) if isinstance(v, Tensor) else v for name, v in features.items()}
        kernels = self.kernels(sentence_vectors(self, features).float().cpu())
        rows: list[dict[str, Reproduction]] = [{} for _ in items]
        for number, (name, kernel) in enumerate(zip(self.kernels.names, kernels, strict=True)):
            mean, deviation = self._moments(kernel, number)
            live, scale = self.kernels.live(number), self.kernels.scale(number)
            relative = (deviation * (scale / self.kernels.deviation(number)))[:, live].square().mean(-1)
            own = live * mean * scale + self.kernels.shift(number), live * deviation * scale
            for row, part in enumerate(rows):
                part[name] = Reproduction(
                    uncertainty=float(relative[row].sqrt()),
                    explained=float(1 - relative[row]),
                    mean=own[0][row].numpy(),
                    deviation=own[1][row].numpy(),
                )
        return rows

    def _moments(self, kernel: Kernel, number: int) -> tuple[Tensor, Tensor]:
        """Mean and deviation [n, D] of the whole mixture, in the kernel's units."""
        assert kernel.spread is not None
        variance = bounded(kernel.spread, self.bound).exp() * self.marginals[number]
        shares = torch.ones_like(kernel.mean[..., :1]) if kernel.weights is None else kernel.weights.exp().unsqueeze(-1)
        mean = (shares * kernel.mean).sum(-2)
        spread = (shares * (variance + (kernel.mean - mean.unsqueeze(-2)).square())).sum(-2)
        return mean, spread.sqrt()


def _one(items: Any) -> bool:
    """Tell whether this is one item; an array of numbers with two or three dimensions is one image."""
    if isinstance(items, np.ndarray | Tensor):
        return items.ndim in (2, 3) and not (isinstance(items, np.ndarray) and items.dtype.kind in "OUS")
    return isinstance(items, str | Mapping) or not isinstance(items, Iterable)


def with_kernels(student: SentenceTransformer, folder: str | Path) -> ExplainingStudent:
    """The student with the kernels that lie beside it in its folder."""
    kernels, more = GaussianKernels.load(folder)
    student.__class__ = ExplainingStudent
    assert isinstance(student, ExplainingStudent)
    # Not a submodule: it is no part of what the student computes or saves.
    student.__dict__["kernels"], student.__dict__["bound"] = kernels.eval(), str(more.get("bound", "soft"))
    student.__dict__["marginals"] = [kernels.marginal(number) for number in range(len(kernels.names))]
    return student
