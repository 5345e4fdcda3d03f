"""In which precision a training computes where its recipe names none, and whether bfloat16 pays on this machine."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from distilvec.recipe import TrainingSection


def narrow_by_itself(training: TrainingSection) -> bool:
    """Whether training is in bfloat16 where its precision is not named: on CUDA, as a teacher is."""
    named = training.bf16 is not None or training.fp16 or training.use_cpu
    return not named and torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


@functools.cache
def bfloat16_pays() -> bool:
    """Whether this machine's device multiplies matrices faster in bfloat16 than in float32.

    Processors are measured once per process, for some hundredths of a second, where they have instructions for it:
    seen were ones on which bfloat16 takes half of float32's time, and ones on which it takes twice as much.
    """
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


def _product_seconds(dtype: torch.dtype) -> float:
    """What a block's product of some texts' tokens takes."""
    tokens, weights = torch.ones(1024, 384, dtype=dtype), torch.ones(384, 384, dtype=dtype)
    start = time.perf_counter()
    torch.nn.functional.linear(tokens, weights)
    return time.perf_counter() - start
