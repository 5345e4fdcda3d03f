"""One sharpness-aware training step: gradient, ascent, gradient there, back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from distilvec.optim import domain_ascent
from distilvec.optim.sharpness import local
from distilvec.training.distributed import any_rank, gather_rows
from distilvec.training.generators import generators, set_generators

if TYPE_CHECKING:
    from distilvec.recipe import SharpnessSection

logger = logging.getLogger(__name__)


class SharpStep:
    """Leaves the gradients of a sharpness-aware step on the parameters of a `Loop`'s model.

    Per micro-batch (m-sharpness): the gradients accumulated so far are put aside, the first pass gives the
    direction of the ascent, the second pass at the perturbed weights gives the gradient that counts. Per batch: the
    micro-batches of an optimiser step are kept, and the ascent follows the gradient of all of them.

    Args:
        loop: a `Loop`, whose forward and backward are used, and whose optimiser is `SharpnessAware`.
        section: how the recipe wants it.
    """

    def __init__(self, loop: Any, section: SharpnessSection) -> None:
        self.loop, self.fresh_dropout = loop, section.fresh_dropout
        self.per_batch, self.local = section.per == "batch", section.ascent == "local"
        weight = 0.1 if section.domains is None else section.domains
        self.domain_weight = weight if section.kind == "disam" else None
        self.window: list[tuple[dict[str, Any], dict[str, Any], float]] = []
        self.aside: list[tuple[nn.Parameter, Tensor]] = []

    def __call__(self, inputs: dict[str, Any], share: float, *, last: bool) -> Tensor:
        """`Loop.micro_step` with two passes; returns the unperturbed loss."""
        loop, optimizer = self.loop, self.loop.optimizer
        if optimizer.rho == 0 or optimizer.count % optimizer.every:
            return loop.plain_step(inputs, share, last=last)
        if not self.window:
            self.aside = self._take_gradients()
        self.window.append((inputs, generators(), share))
        # Gradients of all processes, also for a micro-batch that is not the last.
        with loop.synchronised(not self.local):
            result = loop.forward(inputs)
            loop.backward(self._objective(result) * share)
        loss: Tensor = result["loss"].detach()
        if self.per_batch and not last:
            return loss
        optimizer.ascend()
        self._take_gradients()
        after, statistics = generators(), _statistics(loop.model)
        try:
            with loop.synchronised(True):
                for kept, state, part in self.window:
                    if not self.fresh_dropout:
                        set_generators(state)
                    loop.backward(loop.forward(kept, perturbed=True)["loss"] * part)
        finally:
            optimizer.restore()
            for value, copy in statistics:
                value.copy_(copy)
            self.window.clear()
        if not self.fresh_dropout:
            set_generators(after)
        self._add_back()
        return loss

    def _objective(self, result: dict[str, Any]) -> Tensor:
        """Return what the ascent climbs: the loss, or the loss minus the variance between domains."""
        loss: Tensor = result["loss"]
        items, domains, counting = result["items"], result["domains"], result["counting"]
        if self.domain_weight is None or items is None or domains is None:
            return loss
        if not self.local and not self.loop.distiller.gathers:
            items, domains = gather_rows(items), gather_rows(domains)
            counting = None if counting is None else gather_rows(counting)
        if counting is not None:
            items, domains = items[counting], domains[counting]
            if not len(items):
                return loss
        # Whole-batch terms have no rows; they stay in the objective as they are.
        return loss - items.mean() + domain_ascent(items, domains, self.domain_weight)

    def _take_gradients(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Remove and return the gradients that are there."""
        parameters = self.loop.model.parameters()
        taken = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        for parameter, _ in taken:
            parameter.grad = None
        return taken

    def _add_back(self) -> None:
        """Add the gradients put aside; drop this window's gradient where it is not finite."""
        gradients = [local(p.grad) for p in self.loop.model.parameters() if p.grad is not None]
        norms = torch.stack(torch._foreach_norm(gradients))
        if any_rank(not torch.isfinite(norms).all()):
            self._take_gradients()
            self.loop.sums.skipped += 1
            logger.warning("The gradient at the perturbed weights is not finite; this step is left out.")
        for parameter, gradient in self.aside:
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        self.aside = []


def _statistics(module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """The running statistics of the batch norms in a module, each with a copy.

    A forward pass in training takes statistics, and those at perturbed weights are of a network that never ships.
    """
    norms = [each for each in module.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
    return [(value, value.clone()) for norm in norms for value in norm.buffers(recurse=False)]
