"""Linear maps between spaces, started where the best one already lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from distilvec.errors import DataError, DistilvecError


def identity_map(width: int) -> nn.Linear:
    """The map of a student that lives in its teacher's space already; frozen."""
    linear = nn.Linear(width, width, bias=False).requires_grad_(False)
    nn.init.eye_(linear.weight)
    return linear


def dense(weight: Tensor, bias: Tensor | None = None, **options: Any) -> Any:
    """A stock `Dense` without activation, of a weight [D, d] and, where there is one, a bias [D]."""
    from sentence_transformers.base.modules import Dense

    return Dense(
        in_features=weight.shape[1],
        out_features=weight.shape[0],
        bias=bias is not None,
        activation_function=None,
        init_weight=weight,
        init_bias=bias,
        **options,
    )


def is_identity(linear: nn.Linear) -> bool:
    """Tell whether a map changes nothing."""
    weight = linear.weight
    return (
        linear.bias is None
        and weight.shape[0] == weight.shape[1]
        and bool((weight == torch.eye(len(weight)).to(weight)).all())
    )


@torch.no_grad()
def ridge_map(source: Tensor, target: Tensor, ridge: float = 1e-2, present: Tensor | None = None) -> Tensor:
    """The linear map without bias that takes `source` to `target` with the least squared error.

    Minimises ||E W - T||^2 + gamma ||W||^2 with gamma = ridge * trace(E^T E) / d, in float64.

    Args:
        source: E [n, d].
        target: T [n, D].
        ridge: relative strength of the penalty, > 0.
        present: bool [n], True = the row counts; None: all do.

    Returns:
        W^T [D, d], the weight of an `nn.Linear(d, D)`; float64 where the source is, else float32.

    Raises:
        DataError: no row to fit to, or a value that is not finite.

    >>> ridge_map(torch.eye(2), 2 * torch.eye(2), ridge=1e-9).round(decimals=4).tolist()
    [[2.0, 0.0], [0.0, 2.0]]
    """
    if present is not None:
        source, target = source[present], target[present]
    inputs, outputs = _finite(source, target)
    gram = inputs.mT @ inputs
    trace = gram.trace()
    if trace == 0:
        raise DataError(
            f"A projection cannot be fitted to rows {list(source.shape)}: none is present, or all are zero",
            remedy='Use "init: random", or a sample in which this teacher has vectors',
        )
    gram.diagonal().add_(ridge * trace / source.shape[1])
    weight = torch.linalg.solve(gram, inputs.mT @ outputs).mT.contiguous()
    return weight if source.dtype == torch.float64 else weight.float()


@torch.no_grad()
def flattened(weight: Tensor, power: float) -> Tensor:
    """A map whose singular values are nearer to each other: each to this power, the same Frobenius norm.

    A map that is fitted to lessons shrinks the directions that the student predicts badly, and most of what tells one
    answer of a search from the next lies there.

    Args:
        weight: [D, d].
        power: from 0, where all directions count alike, to 1, the map as it is.

    >>> [round(each, 2) for each in flattened(torch.diag(torch.tensor([3.0, 4.0])), 0.0).diagonal().tolist()]
    [3.54, 3.54]
    """
    left, values, right = torch.linalg.svd(weight.double(), full_matrices=False)
    changed = values**power
    return ((left * changed) @ right * (values.norm() / changed.norm())).to(weight.dtype)


def _finite(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Both in float64."""
    inputs, outputs = source.double(), target.double()
    wrong = ~(inputs.isfinite().all(1) & outputs.isfinite().all(1))
    if wrong.any():
        row, rows = int(wrong.nonzero()[0]), len(source)
        raise DataError(f"Row {row} of the {rows} that a projection is fitted to has values that are not finite")
    return inputs, outputs


RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)


@torch.no_grad()
def validated_ridge(source: Tensor, target: Tensor, ridges: Sequence[float] = RIDGES) -> tuple[Tensor, Tensor, Tensor]:
    """The affine map with the ridge that predicts best what it has not seen, and what such predictions miss.

    Every row is predicted by the map fitted to all others (leave-one-out, in closed form), for each of `ridges` times
    the mean eigenvalue of the centred E^T E.

    Args:
        source: E [n, d], n >= 2.
        target: T [n, D].

    Returns:
        weight [D, d], bias [D], and the variance [D] of the leave-one-out residuals; float32.
    """
    inputs, outputs = _finite(source, target)
    centre, middle = inputs.mean(0), outputs.mean(0)
    left, values, right = torch.linalg.svd(inputs - centre, full_matrices=False)
    seen, scale = left.mT @ (outputs - middle), values.square().mean().clamp_min(1e-12)
    best: tuple[float, Tensor, Tensor] | None = None
    for ridge in ridges:
        kept = values.square() / (values.square() + ridge * scale)
        leverage = (left.square() @ kept + 1 / len(inputs)).clamp_max(1 - 1e-6)
        missed = (outputs - middle - left @ (kept[:, None] * seen)) / (1 - leverage)[:, None]
        error = missed.square().mean(0)
        if best is None or float(error.mean()) < best[0]:
            best = float(error.mean()), error, ((kept / values.clamp_min(1e-12))[:, None] * seen).mT @ right
    assert best is not None
    weight = best[2]
    return weight.float(), (middle - weight @ centre).float(), best[1].float()


def projection(
    width_in: int,
    width_out: int,
    source: Tensor | None = None,
    target: Tensor | None = None,
    init: Literal["ridge", "random"] = "ridge",
    present: Tensor | None = None,
) -> nn.Linear:
    """A trainable linear map without bias.

    Args:
        width_in, width_out: d and D.
        source, target, present: what the ridge start is fitted to, see `ridge_map`; not used by "random".
        init: "ridge", the fitted map, or "random", torch's own start.

    Returns:
        float32 on the source's device (the CPU without one).
    """
    linear = nn.Linear(width_in, width_out, bias=False, device=None if source is None else source.device)
    if init == "random":
        return linear
    if source is None or target is None:
        raise DistilvecError("A ridge start needs vectors to be fitted to", remedy='Give them, or use "init: random"')
    linear.weight.data.copy_(ridge_map(source, target, present=present))
    return linear
