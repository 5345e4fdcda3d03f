"""Sharpness-aware steps around any torch optimizer: SAM, ASAM and the ascent objective of DISAM.

    gradients at w -> ascend() -> gradients at w + e -> restore() -> step()

SAM (Foret et al. 2021):   e = rho g / ||g||
ASAM (Kwon et al. 2021):   e = rho T^2 g / ||T g||,  T = |w| + eta
DISAM (Zhang et al. 2024): SAM on the objective that `domain_ascent` returns.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from distilvec.errors import DistilvecError, nearest

_RHO = {"asam": 0.5, "sam": 0.05}
_COUNTER = "sharpness"


def _of_base(name: str) -> Any:
    """A property that is the base optimizer's, read and written."""
    return property(lambda self: getattr(self.base, name), lambda self, value: setattr(self.base, name, value))


class SharpnessAware(Optimizer):
    """Wraps an optimizer with the ascent of SAM or ASAM; to schedulers and trainers it is that optimizer.

    Parameters of a group with `perturb: False` are left where they are, and so are parameters without a
    gradient; neither enters the norm. The kept weights are one copy of what is perturbed.

    Args:
        base: the optimizer that makes the step; its groups, state and defaults are this one's.
        kind: "sam" or "asam".
        rho: radius, >= 0; None is 0.5 for asam and 0.05 for sam, the papers' own.
        eta: added to |w| in asam's T, >= 0.
        every: perturb on every n-th step only, beginning with the first.
        scale: what |w| is in asam's T: each "elementwise" weight, the norm of its output row ("filter"), or
            the norm of its tensor ("layer").
        bias: asam's T for one-dimensional parameters: "one" (T = 1, as ASAM's code has it for biases), "abs"
            (like the rest) or "exclude" (not perturbed, not in the norm). With "one" the biases of a
            transformer dominate the norm, because its weights are about 0.04.

    Raises:
        DistilvecError: an unknown kind, scale or bias, or a number out of range.

    Source: Foret et al. 2021, eq. 2; Kwon et al. 2021, eq. 8 and algorithm 1.

    >>> w = torch.nn.Parameter(torch.tensor([[3.0, 4.0]]))
    >>> optimizer = SharpnessAware(torch.optim.SGD([w], lr=0.1), kind="sam", rho=1.0)
    >>> w.square().sum().backward()
    >>> optimizer.ascend(), w.data.tolist()
    (True, [[3.5999999046325684, 4.800000190734863]])
    >>> optimizer.restore(); w.data.tolist()
    [[3.0, 4.0]]
    """

    def __init__(
        self,
        base: Optimizer,
        kind: Literal["sam", "asam"] = "asam",
        rho: float | None = None,
        eta: float = 0.01,
        every: int = 1,
        scale: Literal["elementwise", "filter", "layer"] = "elementwise",
        bias: Literal["one", "abs", "exclude"] = "exclude",
    ) -> None:
        # Optimizer.__init__ is not called on purpose: groups, state and hooks are the base's.
        _check("kind", kind, ("sam", "asam"))
        _check("scale", scale, ("elementwise", "filter", "layer"))
        _check("bias", bias, ("one", "abs", "exclude"))
        rho = _RHO[kind] if rho is None else rho
        if rho < 0 or eta < 0 or every < 1:
            raise DistilvecError(f"rho {rho} and eta {eta} must not be negative, every {every} at least 1")
        self.base = base
        self.kind, self.rho, self.eta, self.every, self.scale, self.bias = kind, rho, eta, every, scale, bias
        self.count = 0
        self._moved: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._sharded: list[DTensor | None] = []

    # The wrapper looks like the base optimizer.

    param_groups, state, defaults = map(_of_base, ("param_groups", "state", "defaults"))

    def __getattr__(self, name: str) -> Any:
        # Hook dictionaries and the private flags of Optimizer's inherited methods live in the base.
        if name == "base":
            raise AttributeError(name)
        return getattr(self.base, name)

    def __repr__(self) -> str:
        return f"SharpnessAware({self.kind}, rho={self.rho}, every={self.every}, base={self.base!r})"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.base.add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.base.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The base's state and the step counter."""
        return {**self.base.state_dict(), _COUNTER: {"count": self.count}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` gave.

        Raises:
            DistilvecError: the state was saved without sharpness-aware steps.
        """
        if _COUNTER not in state_dict:
            raise DistilvecError(
                "this optimizer state was saved without sharpness-aware steps",
                where="optimizer.sharpness",
                remedy="Resume with the optimizer section of the original recipe.",
            )
        self.base.load_state_dict({key: value for key, value in state_dict.items() if key != _COUNTER})
        self.count = int(state_dict[_COUNTER]["count"])

    def step(self, closure: Any = None) -> Any:
        """The base optimizer's step, from the gradients present.

        Raises:
            RuntimeError: the weights are perturbed.
        """
        if self._moved:
            raise RuntimeError("step() at the perturbed weights: call restore() first")
        self.count += 1
        return self.base.step(closure)

    # The ascent.

    @torch.no_grad()
    def ascend(self) -> bool:
        """w <- w + e(w), from the gradients present; keeps w.

        Returns:
            Whether the weights were moved: False on a step that `every` skips, for rho = 0, and where no
            parameter that may be perturbed has a gradient. The gradients at hand are then those of the step.

        Raises:
            RuntimeError: the weights are perturbed already.
        """
        if self._moved:
            raise RuntimeError("ascend() at weights that are perturbed already: call restore() first")
        if self.rho == 0 or self.count % self.every:
            return False
        perturbed = self._perturbed()
        if not perturbed:
            return False
        self._sharded = [weight if isinstance(weight, DTensor) else None for weight in perturbed]
        weights = [local(weight) for weight in perturbed]
        gradients = [local(weight.grad) for weight in perturbed if weight.grad is not None]
        self._moved, self._kept = weights, [weight.detach().clone() for weight in weights]
        if self.kind == "sam":
            torch._foreach_add_(weights, torch._foreach_mul(gradients, self._radius(gradients)))
            return True
        scales = self._scales(weights)
        scaled = torch._foreach_mul(gradients, scales)
        torch._foreach_mul_(scales, self._radius(scaled))
        torch._foreach_addcmul_(weights, scaled, scales)
        return True

    @torch.no_grad()
    def restore(self) -> None:
        """w <- kept w, bit for bit. Does nothing where nothing was moved."""
        if self._moved:
            torch._foreach_copy_(self._moved, self._kept)
            self._moved, self._kept = [], []

    def _perturbed(self) -> list[Tensor]:
        skip_vectors = self.kind == "asam" and self.bias == "exclude"
        return [
            weight
            for group in self.param_groups
            if group.get("perturb", True)
            for weight in group["params"]
            if weight.grad is not None and not (skip_vectors and weight.ndim <= 1)
        ]

    def _radius(self, gradients: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
        """rho / ||gradients||, a 0-dimensional tensor, so that a GPU need not be waited for."""
        norms = self._norms(gradients)
        norm: Tensor = torch.linalg.vector_norm(torch.stack([part.to(norms[0].device) for part in norms]))
        return norm.clamp_min(1e-12).reciprocal() * self.rho

    def _norms(self, tensors: list[Tensor] | tuple[Tensor, ...]) -> list[Tensor]:
        """The norm of each whole tensor; of a sharded one (FSDP) this process has a part."""
        norms = list(torch._foreach_norm(tensors))
        places = [place for place, weight in enumerate(self._sharded) if weight is not None]
        if places:
            squares = torch.stack([norms[place] for place in places]).square()
            dist.all_reduce(squares, group=self._sharded[places[0]].device_mesh.get_group())  # type: ignore[union-attr]
            for place, square in zip(places, squares, strict=True):
                norms[place] = square.sqrt()
        return norms

    def _scales(self, weights: list[Tensor]) -> list[Tensor]:
        """ASAM's T, each broadcastable to its weight."""
        if self.scale == "elementwise":
            scales = list(torch._foreach_abs(weights))
        elif self.scale == "layer":
            scales = self._norms(weights)
        else:
            scales = [
                torch.linalg.vector_norm(weight.flatten(1), dim=1).view(-1, *[1] * (weight.ndim - 1))
                if weight.ndim > 1
                else weight.abs()
                for weight in weights
            ]
        torch._foreach_add_(scales, self.eta)
        if self.bias == "one":
            scales = [
                torch.ones_like(scale) if weight.ndim <= 1 else scale
                for scale, weight in zip(scales, weights, strict=True)
            ]
        return scales


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor; of one that is not sharded all of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def domain_ascent(losses: Tensor, domains: Tensor, weight: float = 0.1) -> Tensor:
    """The objective whose gradient DISAM ascends: mean loss - weight * variance between domains.

    Args:
        losses: [N] per-row losses.
        domains: int64 [N], the domain of each row.
        weight: lambda, >= 0; 0.1 in the paper.

    Returns:
        [] the mean of the losses minus `weight` times the population variance of the mean losses of the M
        domains present, 1/(2 M^2) sum_ij (L_i - L_j)^2. One domain has variance 0. No rows give 0.

    Raises:
        DistilvecError: losses and domains are not two vectors of one length.

    Source: Zhang et al. 2024, eqs. 10 to 12.

    >>> domain_ascent(torch.tensor([1.0, 1.0, 3.0]), torch.tensor([0, 0, 5]), weight=0.5).item()
    1.1666666269302368
    """
    if losses.ndim != 1 or losses.shape != domains.shape:
        shapes = f"losses {tuple(losses.shape)} and domains {tuple(domains.shape)}"
        raise DistilvecError(f"{shapes} must both be [N]")
    if not losses.numel():
        return losses.sum()
    losses = losses.float() if losses.dtype in (torch.bfloat16, torch.float16) else losses
    _, index, counts = torch.unique(domains, return_inverse=True, return_counts=True)
    means = losses.new_zeros(len(counts)).index_add(0, index, losses) / counts
    objective: Tensor = losses.mean() - weight * (means - means.mean()).square().mean()
    return objective


def _check(key: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise DistilvecError(f'unknown {key} "{value}"', remedy=nearest(value, known))
