"""The training loop: transformers' Trainer, with sharpness-aware steps, terms in the log and exact resumption."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils.memory import clear_device_cache
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import PrinterCallback, TrainingArguments

from distilvec.errors import DistilvecError, DivergedError, EnvironmentProblem
from distilvec.evenly import evenly_spaced
from distilvec.modules.blocks import find_writer
from distilvec.modules.causal import answer_places
from distilvec.optim import Muon, SharpnessAware, hidden_matrices
from distilvec.training.checkpoints import CheckpointedTrainer
from distilvec.training.data import Collator, Rows
from distilvec.training.distiller import Distiller
from distilvec.training.distributed import gather_rows, mean_over_ranks, rank, sum_over_ranks, world_size
from distilvec.training.items import share_room
from distilvec.training.samplers import BucketedBatches
from distilvec.training.sharp_step import SharpStep

#: Texts whose lengths say which batch a rehearsal takes.
_REHEARSED = 100_000
_RHO = {"disam": 0.01}  # where the recipe is silent; those of sam and asam are the optimizer's own


class EpochLoader(DataLoader[Any]):
    """A DataLoader that tells its batch sampler which epoch it is, and draws nothing from global generators."""

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


class DistillationTrainer(CheckpointedTrainer):
    """transformers.Trainer for a `Distiller`.

    What it adds: sharpness-aware steps, every term in the log, a learning rate of their own for the heads,
    held-out metrics from a callable, an error with the rows at a loss that is not finite, checkpoints that appear
    whole or not at all and are loaded strictly, `save_model` and `push_to_hub` that give the student.

    Args:
        distiller: student and built method.
        args: from `training_arguments`.
        rows: corpus rows to train on, int64.
        collator: corpus rows -> tensors.
        heads_lr: learning rate of the heads; None = the student's.
        muon: orthogonal steps for the matrices of the student's linear layers.
        sharpness: keyword arguments of `SharpnessAware` and `SharpStep`, or None.
        evaluate: student -> held-out metrics, or None.
        describe: corpus rows -> texts, for error messages.
        save_student: (folder) -> None, writes the student as it ships.
    """

    def __init__(
        self,
        distiller: Distiller,
        args: TrainingArguments,
        *,
        rows: Any,
        collator: Collator,
        heads_lr: float | None = None,
        muon: bool = False,
        sharpness: dict[str, Any] | None = None,
        evaluate: Callable[[], dict[str, float]] | None = None,
        describe: Callable[[Sequence[int]], list[str]] | None = None,
        save_student: Callable[[Path], None] | None = None,
        callbacks: list[Any] | None = None,
    ) -> None:
        # More visible devices in one process would become DataParallel, which splits a batch behind our back.
        args._n_gpu = min(args.n_gpu, 1)
        self.distiller, self.rows, self.collator = distiller, rows, collator
        self.heads_lr, self.muon = heads_lr, muon
        self.sharpness = dict(sharpness or {})
        self.evaluate_student, self.describe, self.save_student = evaluate, describe, save_student
        self._terms: dict[str, Tensor] = {}
        self._counts: dict[str, Tensor] = {}
        self._terms_steps = 0
        self._step_rows: list[Tensor] = []
        self._shares: Iterator[float] = iter(())
        self.share = 1.0
        self._train_rows: Dataset[int] = Rows(rows)
        try:
            super().__init__(
                model=distiller,
                args=args,
                data_collator=collator,
                train_dataset=self._train_rows,
                eval_dataset=Rows(rows[:1]) if evaluate else None,
                callbacks=callbacks,
            )
        except Exception as error:
            # A tracker that is not installed, a precision that the device lacks; a hub that does not answer, of which
            # the hub's package says so by whatever client it uses.
            if not (args.push_to_hub or isinstance(error, ImportError | RuntimeError | ValueError | OSError)):
                raise
            raise EnvironmentProblem(f"training cannot be set up ({error})", where="training") from error
        self.model_accepts_loss_kwargs = False
        self.remove_callback(PrinterCallback)
        self.sharp_step = SharpStep(self, **self._sharp_options()) if sharpness is not None else None

    # data

    def get_train_dataloader(self) -> DataLoader[Any]:
        args = self.args
        seed = args.seed if args.data_seed is None else args.data_seed
        sampler = BucketedBatches(
            self.collator.lengths(np.asarray(self.rows)),
            args.per_device_train_batch_size * world_size(),
            seed=seed,
            rank=rank(),
            world=world_size(),
            drop_last=args.dataloader_drop_last,
        )
        workers = args.dataloader_num_workers
        return EpochLoader(
            self._train_rows,
            batch_sampler=sampler,
            collate_fn=self.collator,
            num_workers=workers,
            pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
            persistent_workers=workers > 0 and args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor if workers > 0 else None,
            generator=torch.Generator().manual_seed(seed),
            worker_init_fn=functools.partial(share_room, self.collator.tokens, args.dataloader_persistent_workers),
        )

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        return args.per_device_train_batch_size * world_size() * args.gradient_accumulation_steps

    # optimiser

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            try:
                cls, kwargs = self.get_optimizer_cls_and_kwargs(self.args)
                if self.muon:
                    cls, kwargs = Muon, {**kwargs, "dtype": torch.bfloat16 if self.args.bf16 else torch.float32}
                optimizer = cls(self._parameter_groups(), **kwargs)
            except (ImportError, ValueError, TypeError) as error:
                raise EnvironmentProblem(
                    f'the optimizer "{getattr(self.args.optim, "value", self.args.optim)}" cannot be made ({error})',
                    where="training.optim",
                ) from error
            if self.sharpness:
                options: dict[str, Any] = {
                    key: self.sharpness[key] for key in ("eta", "every", "scale", "bias") if key in self.sharpness
                }
                kind, rho = self.sharpness["kind"], self.sharpness.get("rho")
                options["rho"] = _RHO.get(kind) if rho is None else rho
                optimizer = SharpnessAware(optimizer, kind="sam" if kind == "disam" else kind, **options)
            self.optimizer = optimizer
        return self.optimizer

    def _parameter_groups(self) -> list[dict[str, Any]]:
        """Student and heads, with and without weight decay, matrices apart; every trained parameter in exactly one."""
        decayed = set(self.get_decay_parameter_names(self.distiller))
        students = {id(parameter) for parameter in self.distiller.student.parameters()}
        rates = self.distiller.method.rates()
        paces = {id(parameter): rate for module, rate in rates.items() for parameter in module.parameters()}
        matrices = {id(parameter) for parameter in hidden_matrices(self.distiller.student)} if self.muon else set()
        if (writer := find_writer(self.distiller.student)) is not None:
            matrices.discard(id(writer.head.weight))  # logits of tokens, as little hidden as the table of tokens
        groups: dict[tuple[bool, bool, float, bool], list[nn.Parameter]] = {}
        for name, parameter in self.distiller.named_parameters():
            if parameter.requires_grad:
                own = id(parameter)
                key = own not in students, name not in decayed, paces.get(own, 1.0), own in matrices
                groups.setdefault(key, []).append(parameter)
        return [
            {
                "params": groups[key],
                "lr": pace * (self.heads_lr if heads and self.heads_lr else self.args.learning_rate),
                "weight_decay": 0.0 if plain else self.args.weight_decay,
                "perturb": not heads or self.sharpness.get("heads", True),
                **({"orthogonal": orthogonal} if self.muon else {}),
            }
            for key in sorted(groups)
            for heads, plain, pace, orthogonal in [key]
        ]

    def _sharp_options(self) -> dict[str, Any]:
        kind = self.sharpness["kind"]
        return {
            "fresh_dropout": self.sharpness.get("fresh_dropout", False),
            "per_batch": self.sharpness.get("per", "micro") == "batch",
            "local": self.sharpness.get("ascent", "global") == "local",
            "domain_weight": (0.1 if self.sharpness.get("domains") is None else self.sharpness["domains"])
            if kind == "disam"
            else None,
        }

    # a step

    @property
    def planned_steps(self) -> int:
        """Optimiser steps of the whole training."""
        batches = -(-len(self.rows) // self.get_total_train_batch_size(self.args))
        return self.args.max_steps if self.args.max_steps > 0 else math.ceil(self.args.num_train_epochs * batches)

    def rehearse(self) -> None:
        """The student forward and backward on one batch, without a trace; half of all tokens are in longer texts."""
        some = np.asarray(self.rows)[evenly_spaced(len(self.rows), _REHEARSED)]
        lengths = self.collator.lengths(some)
        order = np.argsort(lengths, kind="stable")
        size = min(self.args.per_device_train_batch_size, len(order))
        if self.distiller.mini_batch_size is not None:  # no more rows at a time than in a step
            size = min(size, max(1, self.distiller.mini_batch_size // len(self.collator.expand(some[:1]))))
        tokens = lengths[order].cumsum()
        start = min(int(np.searchsorted(tokens, tokens[-1] / 2)), len(order) - size)
        features = self.collator.tokens.features(self.collator.expand(some[order[start : start + size]]))
        features, student = self._prepare_inputs(features), self.distiller.student
        training = student.training
        low = torch.autocast(self.args.device.type, torch.bfloat16, enabled=self.args.bf16)
        with torch.random.fork_rng(devices=[]), low:
            student.train()
            output = self.distiller.tap(features, self.distiller.needs.student.views)
        output.embedding.float().square().sum().backward()
        self.distiller.zero_grad(set_to_none=True)
        student.train(training)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The micro-batches of an optimiser step, after which it is known what each of them counts for."""
        batches, count = super().get_batch_samples(epoch_iterator, num_batches, device)
        amounts = torch.tensor([_amount(batch) for batch in batches], dtype=torch.float64).reshape(-1, 2)
        if len(batches) > 1 and world_size() > 1:
            amounts = sum_over_ranks(amounts.to(device)).cpu()
        items, tokens = amounts.T
        counted = tokens if tokens.sum() > 0 else items
        self._shares = iter((counted / counted.sum()).tolist())
        return batches, count

    def _prepare_input(self, data: Any) -> Any:
        if isinstance(data, Tensor) and self.args.device.type == "cuda":  # from pinned memory: nothing waits for it
            return data.to(self.args.device, non_blocking=True)
        return super()._prepare_input(data)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        model.train()
        self.share = next(self._shares, 1.0)
        self.distiller.at(self.state.global_step / max(self.state.max_steps, 1))
        inputs = self._prepare_inputs(inputs)
        if self.sharp_step is not None:
            loss = self.sharp_step(model, inputs)
        else:
            result = self.run_forward(model, inputs)
            self.accelerator.backward(result["loss"] * self.share)
            loss = result["loss"].detach()
        if not self.distiller.trains_student:
            for parameter in self.distiller.student.parameters():
                parameter.grad = None
        every = self.args.torch_empty_cache_steps
        if every is not None and self.state.global_step % every == 0:
            clear_device_cache()
        return loss * self.share

    def run_forward(self, model: nn.Module, inputs: dict[str, Any], *, perturbed: bool = False) -> dict[str, Any]:
        """One forward of the distiller.

        At the weights themselves it stops at a loss that is not finite and notes the terms for the log; at
        perturbed weights it does neither.
        """
        with self.compute_loss_context_manager():
            result: dict[str, Any] = model(**inputs)
        if not perturbed:
            if not torch.isfinite(result["loss"]):
                self._explain_non_finite(result, inputs)
            for name, value in result["terms"].items():
                count = result["counts"].get(name)
                _add(self._terms, name, value if count is None else value * count)
                if count is not None:
                    _add(self._counts, name, count)
            self._terms_steps += 1
            self._step_rows.append(inputs["rows"])
        return result

    def _explain_non_finite(self, result: dict[str, Any], inputs: dict[str, Any]) -> None:
        """Name the rows whose teacher vectors or own losses are not finite; where that tells nothing, all of them."""
        broken = [name for name, value in result["terms"].items() if not torch.isfinite(value)]
        rows, items = inputs["rows"], result["items"]
        bad = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        for teacher in inputs["teachers"]:
            if (vectors := teacher.get("sentence")) is not None:
                bad |= ~torch.isfinite(vectors).all(-1) & teacher["present"]
        if self.distiller.gathers:
            rows, bad = gather_rows(rows), gather_rows(bad)
        if not bad.any() and items is not None and len(items) == len(rows):
            bad = ~torch.isfinite(items)
        named = rows[bad] if bad.any() else rows
        raise DivergedError(
            f"the loss is not finite (terms {', '.join(broken) or 'total'}) for corpus rows {self._shown(named)}",
            where=f"step {self.state.global_step + 1}",
            remedy="Look at these rows' texts and teacher vectors, or lower optimizer.lr. The last checkpoint is kept.",
        )

    def _shown(self, rows: Tensor) -> str:
        """At most five rows with the beginning of their texts."""
        numbers = rows.tolist()[:5]
        texts = self.describe(numbers) if self.describe else [""] * len(numbers)
        shown = "; ".join(f"{row}: {text[:60]!r}" for row, text in zip(numbers, texts, strict=True))
        return shown + (f" and {len(rows) - 5} more" if len(rows) > 5 else "")

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """Stop before a gradient that is not finite reaches the weights (fp16's loss scaling handles its own)."""
        if grad_norm is None and not self.args.fp16:
            # Nothing is clipped; transformers would multiply every gradient by one to learn the norm.
            gradients = [each.grad for each in model.parameters() if each.grad is not None]
            grad_norm = torch.nn.utils.get_total_norm(gradients)
        norm = super()._get_grad_norm(model, grad_norm)
        if not self.args.fp16 and not math.isfinite(float(norm)):
            rows = torch.cat(self._step_rows)
            raise DivergedError(
                f"the gradient is not finite, though the loss is, for corpus rows {self._shown(rows)}",
                where=f"step {self.state.global_step + 1}",
                remedy="Lower optimizer.lr, or look at these rows. The last checkpoint is kept.",
            )
        self._step_rows = []
        return norm

    # log

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._terms_steps:
            sums = mean_over_ranks(torch.stack(list(self._terms.values()))).tolist()
            for name, value in zip(self._terms, sums, strict=True):
                # Of the items that count; a teacher that had none of them has said nothing.
                count = float(self._counts[name]) if name in self._counts else self._terms_steps
                if count:
                    logs[f"term/{name}"] = value / count
            self._terms, self._counts, self._terms_steps = {}, {}, 0
            if self.sharp_step is not None and self.sharp_step.skipped:
                logs["skipped_steps"] = self.sharp_step.skipped
        if "train_loss" in logs:  # of all steps, not only of those since a resumption
            logs["train_loss"] = self._total_loss_scalar / max(self.state.global_step, 1)
        super().log(logs, start_time)

    def unlogged(self) -> dict[str, Any]:
        terms, counts = ({name: float(value) for name, value in of.items()} for of in (self._terms, self._counts))
        skipped = self.sharp_step.skipped if self.sharp_step else 0
        return {**super().unlogged(), "terms": terms, "counts": counts, "steps": self._terms_steps, "skipped": skipped}

    def take_up_unlogged(self, kept: dict[str, Any]) -> None:
        super().take_up_unlogged(kept)
        self._terms, self._counts = (
            {name: torch.tensor(value, device=self.args.device) for name, value in kept[of].items()}
            for of in ("terms", "counts")
        )
        self._terms_steps = kept["steps"]
        if self.sharp_step:
            self.sharp_step.skipped = kept["skipped"]

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        """Held-out metrics of the student, logged as `eval_...`.

        Raises:
            DistilvecError: nothing that is measured has the name of the metric that the best checkpoint is chosen by.
        """
        if self.evaluate_student is None:
            return {}
        training = self.distiller.training
        self.distiller.eval()
        found = self.evaluate_student()
        if world_size() > 1:  # a best step, or the end of patience, is one for all
            values = torch.tensor(list(found.values()), dtype=torch.float64).to(self.args.device)
            found = dict(zip(found, mean_over_ranks(values).tolist(), strict=True))
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.distiller.train(training)
        metric = self.args.metric_for_best_model
        if metric and f"eval_{metric.removeprefix('eval_')}" not in metrics:
            names = ", ".join(name.removeprefix("eval_") for name in metrics)
            raise DistilvecError(f'no metric "{metric}" among {names}', where="training.best")
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _track_num_input_tokens(self, inputs: dict[str, Any]) -> None:
        super()._track_num_input_tokens(inputs["features"])

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        return 0


def _add(sums: dict[str, Tensor], name: str, value: Tensor) -> None:
    sums[name] = sums[name] + value if name in sums else value


def _amount(batch: dict[str, Any]) -> tuple[int, int]:
    """How many items a micro-batch has, and how many tokens of answers, which are what counts where there are any."""
    mask = batch["features"].get("answer_mask")
    return len(batch["rows"]), 0 if mask is None else int(answer_places(mask)[1].sum())
