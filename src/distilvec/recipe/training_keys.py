"""Which keys of transformers.TrainingArguments a recipe may name: each works, or is refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from distilvec.errors import DistilvecError, nearest
from distilvec.recipe.sections import OptimizerSection, TrainingSection

_OWN_EVALUATION = "held-out agreement is computed by distilvec itself"
_SHARDS = "sharded training is not supported yet; use DistributedDataParallel through torchrun"
_RECOMPUTED = "the second view would see other dropout masks when a block is computed again"
_OWN_BATCHES = "batches of similar length are made, and shared between processes, by distilvec itself"
_UNUSED = "nothing here reads it"
REFUSED = {
    "label_smoothing_factor": "the losses here have no class labels to smooth",
    "neftune_noise_alpha": "noise on the embeddings would differ between the passes of a step",
    "auto_find_batch_size": "the batch size is part of the method; set training.batch_size",
    "fsdp": _SHARDS,
    "fsdp_config": _SHARDS,
    "deepspeed": "DeepSpeed is not supported; use DistributedDataParallel through torchrun",
    "parallelism_config": _SHARDS,
    "gradient_checkpointing": _RECOMPUTED,
    "gradient_checkpointing_kwargs": _RECOMPUTED,
    "activation_checkpointing": _RECOMPUTED,
    "activation_checkpointing_kwargs": _RECOMPUTED,
    "remove_unused_columns": "the collator decides what a step gets",
    "label_names": "the collator decides what a step gets",
    "train_sampling_strategy": _OWN_BATCHES,
    "length_column_name": _OWN_BATCHES,
    "accelerator_config": _OWN_BATCHES,
    "dataloader_multiprocessing_context": "workers are forked, so that they share the mapped corpus and stores",
    "dataloader_in_order": "a run could not be repeated",
    "include_for_metrics": _OWN_EVALUATION,
    "per_device_eval_batch_size": _OWN_EVALUATION,
    "prediction_loss_only": _OWN_EVALUATION,
    "eval_do_concat_batches": _OWN_EVALUATION,
    "eval_use_gather_object": _OWN_EVALUATION,
    "eval_accumulation_steps": _OWN_EVALUATION,
    "batch_eval_metrics": _OWN_EVALUATION,
    "bf16_full_eval": _OWN_EVALUATION,
    "fp16_full_eval": _OWN_EVALUATION,
    "use_liger_kernel": "its kernels replace the blocks that the hooks watch",
    "liger_kernel_config": "its kernels replace the blocks that the hooks watch",
    "ignore_data_skip": "resuming would not repeat the uninterrupted run",
    "save_only_model": "a checkpoint without the optimizer cannot be resumed",
    "enable_jit_checkpoint": "SIGTERM saves a checkpoint already",
    "average_tokens_across_devices": "means are taken over items, not over tokens",
    "logging_nan_inf_filter": "it hides losses that are not finite",
    "ddp_find_unused_parameters": "every parameter takes part in every step",
    "ddp_broadcast_buffers": "a method's queue is equal on all processes already, and large",
    "ddp_static_graph": "a method's stages change the graph",
    "debug": "its hooks fail on boolean masks; a loss or gradient that is not finite stops the run and names its rows",
    "optim_target_modules": _UNUSED,
    "use_cache": _UNUSED,
    "do_train": _UNUSED,
    "do_eval": _UNUSED,
    "do_predict": _UNUSED,
    "local_rank": "torchrun sets it",
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
    "resume_from_checkpoint": "--resume, or resume=True in Python",
}
#: Optimizers that step during the backward pass or need a trainer of their own; schedules that follow a metric.
_REFUSED_OPTIMIZERS = ("lomo", "adalomo", "schedule_free", "galore", "apollo")
FOLLOWING = ("reduce_lr_on_plateau", "greedy")
#: More is a slip of the hand: a year of ten steps a second is a third of it.
MOST_STEPS = 1_000_000_000


def check_keys(given: dict[str, Any]) -> None:
    """See that every further key of the section `training` works.

    Raises:
        DistilvecError: it has its own place in the recipe, is refused (and why), has no sense, or is unknown.
    """
    from transformers import TrainingArguments

    known = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    for key, value in given.items():
        if key in ELSEWHERE:
            raise DistilvecError(
                f'"{key}" has its own place here', where=f"training.{key}", remedy=f"Set {ELSEWHERE[key]}."
            )
        if key in REFUSED:
            raise DistilvecError(f'"{key}" is refused: {REFUSED[key]}', where=f"training.{key}", remedy="Leave it out.")
        if key == "data_seed" and not (isinstance(value, int | None) and 0 <= (value or 0) < 2**32):
            raise DistilvecError(
                f"a seed is a whole number from 0 to below 2^32, not {value!r}", where=f"training.{key}"
            )
        if key == "max_steps" and (isinstance(value, bool) or not isinstance(value, int) or value > MOST_STEPS):
            raise DistilvecError(
                f"{value!r:.40} is not a number of steps up to {MOST_STEPS:,}", where="training.max_steps"
            )
        if key in ("torch_compile_backend", "torch_compile_mode") and value is not None:
            _check_compilation(key, value)
        if key not in known:
            words = (known - REFUSED.keys() - ELSEWHERE.keys()) | TrainingSection.model_fields.keys()
            raise DistilvecError(f'unknown key "{key}"', where=f"training.{key}", remedy=nearest(key, words))


def _check_compilation(key: str, value: Any) -> None:
    import torch._dynamo
    import torch._inductor

    if key.endswith("mode"):
        known = proposed = list(torch._inductor.list_mode_options())
    else:  # those for debugging work too
        known, proposed = torch._dynamo.list_backends(exclude_tags=None), torch._dynamo.list_backends()
    if value not in known:
        raise DistilvecError(
            f'torch.compile knows no "{value}"', where=f"training.{key}", remedy=nearest(str(value), proposed)
        )


def check_together(training: TrainingSection, optimizer: OptimizerSection) -> None:
    """See that what the sections say goes together.

    Raises:
        DistilvecError: an optimizer or schedule that is refused, or keys of which one needs or excludes the other.
    """
    given = training.arguments
    accumulation = given.get("gradient_accumulation_steps", 1)
    if not isinstance(accumulation, int) or accumulation < 1:
        raise DistilvecError(
            f"{accumulation!r} is not a number of batches", where="training.gradient_accumulation_steps"
        )
    name = str(given.get("optim", ""))
    if name.startswith(_REFUSED_OPTIMIZERS):
        raise DistilvecError(
            f'the optimizer "{name}" is refused: it steps during the backward pass or needs a trainer of its own',
            where="training.optim",
            remedy='Leave it out for AdamW, or choose another, e.g. "adafactor".',
        )
    if optimizer.muon and name not in ("", "adamw_torch", "adamw_torch_fused"):
        raise DistilvecError(
            f'orthogonal steps go beside AdamW\'s, not beside those of "{name}"',
            where="optimizer.muon",
            remedy="Leave training.optim out.",
        )
    if str(given.get("lr_scheduler_type", "")) in FOLLOWING and not training.best:
        raise DistilvecError(
            "a schedule that follows a metric needs one",
            where="training.lr_scheduler_type",
            remedy="Set training.best.",
        )
    if optimizer.sharpness is not None and given.get("fp16"):
        raise DistilvecError(
            "sharpness-aware steps do not go together with fp16's loss scaling",
            where="training.fp16",
            remedy="Set bf16.",
        )
