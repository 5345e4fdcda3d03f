"""What keeping freed memory in the process gains and costs: a training step, steps of many lengths, and encoding.

    OMP_NUM_THREADS=1 python benchmarks/allocator.py [--rounds 3]

Each measurement is a process of its own, because the setting lasts as long as the process; the kinds take turns:
"plain", and freed blocks kept where they are smaller than so many MiB. Figures are processor time, system time
included, and for steps of many lengths the process' largest resident memory: a block that is kept can be taken by
smaller ones, and then the next large one needs new memory. Results: benchmarks/results/allocator.json and allocator.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

RESULTS = Path(__file__).parent / "results"
#: Blocks that are kept, in MiB; the default is one of them.
KEPT = ("16", "64", "256", "1024")
#: Steps of many lengths: most texts are short, and some are as long as a text may be.
STEPS, BATCH, LONGEST = 60, 128, 256


def one(kind: str) -> dict[str, float]:
    """Milliseconds of processor time of steps and of 64 encoded texts, in this process; and GB of steps."""
    import torch
    from sentence_transformers import SentenceTransformer

    from distilvec import allocator
    from distilvec.flow.demo import demo_teacher

    if kind != "plain":
        allocator._LARGEST_BLOCK = int(kind) << 20
        if not allocator.keep_freed_memory():
            raise SystemExit("this C library is not glibc: nothing to measure")
    torch.manual_seed(0)
    model = SentenceTransformer(demo_teacher(), device="cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(1000, 20_000, (32, 24))
    features = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}

    def step(half: bool = False) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            vectors = model(dict(features))["sentence_embedding"]
        vectors.float().square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    texts = ["An example sentence of some ten words, about nothing at all."] * 64

    def encode() -> None:
        model.encode(texts, batch_size=64)

    found = {"step": measure(step), "step in bfloat16": measure(lambda: step(half=True)), "encode": measure(encode)}
    begun = time.process_time()
    many_lengths()
    found["steps of many lengths"] = 1e3 * (time.process_time() - begun) / STEPS
    found["GB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return found


def many_lengths() -> None:
    """A student of four blocks in bfloat16 with plain attention, batches of 8 to 256 tokens."""
    import numpy as np
    import torch
    from transformers import ElectraConfig, ElectraModel

    shape = {"vocab_size": 20_000, "embedding_size": 80, "hidden_size": 384, "intermediate_size": 528}
    settings = ElectraConfig(**shape, num_hidden_layers=4, num_attention_heads=12, max_position_embeddings=LONGEST)
    model = ElectraModel(settings).train()
    model.set_attn_implementation("eager")
    draw = np.random.default_rng(0)
    for _ in range(STEPS):
        low, high = ((8, 40), (40, 120), (120, LONGEST))[draw.choice(3, p=(0.75, 0.13, 0.12))]
        ids = torch.randint(1000, 20_000, (BATCH, int(draw.integers(low, high))))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            states = model(input_ids=ids).last_hidden_state
        states.float().square().mean().backward()
        model.zero_grad()


def measure(work: Callable[[], None], repeats: int = 15) -> float:
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return 1e3 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=["plain", *KEPT], help="measure in this process and print JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one)))
        return
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in ("plain", *KEPT)}
    for _ in range(options.rounds):
        for kind, runs in found.items():
            command = [sys.executable, __file__, "--one", kind]
            out = subprocess.run(command, env=clean, check=True, capture_output=True, text=True).stdout
            runs.append(json.loads(out.splitlines()[-1]))
    lines = [
        "# Keeping freed memory in the process",
        "",
        f"Made by `python benchmarks/allocator.py --rounds {options.rounds}` on {platform.platform()}, "
        f"{os.environ.get('OMP_NUM_THREADS', 'all')} thread(s). Median milliseconds of processor time; "
        "all-MiniLM-L6-v2, a step of 32 x 24 tokens with AdamW, 64 encoded texts. Steps of many lengths: a student of "
        f"four blocks, {STEPS} batches of {BATCH} texts of 8 to {LONGEST} tokens, and the most memory. Blocks smaller "
        "than so many MiB are kept; how many times as long plain takes is that of the medians, with the least and the "
        "largest of the rounds.",
        "",
        "| work | plain | " + " | ".join(f"under {kind} MiB kept" for kind in KEPT) + " |",
        "|---|---" + "|---" * len(KEPT) + "|",
    ]
    for work in found["plain"][0]:
        before = [run[work] for run in found["plain"]]
        cells = [f"{statistics.median(before):.1f}"]
        for kind in KEPT:
            after = [run[work] for run in found[kind]]
            ratios = sorted(b / a for b, a in zip(before, after, strict=True))
            middle = statistics.median(before) / statistics.median(after)
            cells.append(f"{statistics.median(after):.1f}, {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        lines.append(f"| {work} | {' | '.join(cells)} |")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "allocator.json").write_text(json.dumps({"python": sys.version, "runs": found}, indent=1) + "\n")
    (RESULTS / "allocator.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
