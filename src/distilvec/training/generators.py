"""The state of the global generators: what dropout draws from, and what a method may."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def generators() -> dict[str, Any]:
    """The state of every global generator of this process, as `torch.load` reads it without pickles."""
    kind, key, *rest = np.random.get_state()
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(key).astype(np.int64)), *rest),
        "cpu": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_generators(state: Mapping[str, Any]) -> None:
    """Put the generators into the state that `generators` gave."""
    random.setstate(state["python"])
    kind, key, *rest = state["numpy"]
    np.random.set_state((kind, key.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["cpu"])
    if torch.cuda.is_available() and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
    if torch.backends.mps.is_available() and "mps" in state:
        torch.mps.set_rng_state(state["mps"])
