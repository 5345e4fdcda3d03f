"""The largest eigenvalue of a loss's Hessian, by Lanczos steps on Hessian-vector products."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from scipy.linalg import eigh_tridiagonal
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from distilvec.errors import DistilvecError


class Curvature(NamedTuple):
    """The result of `largest_curvature`.

    Attributes:
        value: the algebraically largest eigenvalue (the top Ritz value).
        vector: [n] its unit vector, all parameters flattened in the order given.
        iterations: Hessian-vector products made.
        converged: whether the residual ||H v - value v|| came down to tolerance * |value|, or the Krylov
            space was exhausted.
    """

    value: float
    vector: Tensor
    iterations: int
    converged: bool


def largest_curvature(
    closure: Callable[[], Tensor],
    parameters: Iterable[Tensor],
    iterations: int = 30,
    tolerance: float = 1e-3,
    generator: torch.Generator | None = None,
) -> Curvature:
    """The largest eigenvalue of the Hessian of `closure()` with respect to `parameters`.

    Lanczos with full reorthogonalisation: its top Ritz value goes to the algebraic maximum, where power
    iteration finds the largest magnitude and stalls when |lambda_min| is near lambda_max. The closure is
    evaluated once, with torch's math kernel for attention, because the fused ones cannot be differentiated
    twice. `.grad` is left alone. Memory: the graph of one gradient, and one vector of all parameters per
    iteration.

    Args:
        closure: the loss [] with its graph. It should be deterministic (eval mode, frozen dropout).
        parameters: what to differentiate by. Parameters that the loss does not depend on have zero curvature.
        iterations: at most so many Hessian-vector products, >= 1; 20 to 30 is usual.
        tolerance: stop when the residual is at most tolerance * |value|.
        generator: for the start vector; None is one of its own with seed 0: nothing global is touched.

    Raises:
        DistilvecError: no parameters, fewer than one iteration, a loss that is not a scalar, or a product
            that is not finite.

    >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> round(largest_curvature(lambda: (w * w * torch.tensor([3.0, -4.0])).sum(), [w]).value, 4)
    6.0
    """
    chosen = [parameter for parameter in parameters if parameter.requires_grad]
    if not chosen or iterations < 1:
        raise DistilvecError(f"{len(chosen)} trainable parameters, {iterations} iterations: too few")
    product = _hessian_product(closure, chosen)
    size = sum(parameter.numel() for parameter in chosen)
    generator = generator or torch.Generator().manual_seed(0)
    start = torch.randn(size, generator=generator, device=generator.device, dtype=chosen[0].dtype)
    return _lanczos(product, start.to(chosen[0].device), min(iterations, size), tolerance)


def _hessian_product(closure: Callable[[], Tensor], parameters: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """v [n] -> H v [n]."""
    sizes = [parameter.numel() for parameter in parameters]
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        loss = closure()
        if loss.numel() != 1:
            raise DistilvecError(f"the closure must give one number, not shape {tuple(loss.shape)}")
        firsts: tuple[Tensor | None, ...] = (None,) * len(parameters)
        if loss.requires_grad:
            firsts = torch.autograd.grad(loss.reshape(()), parameters, create_graph=True, allow_unused=True)
    # A constant gradient (None, or without a graph) belongs to zero rows of the Hessian.
    curved = [(index, first) for index, first in enumerate(firsts) if first is not None and first.requires_grad]

    def product(vector: Tensor) -> Tensor:
        parts = [part.view_as(p).to(p.dtype) for part, p in zip(torch.split(vector, sizes), parameters, strict=True)]
        seconds: tuple[Tensor | None, ...] = (None,) * len(parameters)
        if curved:
            seconds = torch.autograd.grad(
                [first for _, first in curved],
                parameters,
                [parts[index] for index, _ in curved],
                retain_graph=True,
                allow_unused=True,
            )
        flat = [
            p.new_zeros(p.numel()) if second is None else second.reshape(-1)
            for second, p in zip(seconds, parameters, strict=True)
        ]
        return torch.cat(flat).to(vector.dtype)

    return product


def _lanczos(product: Callable[[Tensor], Tensor], start: Tensor, steps: int, tolerance: float) -> Curvature:
    basis = start.new_empty(steps, len(start))
    basis[0] = start / start.norm()
    diagonal: list[float] = []
    off: list[float] = []
    value, ritz, converged = 0.0, torch.ones(1, dtype=torch.float64), False
    for step in range(steps):
        image = product(basis[step])
        diagonal.append(float(torch.dot(basis[step], image)))
        scale = float(image.norm())
        if not torch.isfinite(torch.tensor([diagonal[-1], scale])).all():
            what = f"the Hessian-vector product of iteration {step + 1} is not finite"
            raise DistilvecError(what, remedy="Check loss and weights.")
        known = basis[: step + 1]
        for _ in range(2):  # once is not enough in float32
            image = image - known.T @ (known @ image)
        rest = float(image.norm())
        values, vectors = eigh_tridiagonal(diagonal, off)
        value, ritz = float(values[-1]), torch.from_numpy(vectors[:, -1])
        spread = float(abs(values).max())
        exhausted = rest <= torch.finfo(start.dtype).eps * len(diagonal) * max(scale, spread)
        converged = exhausted or rest * abs(float(ritz[-1])) <= tolerance * abs(value)
        if converged or step + 1 == steps:
            break
        off.append(rest)
        basis[step + 1] = image / rest
    vector = ritz.to(basis) @ basis[: len(diagonal)]
    return Curvature(value, vector / vector.norm(), len(diagonal), converged)
