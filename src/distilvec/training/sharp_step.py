"""One sharpness-aware training step: gradient, ascent, gradient there, back."""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from distilvec.optim import SharpnessAware, domain_ascent
from distilvec.training.distributed import gather_rows, world_size

logger = logging.getLogger(__name__)


class Trainer(Protocol):
    """What a step uses of the trainer."""

    accelerator: Any
    optimizer: Any
    share: float
    distiller: Any

    def run_forward(self, model: nn.Module, inputs: dict[str, Any], *, perturbed: bool = False) -> dict[str, Any]:
        """The distiller's result on one micro-batch."""
        ...


class SharpStep:
    """The step that `DistillationTrainer` takes where the optimiser is `SharpnessAware`.

    Per micro-batch (m-sharpness): the gradients accumulated so far are put aside, the first pass gives the
    direction of the ascent, the second pass at the perturbed weights gives the gradient that counts. Per batch: the
    micro-batches of an optimiser step are kept, and the ascent follows the gradient of all of them.

    Args:
        trainer: whose forward, accelerator and optimiser are used.
        fresh_dropout: draw new dropout masks in the second pass.
        per_batch: one ascent per optimiser step instead of one per micro-batch.
        local: leave the ascent's gradient to each rank (no all-reduce).
        domain_weight: weight of the variance between domains in the ascent's objective (DISAM), or None.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        fresh_dropout: bool,
        per_batch: bool,
        local: bool,
        domain_weight: float | None,
    ) -> None:
        self.trainer, self.fresh_dropout, self.per_batch = trainer, fresh_dropout, per_batch
        self.local, self.domain_weight = local, domain_weight
        self.window: list[tuple[dict[str, Any], dict[str, Any], float]] = []
        self.aside: list[tuple[nn.Parameter, Tensor]] = []
        self.skipped = 0

    def __call__(self, model: nn.Module, inputs: dict[str, Any]) -> Tensor:
        """Leaves the gradients of the step on the parameters; returns the unperturbed loss."""
        trainer = self.trainer
        optimizer: SharpnessAware = getattr(trainer.optimizer, "optimizer", trainer.optimizer)  # type: ignore[arg-type, assignment]
        share = trainer.share
        if optimizer.rho == 0 or optimizer.count % optimizer.every:
            result = trainer.run_forward(model, inputs)
            trainer.accelerator.backward(result["loss"] * share)
            return result["loss"].detach()
        first_of_window = not self.window
        if first_of_window:
            self.aside = self._take_gradients()
        self.window.append((inputs, _generator_state(), share))
        with self._synchronised(model, not self.local):
            result = trainer.run_forward(model, inputs)
            trainer.accelerator.backward(self._objective(result) * share)
        if self.per_batch and not trainer.accelerator.gradient_state.sync_gradients:
            return result["loss"].detach()
        optimizer.ascend()
        self._take_gradients()
        after = _generator_state()
        statistics = _statistics(trainer.distiller)
        try:
            with self._synchronised(model, True):
                for kept, state, part in self.window:
                    if not self.fresh_dropout:
                        _restore_generators(state)
                    second = trainer.run_forward(model, kept, perturbed=True)
                    trainer.accelerator.backward(second["loss"] * part)
        finally:
            optimizer.restore()
            _restore_statistics(statistics)
            self.window.clear()
        if not self.fresh_dropout:
            _restore_generators(after)
        self._add_back()
        return result["loss"].detach()

    def _objective(self, result: dict[str, Any]) -> Tensor:
        """What the ascent climbs: the loss, or the loss minus the variance between domains."""
        loss: Tensor = result["loss"]
        items, domains, counting = result["items"], result["domains"], result["counting"]
        if self.domain_weight is None or items is None or domains is None:
            return loss
        if not self.local and not self.trainer.distiller.gathers:
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
        parameters = self.trainer.distiller.parameters()
        taken = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        for parameter, _ in taken:
            parameter.grad = None
        return taken

    def _add_back(self) -> None:
        """Add the gradients put aside; drop this window's gradient where it is not finite."""
        gradients = [p.grad for p in self.trainer.distiller.parameters() if p.grad is not None]
        norms = torch.stack(torch._foreach_norm(gradients))
        if not torch.isfinite(norms).all():
            self._take_gradients()
            self.skipped += 1
            logger.warning("The gradient at the perturbed weights is not finite; this step is left out.")
        for parameter, gradient in self.aside:
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        self.aside = []

    @contextlib.contextmanager
    def _synchronised(self, model: nn.Module, on: bool) -> Any:
        """Gradients are averaged over ranks inside (also for micro-batches that are not the last), or not at all."""
        if world_size() == 1 or not hasattr(model, "require_backward_grad_sync"):
            yield
            return
        wrapped: Any = model
        before, wrapped.require_backward_grad_sync = wrapped.require_backward_grad_sync, on
        try:
            yield
        finally:
            wrapped.require_backward_grad_sync = before


def _statistics(module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """The running statistics of the batch norms in a module, each with a copy.

    A forward pass in training takes statistics, and those at perturbed weights are of a network that never ships.
    """
    norms = [each for each in module.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
    return [(value, value.clone()) for norm in norms for value in norm.buffers(recurse=False)]


@torch.no_grad()
def _restore_statistics(kept: list[tuple[Tensor, Tensor]]) -> None:
    for value, copy in kept:
        value.copy_(copy)


def _generator_state() -> dict[str, Any]:
    """The state of the generators that dropout draws from."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def _restore_generators(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
    if "mps" in state:
        torch.mps.set_rng_state(state["mps"])
