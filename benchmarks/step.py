"""Time per optimiser step and peak memory of every method relative to SimCSE, and against other trainers.

    OMP_NUM_THREADS=1 python benchmarks/step.py                       # student-bpe, all methods: some minutes
    python benchmarks/step.py --student base --methods simcse,talas,talas+asam --batches 2 --rounds 3
    python benchmarks/step.py --student tiny --batches 2 --rounds 2 --steps 8      # a quick look

A step is what happens between two batches: forward, loss, backward, clipping, AdamW, with everything that the method
adds. All methods take turns batch by batch on the same batches, each with its own copy of the student, so that a busy
machine slows them alike. A round is `--batches` batches; ratios are the medians over the rounds, with the least and the
greatest. The ratio of processor time stands beside that of wall time: on a busy machine it is the steadier of the two,
and the aims are its; with `--device cuda` they are wall time's, everything is in bfloat16, and the files end in -cuda.
Peak memory is that of a process in which nothing but one method's steps has run (the kernel's high-water mark, counted
from after the model was built).

"Bare student" is a forward pass, the backward pass of a sum, and AdamW, with no loss and no trainer. Whole trainings
are compared with sentence-transformers' EmbedDistillLoss under its own trainer (see trainers.py).
Texts: TALAS's corpus from the shared data, else docstrings. Results: benchmarks/results/step.json and step.md (with
the student's name in the files' where it is not the default).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from machine import stem
from trainers import ARRAY, LIST, OURS, compare
from workload import BARE, CLIPPED, METHODS, Workload, shared

RESULTS = Path(__file__).parent / "results"
BASELINE = "simcse"
#: What is aimed at: (row, relative to, at most).
AIMS = (("talas", BASELINE, 1.15), ("talas+asam", BASELINE, 2.2), ("cosine", BARE, 1.05), ("cosine", CLIPPED, 1.05))
TEXTS = 4096

Times = dict[str, list[tuple[float, float]]]


def measure(work: Workload, names: list[str], batches: int, rounds: int) -> Times:
    """(wall, processor) seconds per step, one entry a round, after one round to warm up."""
    steps = {name: work.step(name) for name in names}
    given = work.batches(batches * rounds)
    given = [given[i % len(given)] for i in range(batches * rounds)]
    for name in names:
        for batch in given[:2]:
            steps[name](batch)
    found: Times = {name: [] for name in names}
    for turn in range(rounds):
        sums = {name: [0.0, 0.0] for name in names}
        for position, batch in enumerate(given[turn * batches : (turn + 1) * batches]):
            shift = (turn * batches + position) % len(names)
            for name in names[shift:] + names[:shift]:
                start, busy = time.perf_counter(), time.process_time()
                steps[name](batch)
                if work.device.type == "cuda":
                    torch.cuda.synchronize()
                sums[name][0] += time.perf_counter() - start
                sums[name][1] += time.process_time() - busy
        for name in names:
            found[name].append((sums[name][0] / batches, sums[name][1] / batches))
    return found


def ratio(times: Times, name: str, to: str, clock: int) -> dict[str, float]:
    """Median, least and greatest of the ratio of a round's times."""
    values = [a[clock] / b[clock] for a, b in zip(times[name], times[to], strict=True)]
    return {"median": statistics.median(values), "least": min(values), "greatest": max(values)}


def peak_bytes(work: Workload, name: str, batches: int) -> dict[str, int]:
    """High-water mark of this process over some steps of one method, and what it held before."""
    step, given = work.step(name), work.batches(batches)
    if work.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for batch in given:
            step(batch)
        return {"before": int(before), "peak": int(torch.cuda.max_memory_allocated())}
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5")  # what building needed is not the step's
    before = _status("VmRSS")
    for batch in given:
        step(batch)
    return {"before": before, "peak": _status("VmHWM")}


