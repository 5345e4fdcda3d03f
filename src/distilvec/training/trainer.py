"""The training loop: transformers' Trainer, with sharpness-aware steps, terms in the log and exact resumption."""

from __future__ import annotations

import logging
import math
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainingArguments
from transformers.trainer_utils import rotate_checkpoints

from distilvec.errors import DataError, DistilvecError
from distilvec.optim import SharpnessAware
from distilvec.training.data import Collator, Rows
from distilvec.training.distiller import Distiller
from distilvec.training.distributed import rank, world_size
from distilvec.training.samplers import BucketedBatches
from distilvec.training.sharp_step import SharpStep

logger = logging.getLogger(__name__)
WEIGHTS = "model.safetensors"


class EpochLoader(DataLoader[Any]):
    """A DataLoader that tells its batch sampler which epoch it is, and draws nothing from global generators."""

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


class DistillationTrainer(Trainer):
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
        sharpness: dict[str, Any] | None = None,
        evaluate: Callable[[], dict[str, float]] | None = None,
        describe: Callable[[Sequence[int]], list[str]] | None = None,
        save_student: Callable[[Path], None] | None = None,
        callbacks: list[Any] | None = None,
    ) -> None:
        # More visible devices in one process would become DataParallel, which splits a batch behind our back.
        args._n_gpu = min(args.n_gpu, 1)
        self.rows, self.collator, self.heads_lr = rows, collator, heads_lr
        self.sharpness = dict(sharpness or {})
        self.evaluate_student, self.describe, self.save_student = evaluate, describe, save_student
        self._terms: dict[str, Tensor] = {}
        self._terms_steps = 0
        self._whole_checkpoint = False
        self._partial: Path | None = None
        super().__init__(
            model=distiller,
            args=args,
            data_collator=collator,
            train_dataset=Rows(rows),
            eval_dataset=Rows(rows[:1]) if evaluate else None,
            callbacks=callbacks,
        )
        self.model_accepts_loss_kwargs = False
        self.remove_callback(PrinterCallback)
        self.sharp_step = SharpStep(self, **self._sharp_options()) if sharpness is not None else None

    # data

    def get_train_dataloader(self) -> DataLoader[Any]:
        args = self.args
        sampler = BucketedBatches(
            self.collator.tokens.lengths[self.rows],
            args.per_device_train_batch_size * world_size(),
            seed=args.seed,
            rank=rank(),
            world=world_size(),
        )
        return EpochLoader(
            self.train_dataset,
            batch_sampler=sampler,
            collate_fn=self.collator,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
            persistent_workers=args.dataloader_num_workers > 0 and args.dataloader_persistent_workers,
            generator=torch.Generator().manual_seed(args.seed),
        )

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        return args.per_device_train_batch_size * world_size() * args.gradient_accumulation_steps

    # optimiser

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is None:
            cls, kwargs = self.get_optimizer_cls_and_kwargs(self.args, self.model)
            optimizer = cls(self._parameter_groups(), **kwargs)
            if self.sharpness:
                allowed = {"kind", "rho", "eta", "every", "scale", "bias"}
                kind = {"disam": "sam"}.get(self.sharpness["kind"], self.sharpness["kind"])
                optimizer = SharpnessAware(
                    optimizer, **{k: v for k, v in self.sharpness.items() if k in allowed} | {"kind": kind}
                )
            self.optimizer = optimizer
        return self.optimizer

    def _parameter_groups(self) -> list[dict[str, Any]]:
        """Student and heads, each with and without weight decay; every trained parameter in exactly one."""
        decayed = set(self.get_decay_parameter_names(self.model))
        groups: list[dict[str, Any]] = []
        students = {id(parameter) for parameter in self.model.student.parameters()}
        for heads in (False, True):
            for decay in (True, False):
                parameters = [
                    parameter
                    for name, parameter in self.model.named_parameters()
                    if parameter.requires_grad
                    and (id(parameter) not in students) == heads
                    and (name in decayed) == decay
                ]
                if parameters:
                    rate = self.heads_lr if heads and self.heads_lr else self.args.learning_rate
                    groups.append(
                        {
                            "params": parameters,
                            "lr": rate,
                            "weight_decay": self.args.weight_decay if decay else 0.0,
                            "perturb": not heads or self.sharpness.get("heads", True),
                        }
                    )
        return groups

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

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        model.train()
        self.model.progress = self.state.global_step / max(self.state.max_steps, 1)
        inputs = self._prepare_inputs(inputs)
        if self.sharp_step is not None:
            loss = self.sharp_step(model, inputs)
        else:
            result = self.run_forward(model, inputs)
            self.accelerator.backward(result["loss"] / self.current_gradient_accumulation_steps)
            loss = result["loss"].detach()
        if not self.model.method.trains_student(self.model.progress):
            for parameter in self.model.student.parameters():
                parameter.grad = None
        return loss / self.current_gradient_accumulation_steps

    def run_forward(self, model: nn.Module, inputs: dict[str, Any], *, perturbed: bool = False) -> dict[str, Any]:
        """One forward of the distiller.

        At the weights themselves it stops at a loss that is not finite and notes the terms for the log; at
        perturbed weights it does neither.
        """
        with self.compute_loss_context_manager():
            result: dict[str, Any] = model(**inputs)
        if not perturbed:
            if not torch.isfinite(result["loss"]):
                self._explain_non_finite(result, inputs["rows"])
            for name, value in result["terms"].items():
                self._terms[name] = self._terms.get(name, 0.0) + value
            self._terms_steps += 1
        return result

    def _explain_non_finite(self, result: dict[str, Any], rows: Tensor) -> None:
        broken = [name for name, value in result["terms"].items() if not torch.isfinite(value)]
        numbers = rows.tolist()
        items = result["items"]
        if items is not None and len(items) == len(numbers) and not torch.isfinite(items).all():
            numbers = [row for row, fine in zip(numbers, torch.isfinite(items).tolist(), strict=True) if not fine]
        shown = numbers[:5]
        texts = [f"{row}: {text[:60]!r}" for row, text in zip(shown, self.describe(shown), strict=True)] if self.describe else shown
        raise DataError(
            f"the loss is not finite (terms {', '.join(broken) or 'total'}) for corpus rows {texts}",
            where=f"step {self.state.global_step + 1}",
            remedy="Look at these rows' texts and teacher vectors, or lower optimizer.lr. The last checkpoint is kept.",
        )

    # log

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._terms_steps:
            for name, value in self._terms.items():
                mean = value / self._terms_steps
                logs[f"term/{name}"] = float(mean)
            self._terms, self._terms_steps = {}, 0
            if self.sharp_step is not None and self.sharp_step.skipped:
                logs["skipped_steps"] = self.sharp_step.skipped
        super().log(logs, start_time)

    def evaluate(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> dict[str, float]:
        """Held-out metrics of the student, logged as `eval_...`."""
        if self.evaluate_student is None:
            return {}
        training = self.model.training
        self.model.eval()
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in self.evaluate_student().items()}
        self.model.train(training)
        metric = self.args.metric_for_best_model
        if metric and f"eval_{metric.removeprefix('eval_')}" not in metrics:
            names = ", ".join(name.removeprefix("eval_") for name in metrics)
            raise DistilvecError(f'no metric "{metric}" among {names}', where="training.best")
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    # checkpoints

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        folder = Path(output_dir or self.args.output_dir)
        if self._whole_checkpoint:
            folder.mkdir(parents=True, exist_ok=True)
            save_model(self.model, str(folder / WEIGHTS))
        elif self.save_student is not None:
            self.save_student(folder)
        else:
            self.model.student.save(str(folder))

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._partial) if self._partial is not None else super()._get_output_dir(trial)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write under a temporary name, then rename: a checkpoint is whole or it is not there."""
        home = Path(self.args.output_dir)
        name = f"checkpoint-{self.state.global_step}"
        self._partial, self._whole_checkpoint = home / f".partial-{self.state.global_step}", True
        try:
            super()._save_checkpoint(model, trial)
        except OSError as error:
            shutil.rmtree(self._partial, ignore_errors=True)
            raise DistilvecError(
                f"the checkpoint cannot be written ({error})",
                where=str(home / name),
                remedy="Free some space and run again with --resume; earlier checkpoints are untouched.",
            ) from error
        finally:
            partial, self._partial, self._whole_checkpoint = self._partial, None, False
        if world_size() > 1:
            dist.barrier()
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            if best and Path(best).parent == partial:
                self.state.best_model_checkpoint = str(home / Path(best).name)
                self.state.save_to_json(str(partial / name / "trainer_state.json"))
            shutil.rmtree(home / name, ignore_errors=True)
            os.replace(partial / name, home / name)
            shutil.rmtree(partial, ignore_errors=True)
            rotate_checkpoints(
                output_dir=str(home),
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )
        if world_size() > 1:
            dist.barrier()

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        load_strictly(self.model, Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        load_strictly(self.model, Path(self.state.best_model_checkpoint))

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        return 0


def load_strictly(distiller: Distiller, folder: Path) -> None:
    """Load a checkpoint's weights into the distiller; every key must be there and fit.

    Raises:
        DistilvecError: a missing or broken file, or a checkpoint of another student or method.
    """
    try:
        load_model(distiller, str(folder / WEIGHTS), strict=True)
    except FileNotFoundError as error:
        raise DistilvecError("there are no weights in this checkpoint", where=str(folder)) from error
    except Exception as error:
        raise DistilvecError(
            f"this checkpoint does not fit the student and method ({str(error).splitlines()[0]})",
            where=str(folder),
            remedy="Resume with the recipe that made it, or start anew in another output folder.",
        ) from error


def steps_per_epoch(items: int, batch_size: int, accumulation: int = 1) -> int:
    """Optimiser steps that an epoch takes."""
    return max(1, math.ceil(math.ceil(items / batch_size) / accumulation))
