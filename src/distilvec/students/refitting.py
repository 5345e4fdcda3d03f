"""Second moments of what a layer reads, and the least-squares refit of a linear layer to fewer of its inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Penalties that are tried, in parts of the mean square of an input; a larger one has to miss this much less.
_RIDGES, _LESS = (1e-4, 1e-2, 1e-1, 1.0), 0.99
#: Every so many tokens one is kept for judging a refit.
JUDGED = 8
#: Rows that are squared at once.
_TOGETHER = 2_048


class StateMoments:
    """Sums of [x, 1]ᵀ[x, 1] over tokens, apart for those that a refit is fitted to and judged on."""

    def __init__(self, width: int) -> None:
        self._sums = torch.zeros(2, width + 1, width + 1, dtype=torch.float64)
        self._waiting: list[Tensor] = []

    def add(self, rows: Tensor) -> None:
        """float [n, width], states of real tokens."""
        self._waiting.append(torch.cat([rows.float(), rows.new_ones(len(rows), 1).float()], 1))
        if sum(map(len, self._waiting)) >= _TOGETHER:
            self._sum_up()

    def _sum_up(self, least: int = JUDGED) -> None:
        """Square what waits: many rows at once, as the sums are large and in float64; a rest of a turn waits on."""
        if not self._waiting:
            return
        rows = torch.cat(self._waiting)
        whole = len(rows) // least * least
        self._waiting = [rows[whole:]] if whole < len(rows) else []
        held = torch.arange(whole, device=rows.device) % JUDGED == JUDGED - 1
        for number, part in enumerate((rows[:whole][~held], rows[:whole][held])):
            self._sums[number] += (part.T @ part).cpu()

    @property
    def fitted(self) -> Tensor:
        """float64 [width + 1, width + 1], of those that a refit is fitted to."""
        self._sum_up(1)
        return self._sums[0]

    @property
    def judged(self) -> Tensor:
        """The same of those that it is judged on."""
        self._sum_up(1)
        return self._sums[1]

    def variance(self) -> Tensor:
        """float64 [width]."""
        mean = self.fitted[-1, :-1] / self.fitted[-1, -1]
        return self.fitted.diagonal()[:-1] / self.fitted[-1, -1] - mean.square()


@dataclass(frozen=True)
class Refit:
    """A linear layer of fewer inputs: weight float32 [d, k], bias [d] (None where there was none), and its R²."""

    weight: Tensor
    bias: Tensor | None
    explained: float


def refit(moments: StateMoments, weight: Tensor, bias: Tensor | None, kept: Tensor) -> Refit:
    """The least-squares map from some coordinates to what a layer makes of all.

    The penalty pulls towards the weights that these coordinates had. That matters where there are hardly more tokens
    than units, and the plain solution fits their noise; what is judged chooses it.

    Args:
        moments: of the layer's inputs, K wide.
        weight, bias: of the layer, [d, K] and [d].
        kept: int64 [k], the coordinates that stay.
    """
    end = weight.new_zeros(len(weight), 1) if bias is None else bias[:, None]
    whole = torch.cat([weight, end], 1).detach().cpu().double()
    constant = torch.tensor([whole.shape[1] - 1] if bias is not None else [], dtype=torch.long)
    inputs = torch.cat([kept.cpu(), constant])
    second, before = moments.fitted[inputs][:, inputs], whole[:, inputs]
    gap = moments.fitted[inputs] @ whole.T - second @ before.T
    scale = torch.zeros(len(inputs), dtype=torch.float64)
    scale[: len(kept)] = second.diagonal()[: len(kept)].mean()
    solution, error = before, torch.tensor(torch.inf, dtype=torch.float64)
    for ridge in _RIDGES:
        tried = before + torch.linalg.solve(second + torch.diag(ridge * scale), gap).T
        missed = whole.clone()
        missed[:, inputs] -= tried
        found = (missed @ moments.judged * missed).sum()
        if found < _LESS * error:
            solution, error = tried, found
    mean = whole @ moments.judged[:, -1] / moments.judged[-1, -1]
    total = (whole @ moments.judged * whole).sum() - moments.judged[-1, -1] * mean.square().sum()
    return Refit(
        weight=solution[:, : len(kept)].float().contiguous(),
        bias=None if bias is None else solution[:, -1].float().contiguous(),
        explained=1 - float(error / total),
    )


def contributions(seen: StateMoments, weight: Tensor, size: int) -> Tensor:
    """float64 [groups], mean squared norm of what each group of `size` columns adds to a layer's output."""
    products = weight.detach().cpu().double()
    products = (products.T @ products) * seen.fitted[:-1, :-1]
    groups = len(products) // size
    return torch.stack([products[n * size : (n + 1) * size, n * size : (n + 1) * size].sum() for n in range(groups)])


def rows_of(groups: Tensor, size: int) -> Tensor:
    """Numbers of groups -> numbers of their `size` rows each."""
    return (groups[:, None] * size + torch.arange(size)).flatten()
