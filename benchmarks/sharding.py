"""A student of half a billion parameters in one process, and sharded over two.

    python benchmarks/sharding.py                  # as recorded; both ways take 12 GB
    python benchmarks/sharding.py --layers 2       # a small one, to try it

`distilvec train` on random weights: in one process with batches of 8, and by torchrun in two, which share them,
with `training.fsdp`. Both see the same texts, so the students have to be the same but for the order of sums. It
reports the peak of resident memory of a process, that of its anonymous part (without mapped files, which the system can
drop), and the differences of weights beside the largest step that a weight can have made.

Results: benchmarks/results/sharding.json and sharding.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from machine import processor

RESULTS = Path(__file__).parent / "results"
TEXTS, STEPS, BATCH = 64, 4, 8
#: Of memory; largest of a process.
KINDS = ("peak", "anonymous")
WAYS = {"one process": 1, "two processes, sharded": 2}


def recipe(folder: Path, processes: int, layers: int) -> Path:
    """The recipe of a way, in JSON, which is YAML."""
    from distilvec.flow.demo import demo_teacher

    teacher = demo_teacher()
    texts = folder / "texts.txt"
    texts.write_text("\n".join(f"The {n}th of {TEXTS} texts is about {n * 7} things." for n in range(TEXTS)), "utf-8")
    student = {"layers": layers, "width": 1280, "heads": 20, "tokenizer": teacher, "vocabulary": 30_522}
    made = {
        "corpus": {"path": str(texts), "holdout": 0.0},
        "teachers": [{"name": "minilm", "model": teacher, "dtype": "float32"}],
        "student": {"fresh": student, "dropout": 0.0},
        "method": {"name": "cosine"},
        "optimizer": {"lr": 1e-4},
        "training": {
            "max_steps": STEPS,
            "batch_size": BATCH,  # of all processes together
            "bf16": False,
            "fsdp": processes > 1,
            "save_every": 1000,
        },
        "cache": str(folder / "cache"),
        "output": str(folder / f"{processes}"),
    }
    file = folder / f"{processes}.json"
    file.write_text(json.dumps(made), encoding="utf-8")
    return file


def train(file: Path) -> None:
    """One process of a training: its peak and time go beside the recipe."""
    from distilvec.flow.run import train as start
    from distilvec.recipe import Recipe

    anonymous = watched()
    start(Recipe.load(file))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    Path(f"{file}.{os.environ.get('RANK', '0')}").write_text(
        json.dumps({"peak": peak, "anonymous": max(anonymous)}), encoding="utf-8"
    )


def watched() -> list[int]:
    """Bytes of anonymous memory of this process, every twentieth of a second from now on."""
    seen = [0]

    def look() -> None:
        while True:
            lines = Path("/proc/self/status").read_text("ascii").splitlines()
            seen.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon")))
            time.sleep(0.05)

    threading.Thread(target=look, daemon=True).start()
    return seen


def measured(folder: Path, processes: int, layers: int) -> dict[str, Any]:
    file = recipe(folder, processes, layers)
    words = ["--train", str(file)]
    launch = (
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    )
    begun = time.perf_counter()
    subprocess.run([sys.executable, *launch, __file__, *words], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    seconds = time.perf_counter() - begun
    found = [json.loads(Path(f"{file}.{rank}").read_text("utf-8")) for rank in range(processes)]
    return {"seconds": seconds, **{kind: [each[kind] for each in found] for kind in KINDS}}


def difference(folder: Path) -> dict[str, float]:
    """Return the largest and the mean difference of a weight between the two students, and their number of weights."""
    from safetensors.numpy import load_file

    files = [next((folder / name / "student").rglob("model.safetensors")) for name in ("1", "2")]
    one, two = map(load_file, files)
    return {
        "difference": max(float(abs(one[name] - two[name]).max()) for name in one),
        "mean": sum(float(abs(one[name] - two[name]).sum()) for name in one) / sum(each.size for each in one.values()),
        "parameters": sum(value.size for value in one.values()),
    }


def page(found: dict[str, Any]) -> str:
    one = found["ways"]["one process"]
    lines = [
        "# A student that is sharded over two processes",
        "",
        f"`python benchmarks/sharding.py --layers {found['layers']}`: {found['processor']}, one thread a process. "
        f"{found['parameters'] / 1e6:,.0f} M parameters in float32, AdamW, {STEPS} steps of {BATCH} texts.",
        "",
        "| | peak of a process, MB | of one process | anonymous, MB | of one process |",
        "|---|---|---|---|---|",
    ]
    for way, row in found["ways"].items():
        columns = (f"{max(row[kind]) / 1e6:,.0f} | {max(row[kind]) / max(one[kind]):.2f}" for kind in KINDS)
        lines.append(f"| {way} | {' | '.join(columns)} |")
    compared = (
        f"The two students' weights differ by {found['mean']:.1e} on average and by {found['difference']:.1e} at most; "
        f"{STEPS} steps of AdamW at 1e-4 move a weight by up to {STEPS}e-4."
    )
    return "\n".join([*lines, "", compared, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        train(options.train)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ways = {way: measured(folder, processes, options.layers) for way, processes in WAYS.items()}
        found = {"layers": options.layers, "processor": processor(), "ways": ways, **difference(folder)}
    (RESULTS / "sharding.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "sharding.md").write_text(page(found), encoding="utf-8")
    print(page(found))


if __name__ == "__main__":
    main()
