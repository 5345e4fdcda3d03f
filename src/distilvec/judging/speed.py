"""The speed of a model on this machine: latency of one text, throughput of many."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from distilvec.corpus.keys import split_pair
from distilvec.errors import DistilvecError
from distilvec.evenly import evenly_spaced
from distilvec.judging.encoder import is_sentence_transformer

MOST_PASSES = 20


def speed(
    model: Any, texts: Sequence[str], *, batch_size: int = 32, singles: int = 50, seconds: float = 5.0
) -> dict[str, Any]:
    """Latency at batch 1 and throughput of `encode`, after a warm-up.

    Args:
        model: a `SentenceTransformer`, an object with `encode(texts)`, or a function. Do not give a cache.
        texts: what is encoded; throughput is over all of them, in passes until `seconds` are over (at least one,
            at most 20, whose median hardly changes any more).
        batch_size: texts per batch of a `SentenceTransformer` in the throughput part.
        singles: how many texts are encoded one by one.

    Returns:
        `latency_p50_ms`, `latency_p95_ms`, `texts_per_second`, and what it was measured on: `texts`,
        `batch_size`, `device`, `cores` (that this process may use), `threads` (torch's), `machine`.

    Raises:
        DistilvecError: no texts.
    """
    if not len(texts):
        raise DistilvecError("speed needs texts to encode", where="texts", remedy="Give at least one text.")
    texts = list(texts)
    encode = _encoder(model, batch_size)
    encode(texts[: min(len(texts), batch_size)])
    # Evenly spaced, so that a file sorted by length does not decide the latency.
    rows = evenly_spaced(len(texts), singles)
    chosen = [texts[row] for row in rows]
    for text in chosen[:3]:
        encode([text])
    latencies = [_timed(model, encode, [text]) for text in chosen]
    passes: list[float] = []
    while not passes or (len(passes) < MOST_PASSES and sum(passes) + passes[-1] < seconds):
        passes.append(_timed(model, encode, texts))
    p50, p95 = np.percentile(np.array(latencies) * 1e3, [50, 95])
    return {
        "latency_p50_ms": float(p50),
        "latency_p95_ms": float(p95),
        "texts_per_second": len(texts) / float(np.median(passes)),
        "texts": len(texts),
        "batch_size": batch_size,
        **machine_of(model),
    }


def _encoder(model: Any, batch_size: int) -> Any:
    if is_sentence_transformer(model):
        return lambda texts: model.encode(
            [split_pair(text) for text in texts], batch_size=batch_size, show_progress_bar=False
        )
    return getattr(model, "encode", model)


def _timed(model: Any, encode: Any, texts: list[str]) -> float:
    _wait(model)
    begun = time.perf_counter()
    encode(texts)
    _wait(model)
    return time.perf_counter() - begun


def _wait(model: Any) -> None:
    """Let an accelerator finish what is queued."""
    if str(getattr(model, "device", "cpu")).startswith("cuda"):
        import torch

        torch.cuda.synchronize()


def machine_of(model: Any) -> dict[str, Any]:
    """Return what a model runs on: `device`, `cores` (that this process may use), `threads` (torch's), `machine`."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    device = str(getattr(model, "device", "cpu"))
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    return {"device": device, "cores": cores, "threads": torch.get_num_threads(), "machine": name}
