"""Which attention kernel trains a student fastest on one CPU core, by length, batch, precision and number of heads.

    python benchmarks/attention.py            # ten minutes

A step is one forward and backward pass with the loss of the pooled vector and of the token states, on texts of one
length; the fastest of five, kernels in turns. The student is the quarter of experiments/quarter.py (four blocks, 384
wide, twelve heads of 32), and one of three heads. What the trainer chooses by itself (`distilvec.training.attention`)
rests on the same measurement, made on the machine and the texts at hand.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch
from transformers import ElectraConfig, ElectraModel

RESULTS = Path(__file__).parent / "results" / "attention.json"
LENGTHS, BATCHES = (8, 16, 32, 64, 128, 256), (16, 64)
ROUNDS = 5


def student(heads: int) -> Any:
    config: Any = ElectraConfig
    made = config(
        vocab_size=20_000,
        embedding_size=80,
        hidden_size=384,
        num_hidden_layers=4,
        num_attention_heads=heads,
        intermediate_size=528,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return ElectraModel(made).train()


def step(model: Any, length: int, batch: int, low: bool) -> None:
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(5, 20_000, (batch, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[::2, -2:] = 0
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    (states.float().mean(1).square().sum() + states.float().square().mean()).backward()
    model.zero_grad(set_to_none=True)


def measured(model: Any, length: int, batch: int, low: bool) -> dict[str, float]:
    """Kernel -> texts per second."""
    found: dict[str, list[float]] = {"sdpa": [], "eager": []}
    for _ in range(ROUNDS + 1):
        for kernel, seconds in found.items():
            model.config._attn_implementation = kernel
            began = time.perf_counter()
            step(model, length, batch, low)
            seconds.append(time.perf_counter() - began)
    return {kernel: batch / min(seconds[1:]) for kernel, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for heads in (12, 3):
        model = student(heads)
        for low in (True, False):
            for batch in BATCHES:
                for length in options.lengths:
                    rates = measured(model, length, batch, low)
                    row = {"heads": heads, "bf16": low, "batch": batch, "length": length, **rates}
                    rows.append({**row, "gain": rates["eager"] / rates["sdpa"]})
                    print(
                        {name: round(v, 2) if isinstance(v, float) else v for name, v in rows[-1].items()}, flush=True
                    )
    about = {"processor": platform.processor(), "torch": torch.__version__, "threads": 1, "rounds": ROUNDS}
    RESULTS.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