def _status(field: str) -> int:
    """Bytes of a field of /proc/self/status; the process' own high-water mark where there is no /proc.

    ru_maxrss alone would not do: a child inherits its parent's.
    """
    file = Path("/proc/self/status")
    if not file.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    line = next(line for line in file.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def peaks(work: Workload, options: argparse.Namespace, names: list[str]) -> dict[str, dict[str, int]]:
    """Every method in a process of its own; in this one on a GPU, whose allocator can forget its high-water mark."""
    if options.device == "cuda":
        return {name: peak_bytes(work, name, 8) for name in names}
    found = {}
    for name in names:
        command = [sys.executable, __file__, "--peak", name, *_same(options)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
    return found


def _same(options: argparse.Namespace) -> list[str]:
    named = {"--student": options.student, "--batch-size": options.batch_size, "--device": options.device}
    return [str(word) for pair in named.items() for word in pair]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--student", choices=["bpe", "base", "tiny"], default="bpe")
    parser.add_argument("--methods", default="all", help="names separated by commas; simcse is always there")
    parser.add_argument("--batches", type=int, default=3, help="batches of a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=25, help="steps of a whole training; 0 leaves trainings out")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    sizes = {"texts": TEXTS, "batch_size": options.batch_size, "device": options.device}
    with tempfile.TemporaryDirectory(prefix="distilvec-step-") as folder:
        work = Workload.make(options.student, Path(folder), **sizes)
        if options.peak:
            print(json.dumps(peak_bytes(work, options.peak, 8)))
            return
        wanted = list(METHODS) if options.methods == "all" else [BASELINE, *options.methods.split(",")]
        names = [BARE, CLIPPED, *dict.fromkeys(wanted)]
        memory = peaks(work, options, names)
        times = measure(work, names, options.batches, options.rounds)
        trainings = compare(work, options.steps, options.rounds) if options.steps else None
        facts = describe(work, options)
    write(options, facts, times, memory, trainings)


def describe(work: Workload, options: argparse.Namespace) -> dict[str, Any]:
    lengths = work.tokens.lengths
    parameters = sum(p.numel() for p in work.student.parameters())
    return {
        "command": " ".join(["python", "benchmarks/step.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "device": torch.cuda.get_device_name() if options.device == "cuda" else options.device,
        "torch": torch.__version__,
        "student": f"{options.student}, {parameters / 1e6:.1f} M parameters",
        "corpus": "TALAS's corpus" if shared() else "docstrings",
        "texts": len(work.corpus),
        "tokens_per_text": float(lengths.mean()),
        "batch_size": options.batch_size,
        "rounds": options.rounds,
        "batches_per_round": options.batches,
    }


def write(
    options: argparse.Namespace,
    facts: dict[str, Any],
    times: Times,
    memory: dict[str, dict[str, int]],
    trainings: dict[str, Any] | None,
) -> None:
    clock = 1 if options.device == "cpu" else 0
    rows = [
        {
            "name": name,
            "milliseconds": 1e3 * statistics.median(wall for wall, _ in seconds),
            "ratio": ratio(times, name, BASELINE, 0),
            "ratio_processor_time": ratio(times, name, BASELINE, 1),
            "ratio_to_bare": ratio(times, name, BARE, clock),
            "peak_bytes": memory[name]["peak"],
            "added_bytes": memory[name]["peak"] - memory[name]["before"],
            "ratio_peak": memory[name]["peak"] / memory[BASELINE]["peak"],
        }
        for name, seconds in times.items()
    ]
    aims = [
        {"row": row, "relative_to": to, "aim": aim, "found": ratio(times, row, to, clock)}
        for row, to, aim in AIMS
        if row in times
    ]
    result = {**facts, "rows": rows, "aims": aims, "trainings": _trainings(trainings) if trainings else None}
    options.results.mkdir(parents=True, exist_ok=True)
    name = stem("step" if options.student == "bpe" else f"step-{options.student}", options.device)
    (options.results / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.results / f"{name}.md").write_text(table(result))
    print(table(result))


def _trainings(found: dict[str, Any]) -> dict[str, Any]:
    times: Times = found["seconds_per_step"]
    return {
        "steps": found["steps"],
        "tokenising_milliseconds_per_step": 1e3 * found["tokenising_seconds_per_step"],
        "rows": [
            {
                "name": name,
                "steps_per_second": 1 / statistics.median(wall for wall, _ in times[name]),
                "processor_milliseconds": 1e3 * statistics.median(busy for _, busy in times[name]),
                "ratio": ratio(times, name, OURS, 0),
                "ratio_processor_time": ratio(times, name, OURS, 1),
            }
            for name in (OURS, LIST, ARRAY)
        ],
    }


def _training_aims(found: dict[str, Any] | None, clock: str) -> list[dict[str, Any]]:
    """A whole training of ours relative to each of the others."""
    others = [row for row in (found or {"rows": []})["rows"] if row["name"] != OURS]
    return [
        {
            "row": f"training by {OURS}",
            "relative_to": row["name"],
            "aim": 1.0,
            "found": {
                "median": 1 / row[clock]["median"],
                "least": 1 / row[clock]["greatest"],
                "greatest": 1 / row[clock]["least"],
            },
        }
        for row in others
    ]


def _cell(found: dict[str, float]) -> str:
    return f"{found['median']:.2f} ({found['least']:.2f} to {found['greatest']:.2f})"


def table(result: dict[str, Any]) -> str:
    """The figures as Markdown."""
    on_gpu = result["device"] != "cpu"
    clock = "ratio" if on_gpu else "ratio_processor_time"
    lines = [
        "# Cost of a training step",
        "",
        f"`{result['command']}`: {result['machine']}, {result['device']}, torch {result['torch']}; student "
        f"{result['student']}; {result['texts']} texts of {result['corpus']}, {result['tokens_per_text']:.1f} tokens "
        f"each, batch {result['batch_size']}. Median (least to greatest) over {result['rounds']} rounds of "
        f"{result['batches_per_round']} batches, methods in turn.",
        "",
        "| step | ms | relative to SimCSE | by processor time | relative to the bare student | peak MiB "
        "| added by steps | peak relative to SimCSE |",
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {row['name']} | {row['milliseconds']:.1f} | {_cell(row['ratio'])} "
            f"| {_cell(row['ratio_processor_time'])} | {_cell(row['ratio_to_bare'])} "
            f"| {row['peak_bytes'] / 2**20:.0f} | {row['added_bytes'] / 2**20:.0f} | {row['ratio_peak']:.2f} |"
            for row in result["rows"]
        ),
        "",
        f"| aim ({'wall' if on_gpu else 'processor'} time) | at most | measured | met |",
        "|---|---|---|---|",
        *(
            f"| {aim['row']} relative to {aim['relative_to']} | {aim['aim']} | {_cell(aim['found'])} "
            f"| {'yes' if aim['found']['median'] <= aim['aim'] else 'no'} |"
            for aim in [*result["aims"], *_training_aims(result["trainings"], clock)]
        ),
    ]
    if result["trainings"]:
        found = result["trainings"]
        lines += [
            "",
            f"Whole trainings of {found['steps']} steps, data loading included. distilvec tokenises once ahead, which "
            f"is not in its time here: {found['tokenising_milliseconds_per_step']:.1f} ms per step of the first epoch.",
            "",
            "| trainer | steps/s | processor ms/step | time relative to distilvec | by processor time |",
            "|---|---|---|---|---|",
            *(
                f"| {row['name']} | {row['steps_per_second']:.2f} | {row['processor_milliseconds']:.1f} "
                f"| {_cell(row['ratio'])} | {_cell(row['ratio_processor_time'])} |"
                for row in found["rows"]
            ),
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
