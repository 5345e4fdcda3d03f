"""From the recipe's `training` and `optimizer` sections to transformers.TrainingArguments."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.errors import DistilvecError, nearest

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from distilvec.recipe import OptimizerSection, TrainingSection

REFUSED = {
    "label_smoothing_factor": "the losses here have no class labels to smooth",
    "neftune_noise_alpha": "noise on the embeddings would differ between the passes of a step",
    "auto_find_batch_size": "the batch size is part of the method; set training.batch_size",
    "fsdp": "sharded training is not supported yet; use DistributedDataParallel through torchrun",
    "fsdp_config": "sharded training is not supported yet; use DistributedDataParallel through torchrun",
    "deepspeed": "DeepSpeed is not supported; use DistributedDataParallel through torchrun",
    "gradient_checkpointing": "the second view would see other dropout masks when a block is computed again",
    "activation_checkpointing": "the second view would see other dropout masks when a block is computed again",
    "remove_unused_columns": "the collator decides what a step gets",
    "train_sampling_strategy": "batches of similar length are made here",
    "include_for_metrics": "held-out agreement is computed by distilvec itself",
    "use_liger_kernel": "its kernels replace the blocks that the hooks watch",
    "ignore_data_skip": "resuming would not repeat the uninterrupted run",
    "average_tokens_across_devices": "means are taken over items, not over tokens",
}
ELSEWHERE = {
    "output_dir": "output",
    "learning_rate": "optimizer.lr",
    "weight_decay": "optimizer.weight_decay",
    "num_train_epochs": "training.epochs",
    "per_device_train_batch_size": "training.batch_size",
    "eval_steps": "training.evaluate_every",
    "eval_strategy": "training.evaluate_every",
    "save_steps": "training.save_every",
    "save_strategy": "training.save_every",
    "load_best_model_at_end": "training.best",
    "metric_for_best_model": "training.best",
    "max_seq_length": "student.max_length",
}


def training_arguments(
    training: TrainingSection, optimizer: OptimizerSection, folder: Path, steps_per_epoch: int
) -> TrainingArguments:
    """Every key of TrainingArguments works or is refused by name.

    Args:
        training, optimizer: the recipe's sections.
        folder: where checkpoints go.
        steps_per_epoch: optimiser steps in an epoch; sets how often things are logged and saved by default.

    Raises:
        DistilvecError: for a refused or unknown key, or a batch that the processes cannot share evenly.
    """
    from transformers import TrainingArguments

    given = training.arguments
    known = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    for key in given:
        if key in ELSEWHERE:
            raise DistilvecError(f'"{key}" has its own place here', where=f"training.{key}", remedy=f"Set {ELSEWHERE[key]}.")
        if key in REFUSED:
            raise DistilvecError(f'"{key}" is refused: {REFUSED[key]}', where=f"training.{key}", remedy="Leave it out.")
        if key not in known:
            words = (known - REFUSED.keys() - ELSEWHERE.keys()) | {"epochs", "batch_size", "seed"}
            raise DistilvecError(f'unknown key "{key}"', where=f"training.{key}", remedy=nearest(key, words))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if training.batch_size % world:
        raise DistilvecError(
            f"a batch of {training.batch_size} cannot be shared evenly by {world} processes",
            where="training.batch_size",
            remedy=f"Use a multiple of {world}.",
        )
    evaluating = training.evaluate_every is not None
    if training.best and not evaluating:
        raise DistilvecError("a best checkpoint needs evaluations", where="training.best", remedy="Set training.evaluate_every.")
    if training.patience and not training.best:
        raise DistilvecError("patience needs a metric", where="training.patience", remedy="Set training.best.")
    every = training.save_every or (training.evaluate_every if training.best else None) or max(steps_per_epoch, 1)
    if training.best and every % (training.evaluate_every or 1):
        raise DistilvecError(
            f"save_every ({every}) must be a multiple of evaluate_every ({training.evaluate_every}) to keep the best",
            where="training.save_every",
        )
    defaults: dict[str, Any] = {
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.06,
        "logging_steps": max(1, min(50, steps_per_epoch // 10)),
        "save_total_limit": 2,
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_drop_last": False,
        "use_cpu": not _accelerator(),
        "max_grad_norm": 1.0,
    }
    try:
        return TrainingArguments(
            **{
                **defaults,
                **given,
                "output_dir": str(folder),
                "learning_rate": optimizer.lr,
                "weight_decay": optimizer.weight_decay,
                "num_train_epochs": training.epochs,
                "per_device_train_batch_size": training.batch_size // world,
                "seed": training.seed,
                "eval_strategy": "steps" if evaluating else "no",
                "eval_steps": training.evaluate_every,
                "save_strategy": "steps",
                "save_steps": every,
                "load_best_model_at_end": bool(training.best),
                "metric_for_best_model": training.best,
                "greater_is_better": True if training.best else None,
                "remove_unused_columns": False,
                "logging_nan_inf_filter": False,
                "ddp_find_unused_parameters": False,
                # A method's queue is equal on all ranks already, and large.
                "ddp_broadcast_buffers": False,
            }
        )
    except (ValueError, TypeError, ImportError) as error:
        raise DistilvecError(f"transformers refuses these arguments: {error}", where="training") from error


def bfloat16_pays() -> bool:
    """Whether this machine's device multiplies bfloat16 faster than float32 (it has instructions for it)."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _accelerator() -> bool:
    import torch

    return torch.cuda.is_available() or torch.backends.mps.is_available()
