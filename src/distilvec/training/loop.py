"""The training loop, from the first batch to the last checkpoint.

An epoch is a row of batches in an order that follows from seed and epoch. A step takes `gradient_accumulation_steps`
of them: forward, backward, for each once more at perturbed weights where steps are sharpness-aware; then the gradient
is made shorter and the optimiser moves. What comes due at a step follows it: a line of the log, an evaluation, a
checkpoint. Where a training is follows from the number of its steps alone, so that a resumed one repeats what the
uninterrupted one would have done, bit for bit.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.utils.data import DataLoader

from distilvec.errors import DistilvecError
from distilvec.interruption import StopSignals
from distilvec.progress import Ticker
from distilvec.recipe import OptimizerSection, TrainingSection
from distilvec.training import checkpoint as checkpoints
from distilvec.training import distributed as ranks
from distilvec.training import sharding
from distilvec.training.data import Collator, amount
from distilvec.training.distributed import rank, world_size
from distilvec.training.generators import generators, set_generators
from distilvec.training.items import share_room
from distilvec.training.log import RunLog, Sums
from distilvec.training.optimizers import make_optimizer, make_schedule
from distilvec.training.sample import on_device
from distilvec.training.samplers import BucketedBatches
from distilvec.training.step import Distiller

if TYPE_CHECKING:
    from accelerate import Accelerator

    from distilvec.training.sharpness import SharpStep

#: Seconds between checkpoints where the recipe names no steps: an epoch can be days.
HALF_HOUR = 1800.0


@dataclass
class Loop:
    """One training of a distiller.

    Attributes:
        distiller: what is trained; sharded, it has no weights but at an evaluation, a checkpoint, and at the end.
        training, section: the recipe's sections `training` and `optimizer`.
        folder: of the run; gets `checkpoints/` and `run.jsonl`.
        rows: corpus rows to train on, int64.
        collator: corpus rows -> tensors.
        accelerator: of `join`.
        evaluate: () -> held-out metrics of the distiller's student, or None.
        describe: corpus rows -> texts, for error messages.
        data: what is trained on, as `data_mark` says it; kept in checkpoints.
        model: what a step runs: the distiller, wrapped or sharded where there are several processes.
        signals: Ctrl-C or SIGTERM, noted; the training ends politely at the end of the step.
    """

    distiller: Distiller
    training: TrainingSection
    section: OptimizerSection
    folder: Path
    rows: np.ndarray
    collator: Collator
    accelerator: Accelerator
    evaluate: Callable[[], dict[str, float]] | None = None
    describe: Callable[[Sequence[int]], list[str]] | None = None
    data: dict[str, Any] = field(default_factory=dict)
    signals: StopSignals = field(default_factory=StopSignals)

    def __post_init__(self) -> None:
        training, self.device, rows = self.training, self.accelerator.device, np.asarray(self.rows)
        self.sampler = BucketedBatches(
            self.collator.lengths(rows),
            training.batch,
            seed=training.seed,
            rank=rank(),
            world=world_size(),
            drop_last=training.dataloader_drop_last,
            weights=self.collator.weights(rows),
        )
        self.per_epoch = max(1, math.ceil(len(self.sampler) / training.gradient_accumulation_steps))
        self.steps = training.steps(len(self.rows), self.per_epoch)
        self.logging_steps = training.logging_steps or max(1, min(50, self.per_epoch // 10))
        self.saved_every = training.save_every or (training.evaluate_every if training.best else None) or self.per_epoch
        self.trained, self.sharded = self.distiller.to(self.device), training.sharded and world_size() > 1
        if self.sharded:
            self.trained = sharding.sharded(self.distiller, self.device)
        self.model = self.trained if self.sharded else sharding.replicated(self.trained, self.device)
        narrow = self.accelerator.mixed_precision == "bf16"
        self.optimizer = make_optimizer(self.trained, training, self.section, narrow=narrow)
        self.schedule = make_schedule(training, self.optimizer, self.steps)
        self.sharp: SharpStep | None = None
        if self.section.sharpness is not None:
            from distilvec.training.sharpness import SharpStep

            self.sharp = SharpStep(self, self.section.sharpness)
        self.state, self.sums = checkpoints.State(global_step=0), Sums()
        self.progress, self.note, self.stopped = Ticker("training", "steps"), "", False
        self.step_rows: list[Tensor] = []

    # the whole

    def train(self, checkpoint: Path | None = None) -> None:
        """Train from a checkpoint, or from the beginning, to the end, to the end of patience, or to a signal.

        Raises:
            DivergedError: a loss, gradient or weight is not finite; it names the rows.
            DataError: the checkpoint is damaged.
        """
        self.began = self.saved = time.monotonic()
        if checkpoint is not None:
            self._resume(checkpoint)
        resumed = None if checkpoint is None else self.state.global_step
        self.log = RunLog(self.folder / "run.jsonl" if rank() == 0 else None, self.accelerator, resumed)
        if self.training.report_to:
            self.log.open_trackers(self.training, self.section)
        try:
            if self.training.eval_on_start and checkpoint is None and self._evaluate():
                self._save()  # the start may stay the best
            while not self._is_over():
                self._run_epoch()
            self._finish()
        finally:
            self.log.close()
            vars(self).pop("loader", None)  # and its workers

    def _run_epoch(self) -> None:
        """The steps of an epoch that are not done yet, or those up to the end of the training."""
        epoch, done = divmod(self.state.global_step, self.per_epoch)
        size = self.training.gradient_accumulation_steps  # micro-batches of a step
        self.sampler.set_epoch(epoch, done * size)
        batches = iter(self.loader)
        while window := list(itertools.islice(batches, size)):
            self._follow(self.step(window))
            if self._is_over():
                break

    def _is_over(self) -> bool:
        impatient = self.state.worse >= (self.training.patience or math.inf)
        return self.stopped or impatient or self.state.global_step >= self.steps

    def _finish(self) -> None:
        """The last line of the log, and the best weights."""
        checkpoints.check_finite(self._whole(), self.state.global_step)
        total, steps = self.sums.total + float(self.sums.loss), self.state.global_step
        self._log({"train_runtime": round(self.seconds, 4), "train_loss": total / max(steps, 1)})
        if self.training.best and self.state.best_step is not None:
            checkpoints.load_strictly(self.distiller, self.home / f"checkpoint-{self.state.best_step}")
            if self.training.save_total_limit == 1 and rank() == 0 and not self.stopped:
                checkpoints.keep(self.home, 0, self.state.best_step)

    @property
    def home(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def epoch(self) -> float:
        """Epochs done, and the part of the one that is under way."""
        epoch, done = divmod(self.state.global_step, self.per_epoch)
        return epoch + done * self.training.gradient_accumulation_steps / max(len(self.sampler), 1)

    @property
    def seconds(self) -> float:
        """Wall clock of the training, with that of the calls before it up to the checkpoints that were resumed from."""
        return time.monotonic() - self.began + self.sums.seconds

    # batches

    @functools.cached_property
    def loader(self) -> DataLoader[Any]:
        """Batches of an epoch; nothing is drawn from global generators."""
        workers = self.training.dataloader_num_workers
        return DataLoader(
            self.rows,  # type: ignore[arg-type]  # the collator does the rest, a batch at a time
            batch_sampler=self.sampler,
            collate_fn=self.collator,
            num_workers=workers,
            pin_memory=self.device.type == "cuda",
            persistent_workers=workers > 0,
            generator=torch.Generator().manual_seed(self.training.seed),
            worker_init_fn=functools.partial(share_room, self.collator.tokens),
        )

    # a step

    def step(self, window: list[dict[str, Any]]) -> Tensor:
        """One step of the optimiser; returns the norm of the gradient, before it is made shorter."""
        self.model.train()
        self.trained.at(self.state.global_step / self.steps)
        amounts = torch.tensor([amount(batch) for batch in window], dtype=torch.float64)
        if len(window) > 1 and world_size() > 1:
            amounts = ranks.sum_over_ranks(amounts.to(self.device)).cpu()
        counted = amounts[:, 1 if amounts[:, 1].sum() > 0 else 0]  # see `amount`
        shares = (counted / counted.sum()).tolist()
        for number, (inputs, share) in enumerate(zip(window, shares, strict=True), 1):
            loss = self.micro_step(on_device(inputs, self.device), share, last=number == len(window))
            self.sums.loss = self.sums.loss + loss * share
        norm = self._clip()
        scaler = self.accelerator.scaler
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        return norm

    def micro_step(self, inputs: dict[str, Any], share: float, *, last: bool) -> Tensor:
        """The gradients of a micro-batch, added to those that are there; returns its loss.

        Args:
            share: for how much it counts in its step.
            last: whether it is the last of its step, after which gradients are averaged over processes.
        """
        loss = (self.sharp or self.plain_step)(inputs, share, last=last)
        if not self.trained.trains_student:
            for parameter in self.trained.student.parameters():
                parameter.grad = None
        return loss

    def plain_step(self, inputs: dict[str, Any], share: float, *, last: bool) -> Tensor:
        """`micro_step` with one forward and one backward pass."""
        with self.synchronised(last):
            result = self.forward(inputs)
            self.backward(result["loss"] * share)
        return result["loss"].detach()

    def forward(self, inputs: dict[str, Any], *, perturbed: bool = False) -> dict[str, Any]:
        """One forward of the distiller.

        At perturbed weights it neither stops at a loss that is not finite nor notes the terms for the log.
        """
        with self.accelerator.autocast():
            result: dict[str, Any] = self.model(**inputs)
        if not perturbed:
            if not torch.isfinite(result["loss"]):
                from distilvec.training.diverged import diverged_loss

                step, gathered = self.state.global_step + 1, self.trained.gathers
                raise diverged_loss(result, inputs, self.describe, step, gathered=gathered)
            self.sums.add(result)
            self.step_rows.append(inputs["rows"])
        return result

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss to those that are there."""
        scaler = self.accelerator.scaler
        (loss if scaler is None else scaler.scale(loss)).backward()

    @contextlib.contextmanager
    def synchronised(self, on: bool) -> Iterator[None]:
        """Gradients of what runs inside are averaged over processes, with those that waited for it, or wait."""
        if world_size() == 1:
            yield
        elif self.sharded:
            self.model.set_requires_gradient_sync(on)  # type: ignore[operator]  # of FSDPModule
            yield
            if on:
                sharding.average_whole(self.model.parameters())
        else:
            waiting: AbstractContextManager[Any] = contextlib.nullcontext() if on else self.model.no_sync()  # type: ignore[operator]
            with waiting:
                yield

    def _clip(self) -> Tensor:
        """Make the gradient shorter; stop before one that is not finite reaches the weights."""
        scaler = self.accelerator.scaler
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        norm = sharding.clip(self.model.parameters(), self.training.max_grad_norm)
        if scaler is None and not math.isfinite(float(norm)):  # loss scaling leaves out such steps itself
            from distilvec.training.diverged import diverged_gradient

            raise diverged_gradient(torch.cat(self.step_rows), self.describe, self.state.global_step + 1)
        self.step_rows = []
        return norm

    # what follows a step

    def _follow(self, norm: Tensor) -> None:
        """The schedule's step, and what comes due: a line of the log, an evaluation, a checkpoint, the end."""
        rate = self.schedule.get_last_lr()[0]
        self.schedule.step()
        self.model.zero_grad()
        self.state.global_step += 1
        step, every = self.state.global_step, self.training.evaluate_every
        self.stopped = ranks.any_rank(self.signals.number is not None)
        if step % self.logging_steps == 0:
            entry = self.sums.entry(step)
            self.note = f"loss {entry['loss']:.4f}"
            self._log({"loss": entry.pop("loss"), "grad_norm": float(norm), "learning_rate": rate, **entry})
        if rank() == 0:
            self.progress(step, self.steps, self.note)
        last, better = step >= self.steps, False
        if every is not None and (last or step % every == 0):
            better = self._evaluate()
        if better or last or self.stopped or step % self.saved_every == 0 or self._is_long_ago():
            self._save()

    def _is_long_ago(self) -> bool:
        """Tell whether a checkpoint is due by the clock; asked every 16th step, because all ranks have to agree."""
        if self.training.save_every is not None or self.training.best is not None or self.state.global_step % 16:
            return False
        return ranks.any_rank(time.monotonic() - self.saved > HALF_HOUR)

    def _log(self, entry: dict[str, Any]) -> None:
        entry = {**entry, "epoch": self.epoch}
        self.state.log_history.append({**entry, "step": self.state.global_step})
        self.log.write({"step": self.state.global_step, **entry})

    def _evaluate(self) -> bool:
        """Measure and log held-out metrics of the student; returns whether it is the best so far."""
        if self.evaluate is None:
            return False
        self._whole().eval()
        found = self.evaluate()
        sharding.release(self.distiller, self.trained)
        if world_size() > 1:  # a best step, or the end of patience, is one for all
            values = torch.tensor(list(found.values()), dtype=torch.float64).to(self.device)
            found = dict(zip(found, ranks.mean_over_ranks(values).tolist(), strict=True))
        self.distiller.train()
        name = (self.training.best or "").removeprefix("eval_")
        if name and name not in found:
            raise DistilvecError(f'no metric "{name}" among {", ".join(found)}', where="training.best")
        self._log({f"eval_{metric}": value for metric, value in found.items()})
        if not name:
            return False
        best, value = self.state.best_metric, float(found[name])
        better = best is None or (value > best if self.training.greater_is_better else value < best)
        if better:
            self.state.best_metric, self.state.best_step = value, self.state.global_step
        self.state.worse = 0 if better else self.state.worse + 1
        return better

    # checkpoints

    def _whole(self) -> Distiller:
        """The distiller with the weights of now."""
        if self.sharded:
            sharding.collect(self.trained, self.distiller)
            self.distiller.at(self.trained.progress)
        return self.distiller

    def _save(self) -> None:
        """Write a checkpoint; every process hands what is its own to the first."""
        scaler, home, distiller = self.accelerator.scaler, self.home, self._whole()
        checkpoints.check_finite(distiller, self.state.global_step)
        optimizer = {
            "optimizer": sharding.whole_state(self.optimizer, checkpoints.partial(home, self.state.global_step)),
            "schedule": self.schedule.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }
        sums = asdict(self.sums) | {"seconds": self.seconds}
        every = gather_object([{"generators": generators(), "sums": sums}])
        if rank() == 0:
            self.state.data = self.data
            checkpoints.write(home, self.state, distiller, optimizer, every)
            checkpoints.keep(home, self.training.save_total_limit, self.state.best_step)
        ranks.barrier()
        sharding.release(self.distiller, self.trained)
        self.saved = time.monotonic()

    def _resume(self, folder: Path) -> None:
        """Take up everything as it was when the checkpoint was written."""
        self.state = checkpoints.verify(folder, self.steps)
        checkpoints.load_strictly(self._whole(), folder)
        if self.sharded:
            sharding.spread(self.distiller, self.trained)
        kept = checkpoints.read_optimizer(folder, self.optimizer, self.sharded)
        own = checkpoints.read_rank(folder)
        with checkpoints.readable(folder / checkpoints.OPTIMIZER):
            sharding.load_state(self.optimizer, kept["optimizer"])
            self.schedule.load_state_dict(kept["schedule"])
            if self.accelerator.scaler is not None:
                self.accelerator.scaler.load_state_dict(kept["scaler"])
        with checkpoints.readable(folder / checkpoints.RANKS):
            self.sums = Sums(**on_device(own["sums"], self.device))
            set_generators(own["generators"])
