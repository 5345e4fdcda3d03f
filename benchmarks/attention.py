"""Which attention kernel trains a student fastest on CPU, and what compiling it adds, by length, batch and precision.

    python benchmarks/attention.py            # a quarter of an hour on one core
    python benchmarks/attention.py --lengths 16 64 --batches 64

A step is one forward and backward pass with the loss of the pooled vector and of the token states, on texts of one
length; the fastest of five, all ways in turns. The student is the quarter of experiments/quarter (four blocks, 384
wide, twelve heads of 32), and one of three heads. "compiled" is plain (eager) attention in a network compiled with open
shapes, as `torch_compile: true` does it. Which of sdpa and eager a training takes is measured anew by the trainer
(`distilvec.training.attention`), on the machine and the texts at hand. Results: benchmarks/results/attention.json, .md.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from machine import processor
from transformers import ElectraConfig, ElectraModel

RESULTS = Path(__file__).parent / "results"
LENGTHS, BATCHES = (8, 16, 32, 64, 128, 256), (16, 64)
WAYS = ("sdpa", "eager", "compiled")
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


def measured(model: Any, fast: Any, length: int, batch: int, low: bool) -> dict[str, float]:
    """Way -> texts per second.

    Args:
        fast: the model compiled.
    """
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS + 1):
        for way, seconds in found.items():
            model.config._attn_implementation = "sdpa" if way == "sdpa" else "eager"
            began = time.perf_counter()
            step(fast if way == "compiled" else model, length, batch, low)
            seconds.append(time.perf_counter() - began)
    return {way: batch / min(seconds[1:]) for way, seconds in found.items()}


def table(rows: list[dict[str, Any]]) -> str:
    """Texts per second as Markdown."""
    lines = ["| heads | precision | batch | length | sdpa | eager | compiled | eager / sdpa | compiled / eager |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        rates = [row[way] for way in WAYS]
        shown = [f"{rate:.0f}" for rate in rates] + [f"{rates[1] / rates[0]:.2f}", f"{rates[2] / rates[1]:.2f}"]
        about = [row["heads"], "bfloat16" if row["bf16"] else "float32", row["batch"], row["length"]]
        lines.append(f"| {' | '.join(map(str, [*about, *shown]))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for heads in (12, 3):
        model = student(heads)
        fast = torch.compile(model, dynamic=True)
        for low in (True, False):
            for batch in options.batches:
                for length in options.lengths:
                    rates = measured(model, fast, length, batch, low)
                    rows.append({"heads": heads, "bf16": low, "batch": batch, "length": length, **rates})
                    print(table(rows[-1:]).splitlines()[-1], flush=True)
    about = {"processor": processor(), "torch": torch.__version__, "threads": options.threads, "rounds": ROUNDS}
    content = {"about": about, "rows": rows}
    (RESULTS / "attention.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    head = f"Texts per second of forward and backward passes, {options.threads} thread(s), {about['processor']}, "
    told = f"{head}torch {torch.__version__}; `python benchmarks/attention.py`.\n\n{table(rows)}\n"
    (RESULTS / "attention.md").write_text(told, encoding="utf-8")


if __name__ == "__main__":
    main()
