"""What DistillMoE's mixture of experts adds to the latency of a model of BERT-base's size.

    OMP_NUM_THREADS=2 python benchmarks/expert_head.py                   # a quarter of an hour on two cores
    python benchmarks/expert_head.py --device cuda --rounds 200          # as the paper measured
    python benchmarks/expert_head.py --rounds 2 --trunk 2x64             # a quick look
    python benchmarks/expert_head.py --table                             # only the page again, from the .json

Trunk: 12 layers, width 768, random weights, mean pooling. Head: three experts of width 1024 under a linear gate, as
it ships. Inputs are token ids, so tokenising is not in the time. The bare trunk, the trunk with the head, and the head
alone take turns on the same inputs. "Added" is the median over rounds of (with head - bare) / bare, which on a busy
machine scatters more than what is measured; "head alone" is the head's time, straight after a bare trunk, over the bare
trunk's, which scatters less. The aims are held against both; "added" is not told apart from an aim between its
quartiles. The shapes are those of the paper's tables 18 and 19: single texts and batches of short ones, single texts
of 128 and 512 tokens.
Results: benchmarks/results/expert_head.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from machine import stem
from workload import real_texts

from distilvec.modules.expert_head import ExpertHead
from distilvec.students import fresh

RESULTS = Path(__file__).parent / "results"
SHORT = 32
#: (batch, tokens) -> aim and the paper's figure, both as shares of the bare trunk's time.
SHAPES = {(1, SHORT): (0.05, 0.117), (32, SHORT): (0.02, 0.036), (1, 128): (0.04, 0.086), (1, 512): (0.01, 0.014)}
BARE, WITH, HEAD = "bare", "with head", "head alone"

Step = Callable[[], Any]


def make_models(trunk: str) -> tuple[Any, ExpertHead]:
    layers, width = map(int, trunk.split("x"))
    torch.manual_seed(0)
    texts = [row["text"] for row in real_texts(500)]
    return fresh(layers=layers, width=width, vocabulary=2000, texts=texts, max_length=512).eval(), ExpertHead(
        width
    ).eval()


def steps(model: Any, head: ExpertHead, batch: int, tokens: int, device: torch.device) -> dict[str, Step]:
    """The three that take turns; the head follows the bare trunk, so that its weights are not in the caches yet."""
    ids = torch.randint(10, 1000, (batch, tokens), generator=torch.Generator().manual_seed(0))
    features = {"input_ids": ids.to(device), "attention_mask": torch.ones_like(ids).to(device)}
    vector = model(dict(features))["sentence_embedding"]
    return {
        BARE: lambda: model(dict(features)),
        HEAD: lambda: head({"sentence_embedding": vector}),
        WITH: lambda: head(model(dict(features))),
    }


@torch.inference_mode()
def measure(model: Any, head: ExpertHead, shape: tuple[int, int], rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds per call, one entry a round, after some calls to warm up."""
    todo = steps(model, head, *shape, torch.device(device))
    names = list(todo)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-3, rounds):
        for name in names[turn % 3 :] + names[: turn % 3]:
            start = time.perf_counter()
            todo[name]()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn >= 0:
                found[name].append(time.perf_counter() - start)
    return found


def summary(shape: tuple[int, int], times: dict[str, list[float]]) -> dict[str, Any]:
    aim, paper = SHAPES[shape]
    bare = statistics.median(times[BARE])
    added = sorted((a - b) / b for a, b in zip(times[WITH], times[BARE], strict=True))
    quarter = len(added) // 4
    return {
        "batch": shape[0],
        "tokens": shape[1],
        "bare_milliseconds": 1e3 * bare,
        "with_milliseconds": 1e3 * statistics.median(times[WITH]),
        "head_milliseconds": 1e3 * statistics.median(times[HEAD]),
        "added": {"median": statistics.median(added), "quartiles": [added[quarter], added[-1 - quarter]]},
        "head_alone": statistics.median(times[HEAD]) / bare,
        "aim": aim,
        "paper": paper,
    }


def end_to_end(row: dict[str, Any]) -> str:
    """Whether the aim is met by what the head adds to the whole pass."""
    low, high = row["added"]["quartiles"]
    if low <= row["aim"] < high:
        return "not told apart"
    return "yes" if high <= row["aim"] else "no"


def table(found: dict[str, Any]) -> str:
    """The figures as Markdown."""

    def percent(share: float) -> str:
        return f"{100 * share:.2f} %"

    lines = [
        "# Latency of the mixture of experts",
        "",
        f"`{found['command']}`: {found['machine']}, {found['device']}, torch {found['torch']}; trunk {found['trunk']} "
        f"of {found['trunk_parameters'] / 1e6:.1f} M parameters, head {found['head_parameters'] / 1e6:.2f} M. Medians "
        f"over {found['rounds']} rounds, in turn. The paper measured on an H200.",
        "",
        "- added: median over rounds of (with head - bare) / bare, end to end, with its quartiles.",
        "- head alone: the head's time, straight after a bare trunk, over the bare trunk's; no end-to-end measure.",
        "- met: whether that is at most the aim; not told apart where the quartiles include the aim.",
        "",
        "| batch | tokens | bare ms | with head ms | added | head alone ms | head alone | aim | met, end to end "
        "| met, alone | the paper's |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        low, high = row["added"]["quartiles"]
        lines.append(
            f"| {row['batch']} | {row['tokens']} | {row['bare_milliseconds']:.2f} | {row['with_milliseconds']:.2f} "
            f"| {percent(row['added']['median'])} ({percent(low)} to {percent(high)}) | {row['head_milliseconds']:.3f} "
            f"| {percent(row['head_alone'])} | {percent(row['aim'])} | {end_to_end(row)} "
            f"| {'yes' if row['head_alone'] <= row['aim'] else 'no'} | {percent(row['paper'])} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--trunk", default="12x768", help="layers x width")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--table", action="store_true", help="only write the page of the figures that are there")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    name = stem("expert_head", options.device)
    if options.table:
        kept = json.loads((options.results / f"{name}.json").read_text())
        (options.results / f"{name}.md").write_text(table(kept))
        return
    model, head = make_models(options.trunk)
    model, head = model.to(options.device), head.to(options.device)
    rows = [summary(shape, measure(model, head, shape, options.rounds, options.device)) for shape in SHAPES]
    found = {
        "command": " ".join(["python", "benchmarks/expert_head.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "device": torch.cuda.get_device_name() if options.device == "cuda" else options.device,
        "torch": torch.__version__,
        "trunk": options.trunk,
        "trunk_parameters": sum(p.numel() for p in model.parameters()),
        "head_parameters": sum(p.numel() for p in head.parameters()),
        "rounds": options.rounds,
        "rows": rows,
    }
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.results / f"{name}.md").write_text(table(found))
    print(table(found))


if __name__ == "__main__":
    main()
