"""In which precision a training computes where its recipe names none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distilvec.precision import bfloat16_pays

if TYPE_CHECKING:
    from distilvec.recipe import TrainingSection


def narrow_by_itself(training: TrainingSection) -> bool:
    """Tell whether training is in bfloat16 where its precision is not named: on devices that are faster in it."""
    if training.bf16 is not None or training.fp16:
        return False
    return bfloat16_pays("cpu" if training.use_cpu else None)
