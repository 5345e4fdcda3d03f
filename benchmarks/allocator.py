"""What keeping freed memory in the process gains: a training step and encoding, with and without it.

    OMP_NUM_THREADS=1 python benchmarks/allocator.py [--rounds 3]

Each measurement is a process of its own, because the setting lasts as long as the process; the two kinds take turns.
Figures are processor time, system time included. Results: benchmarks/results/allocator.json and allocator.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

RESULTS = Path(__file__).parent / "results"


def one(keep: bool) -> dict[str, float]:
    """Milliseconds of processor time of steps and of 64 encoded texts, in this process."""
    import torch
    from sentence_transformers import SentenceTransformer

    from distilvec.allocator import keep_freed_memory
    from distilvec.flow.demo import demo_teacher

    if keep and not keep_freed_memory():
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

    return {"step": measure(step), "step in bfloat16": measure(lambda: step(half=True)), "encode": measure(encode)}


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
    parser.add_argument("--one", choices=["keep", "plain"], help="measure in this process and print JSON")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(options.one == "keep")))
        return
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    found: dict[str, list[dict[str, float]]] = {"plain": [], "keep": []}
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
        "all-MiniLM-L6-v2, a step of 32 x 24 tokens with AdamW, 64 encoded texts. The ratio is that of the medians, "
        "with the lowest and the highest of the rounds.",
        "",
        "| work | plain | memory kept | ratio |",
        "|---|---|---|---|",
    ]
    for work in found["plain"][0]:
        before, after = ([run[work] for run in found[kind]] for kind in ("plain", "keep"))
        ratios = sorted(b / a for b, a in zip(before, after, strict=True))
        middle = statistics.median(before) / statistics.median(after)
        lines.append(
            f"| {work} | {statistics.median(before):.1f} | {statistics.median(after):.1f} "
            f"| {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |"
        )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "allocator.json").write_text(json.dumps({"python": sys.version, "runs": found}, indent=1) + "\n")
    (RESULTS / "allocator.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
