"""The section `training` of a recipe: every key with its meaning, and what goes together."""

from __future__ import annotations

import math
import os
from typing import Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from distilvec.errors import DistilvecError, nearest
from distilvec.recipe.sections import MOST_SEEDS, OptimizerSection, given
from distilvec.validation import Section

#: More is a slip of the hand: a year of ten steps a second is a third of it.
MOST_STEPS = 1_000_000_000
_LEAVE_OUT = "Leave it out"
#: Keys that a saved recipe has even where they are at their defaults.
_ALWAYS = {"epochs", "batch_size", "mini_batch_size", "gather", "seed"}
_ALWAYS |= {"evaluate_every", "save_every", "patience", "best"}


class TrainingSection(Section):
    """Length, batches, schedule, precision, log and checkpoints; named as transformers' TrainingArguments name them."""

    epochs: float | None = Field(
        None, gt=0, le=1_000_000, description="passes over the corpus; null = by its size and the kind of student"
    )
    max_steps: int | None = Field(None, gt=0, le=MOST_STEPS, description="optimiser steps, in place of `epochs`")
    batch_size: int | None = Field(
        None,
        gt=0,
        description="items per step, over all processes; gradient_accumulation_steps multiplies it; null = by the kind "
        "of student",
    )
    gradient_accumulation_steps: int = Field(1, gt=0, description="batches whose gradients make one step")
    mini_batch_size: int | None = Field(
        None,
        gt=0,
        description="gradient caching: the student reads so many texts at a time, while the loss sees the whole batch; "
        "memory for few, at the price of a second forward pass",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="the student's blocks are computed again in the backward pass, in place of kept: less memory, a "
        "third more time",
    )
    gather: bool = Field(
        True,
        description="losses that compare the rows of a batch see those of all processes; false: each its own alone, "
        "which saves the exchange",
    )
    fsdp: bool = Field(
        False,
        description="of several processes each keeps a part of the student's weights, gradients and optimiser (FSDP2)",
    )
    seed: int = Field(0, ge=0, lt=MOST_SEEDS)
    lr_scheduler_type: Literal[
        "cosine",
        "linear",
        "constant",
        "constant_with_warmup",
        "cosine_with_restarts",
        "cosine_with_min_lr",
        "polynomial",
        "inverse_sqrt",
        "warmup_stable_decay",
    ] = "cosine"
    lr_scheduler_kwargs: dict[str, Any] = Field(default_factory=dict, description="what that schedule takes")
    warmup_steps: int | float = Field(0.06, ge=0, description="below 1: a share of all steps")
    optim: Literal["adamw_torch_fused", "adamw_torch", "adafactor", "sgd"] = "adamw_torch_fused"
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    adam_epsilon: float = Field(1e-8, gt=0)
    max_grad_norm: int | float | None = Field(1.0, ge=0, description="null or 0: no clipping")
    bf16: bool | None = Field(None, description="null: where the device is faster in bfloat16 than in float32")
    fp16: bool = Field(False, description="with loss scaling, for GPUs without bfloat16")
    use_cpu: bool = False
    torch_compile: bool = Field(False, description="compile the student's transformer where it trains")
    torch_compile_backend: str | None = None
    torch_compile_mode: str | None = None
    evaluate_every: int | None = Field(None, gt=0, description="held-out agreement every so many steps")
    eval_on_start: bool = Field(False, description="evaluate before the first step, too")
    best: str | None = Field(None, description="metric of the best checkpoint, e.g. agreement_cosine")
    greater_is_better: bool = Field(True, description="whether more of `best` is better")
    patience: int | None = Field(None, gt=0, description="stop after so many evaluations without a better metric")
    save_every: int | None = Field(
        None,
        gt=0,
        description="checkpoint every so many steps; null = at each evaluation with `best`, else each epoch and each "
        "half hour",
    )
    save_total_limit: int | None = Field(2, gt=0, description="checkpoints that are kept, the newest; null = all")
    logging_steps: int | None = Field(None, gt=0, description="null: a tenth of an epoch, at most 50")
    report_to: list[str] = Field(
        default_factory=list,
        description="trackers that get what is logged: tensorboard, wandb, mlflow, trackio and others that accelerate "
        "knows, where they are installed",
    )
    run_name: str | None = Field(None, description="name of the run there")
    project: str = Field("distilvec", description="name of the project there")
    dataloader_num_workers: int = Field(0, ge=0, description="processes that prepare batches")
    dataloader_drop_last: bool = Field(False, description="leave out the short batch at the end of an epoch")

    #: Keys of transformers, and of versions before: what to write here.
    moved: ClassVar[dict[str, str]] = {
        "num_train_epochs": "Write epochs",
        "per_device_train_batch_size": "Write batch_size, which counts the items of all processes",
        "train_batch_size": "Write batch_size, which counts the items of all processes",
        "device": "Training takes the GPU where there is one; use_cpu: true is for the processor, and "
        "CUDA_VISIBLE_DEVICES chooses a GPU",
        "learning_rate": "Write it in the section optimizer: optimizer: {lr: ...}",
        "weight_decay": "Write it in the section optimizer: optimizer: {weight_decay: ...}",
        "eval_steps": "Write evaluate_every",
        "eval_strategy": "Write evaluate_every: STEPS",
        "save_steps": "Write save_every",
        "save_strategy": "Write save_every: STEPS",
        "metric_for_best_model": "Write best",
        "load_best_model_at_end": "Write best: METRIC",
        "early_stopping_patience": "Write patience",
        "warmup_ratio": "Write warmup_steps, below 1 for a share",
        "output_dir": "Write it outside of the sections: output: FOLDER",
        "max_seq_length": "Write it in the section student: student: {max_length: ...}",
        "resume_from_checkpoint": "Use --resume, or resume=True in Python",
        "push_to_hub": f"{_LEAVE_OUT}, and run `distilvec push` when the student is finished",
        "hub_model_id": f"{_LEAVE_OUT}, and run `distilvec push` when the student is finished",
        "logging_dir": f"{_LEAVE_OUT}: trackers write beside the checkpoints",
        "logging_strategy": "Write logging_steps",
        "data_seed": "Write seed",
        "auto_find_batch_size": f"{_LEAVE_OUT}: the batch size is part of the method; mini_batch_size saves memory",
        "fsdp_config": "Write fsdp: true",
        "deepspeed": "Write fsdp: true",
        "ddp_backend": f"{_LEAVE_OUT}: it is nccl on GPUs and gloo on processors",
        "gradient_checkpointing_kwargs": "Write gradient_checkpointing: true",
        "dataloader_persistent_workers": f"{_LEAVE_OUT}: workers stay from epoch to epoch",
        "tf32": "Write bf16: true",
    }

    @field_validator("report_to", mode="before")
    @classmethod
    def _trackers(cls, value: Any) -> Any:
        return [each for each in ([value] if isinstance(value, str) else value or []) if each != "none"]

    @property
    def best_by_agreement(self) -> bool:
        """Tell whether the best checkpoint is chosen by agreement on held-out items."""
        return (self.best or "").removeprefix("eval_").startswith("agreement_")

    @property
    def sharded(self) -> bool:
        """Tell whether each process holds a part of the student: as written, or by `accelerate launch --use_fsdp`."""
        return self.fsdp or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"

    @model_serializer(mode="wrap")
    def _short(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Return what every recipe says, and what this one says beside it."""
        values: dict[str, Any] = write(self)
        return {name: value for name, value in values.items() if name in _ALWAYS or name in self.model_fields_set}

    @property
    def batch(self) -> int:
        """`batch_size`, which the table of defaults has filled in."""
        return given(self.batch_size, "training.batch_size")

    def steps_per_epoch(self, items: int) -> int:
        """Optimiser steps that an epoch takes."""
        batches = items // self.batch if self.dataloader_drop_last else math.ceil(items / self.batch)
        return max(1, math.ceil(batches / self.gradient_accumulation_steps))

    def steps(self, items: int, per_epoch: int | None = None) -> int:
        """Optimiser steps of the whole training, of so many items or so many steps an epoch."""
        per_epoch = per_epoch or self.steps_per_epoch(items)
        return self.max_steps or math.ceil(given(self.epochs, "training.epochs") * per_epoch)

    def warmup(self, steps: int) -> int:
        """Return the number of steps, of so many, in which the rate grows."""
        return int(self.warmup_steps) if self.warmup_steps >= 1 else math.ceil(steps * self.warmup_steps)


def check_together(training: TrainingSection, optimizer: OptimizerSection) -> None:
    """See that what the sections say goes together."""
    sharpness = optimizer.sharpness
    excluded = (
        ("bf16", training.fp16 and training.bf16, "bf16 and fp16 are two precisions", "Set one of them."),
        ("fp16", sharpness and training.fp16, "sharpness-aware steps do not go with fp16's loss scaling", "Set bf16."),
        ("fp16", training.sharded and training.fp16, "fsdp does not go with fp16's loss scaling", "Set bf16."),
        ("fsdp", training.sharded and optimizer.muon, "muon turns whole matrices, of which fsdp leaves parts", _ONE),
        ("fsdp", training.sharded and training.optim == "adafactor", "adafactor reads whole matrices", _ONE),
        (
            "fsdp",
            training.sharded and sharpness is not None and sharpness.ascent == "local",
            "with fsdp no process has a gradient of its own for an ascent of its own",
            "Leave optimizer.sharpness.ascent out.",
        ),
    )
    for key, refused, what, remedy in excluded:
        if refused:
            raise DistilvecError(what, where=f"training.{key}", remedy=remedy)
    if optimizer.muon and not training.optim.startswith("adamw"):
        raise DistilvecError(
            f'orthogonal steps go with those of AdamW, not of "{training.optim}"',
            where="optimizer.muon",
            remedy="Leave training.optim out.",
        )
    _check_compilation(training)


_ONE = "Leave one of them out."


def check_evaluations(training: TrainingSection) -> None:
    """See that what follows an evaluation has one; `finetune` adds evaluations to a recipe."""
    every, best = training.evaluate_every, training.best
    if best and every is None:
        raise DistilvecError(
            f'the best checkpoint by "{best}" needs evaluations',
            where="training.best",
            remedy="Set training.evaluate_every.",
        )
    if training.patience and not best:
        raise DistilvecError(
            f"patience ({training.patience}) needs a metric", where="training.patience", remedy="Set training.best."
        )
    if best and every and training.save_every and training.save_every % every:
        raise DistilvecError(
            f"save_every ({training.save_every}) must be a multiple of evaluate_every ({every}) to keep the best",
            where="training.save_every",
        )


def _check_compilation(training: TrainingSection) -> None:
    for key in ("torch_compile_mode", "torch_compile_backend"):
        value = getattr(training, key)
        if value is None:
            continue
        import torch._dynamo
        import torch._inductor

        if key.endswith("mode"):
            known = proposed = list(torch._inductor.list_mode_options())
        else:  # those for debugging work too
            known, proposed = torch._dynamo.list_backends(exclude_tags=None), torch._dynamo.list_backends()
        if value not in known:
            raise DistilvecError(
                f'torch.compile knows no "{value}"', where=f"training.{key}", remedy=nearest(value, proposed)
            )
