"""From the recipe's `training` and `optimizer` sections to transformers.TrainingArguments."""

from __future__ import annotations

import functools
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distilvec.errors import DistilvecError
from distilvec.recipe.training_keys import FOLLOWING, check_keys, check_together
from distilvec.training.distributed import launched

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from distilvec.recipe.sections import OptimizerSection, TrainingSection

_DAY = 24 * 60 * 60


def training_arguments(
    training: TrainingSection, optimizer: OptimizerSection, folder: Path, items: int
) -> TrainingArguments:
    """Every key of TrainingArguments works or is refused by name.

    Args:
        training, optimizer: the recipe's sections.
        folder: where checkpoints go.
        items: how many are trained on; sets how often things are logged and saved by default.

    Raises:
        DistilvecError: for a refused or unknown key, or a batch that the processes cannot share evenly.
    """
    from transformers import TrainingArguments

    given = training.arguments
    check_keys(given)
    check_together(training, optimizer)
    world = launched()[1]
    if int(training.batch_size or 1) % world:
        raise DistilvecError(
            f"a batch of {training.batch_size} cannot be shared evenly by {world} processes",
            where="training.batch_size",
            remedy=f"Use a multiple of {world}.",
        )
    if "max_grad_norm" in given and given["max_grad_norm"] is None:
        given["max_grad_norm"] = 0.0  # which is how transformers says that nothing is clipped
    if world == 1:  # without other processes, naming how to reach them makes transformers look for them
        given.pop("ddp_backend", None)
    steps = steps_per_epoch(training, items)
    every = _save_every(training, steps)
    defaults: dict[str, Any] = {
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.06,
        "logging_steps": max(1, min(50, steps // 10)),
        "save_total_limit": 2,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": not _accelerator(),
        "ddp_timeout": _DAY,  # the others wait while the first process reads and tokenises millions of texts
        "bf16": _narrow_by_itself(given),
        "max_grad_norm": 1.0,
        "restore_callback_states_from_checkpoint": True,
        "greater_is_better": True if training.best else None,
    }
    if str(given.get("lr_scheduler_type", "")) in FOLLOWING:  # of themselves these take less for better
        better = given.get("greater_is_better", defaults["greater_is_better"])
        options = given.get("lr_scheduler_kwargs") or {}
        if isinstance(options, dict):
            given["lr_scheduler_kwargs"] = {"mode": "max" if better else "min", **options}
    fixed: dict[str, Any] = {
        "output_dir": str(folder),
        "learning_rate": optimizer.lr,
        "weight_decay": optimizer.weight_decay,
        "num_train_epochs": training.epochs,
        "per_device_train_batch_size": int(training.batch_size or 1) // world,
        "seed": training.seed,
        "eval_strategy": "no" if training.evaluate_every is None else "steps",
        "eval_steps": training.evaluate_every,
        "save_strategy": "steps",
        "save_steps": every,
        "load_best_model_at_end": bool(training.best),
        "metric_for_best_model": training.best,
        "remove_unused_columns": False,
        "logging_nan_inf_filter": False,
        "ddp_find_unused_parameters": False,
        "ddp_broadcast_buffers": False,
    }
    try:
        return TrainingArguments(**{**defaults, **given, **fixed})
    except (ValueError, TypeError, ImportError) as error:
        raise DistilvecError(f"transformers refuses these arguments: {error}", where="training") from error


def _narrow_by_itself(given: dict[str, Any]) -> bool:
    """Whether training is in bfloat16 where its precision is not named: on CUDA, as a teacher is."""
    import torch

    named = {"bf16", "fp16"} & given.keys() or given.get("use_cpu")
    return not named and torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def _save_every(training: TrainingSection, steps: int) -> int:
    """Steps between checkpoints, after checking what goes together; `finetune` adds evaluations to a recipe."""
    if training.best and training.evaluate_every is None:
        raise DistilvecError(
            f'the best checkpoint by "{training.best}" needs evaluations',
            where="training.best",
            remedy="Set training.evaluate_every.",
        )
    if training.patience and not training.best:
        raise DistilvecError(
            f"patience ({training.patience}) needs a metric", where="training.patience", remedy="Set training.best."
        )
    every = training.save_every or (training.evaluate_every if training.best else None) or steps
    if training.best and every % (training.evaluate_every or 1):
        raise DistilvecError(
            f"save_every ({every}) must be a multiple of evaluate_every ({training.evaluate_every}) to keep the best",
            where="training.save_every",
        )
    return every


def steps_per_epoch(training: TrainingSection, items: int) -> int:
    """Optimiser steps that an epoch takes."""
    batches = math.ceil(items / int(training.batch_size or 1))
    return max(1, math.ceil(batches / training.arguments.get("gradient_accumulation_steps", 1)))


def steps_in_all(training: TrainingSection, items: int) -> int:
    """Optimiser steps of the whole training."""
    most = int(training.arguments.get("max_steps", 0))
    return most if most > 0 else math.ceil(float(training.epochs or 1) * steps_per_epoch(training, items))


@functools.cache
def bfloat16_pays() -> bool:
    """Whether this machine's device multiplies matrices faster in bfloat16 than in float32.

    Processors are measured once per process, for some hundredths of a second, where they have instructions for it:
    seen were ones on which bfloat16 takes half of float32's time, and ones on which it takes twice as much.
    """
    import torch

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    if "avx512_bf16" not in flags and "amx_bf16" not in flags:
        return False
    # In turns, and the best of each: other load on the machine slows single rounds.
    rounds = [(_product_seconds(torch.bfloat16), _product_seconds(torch.float32)) for _ in range(8)]
    narrow, full = map(min, zip(*rounds, strict=True))
    return narrow * 1.2 < full  # casting has its price too


def _product_seconds(dtype: Any) -> float:
    """What a block's product of some texts' tokens takes."""
    import torch

    tokens, weights = torch.ones(1024, 384, dtype=dtype), torch.ones(384, 384, dtype=dtype)
    start = time.perf_counter()
    torch.nn.functional.linear(tokens, weights)
    return time.perf_counter() - start


def _accelerator() -> bool:
    import torch

    return torch.cuda.is_available() or torch.backends.mps.is_available()
