"""Sparse dispatch to experts against two plain ways, and what aggregating on the sphere adds to a forward pass.

    OMP_NUM_THREADS=2 python benchmarks/dispatch.py
    python benchmarks/dispatch.py --device cuda --dtype bfloat16 --rounds 50
    python benchmarks/dispatch.py --vocabulary 250048                   # the encoder at its real size, 475 M parameters
    python benchmarks/dispatch.py --quick                               # a look at small sizes, in seconds
    python benchmarks/dispatch.py --table                               # only the page again, from the .json

One mixture of 8 experts, two per token, without padding. "sparse" is the library's: tokens sorted by expert, one
product per expert on a contiguous slice (on CUDA in bfloat16 one grouped product for all). "dense" lets every expert
work on every token and adds them up with weights that are mostly zero. "loop" goes through the experts, finds each
one's tokens by a mask and adds what it makes of them. All agree before they are timed, and they take turns; ratios are
medians over rounds of times of the same round. Then an encoder of the published shape (vocabulary cut to 1,000 unless
`--vocabulary` says otherwise) in every aggregation: "added" is the median over rounds of (forward - linear forward) /
linear forward, end to end; "alone" the time of the aggregation step itself less that of the linear sum, times the
number of mixtures, over a linear forward pass, each the least over rounds, which scatters less on a busy machine. The
aim is held against both; against "added" with its quartiles.
Results: benchmarks/results/dispatch.json and .md.
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

import torch
from machine import stem
from torch import Tensor
from torch.nn import functional

from distilvec.modules.aggregation import set_aggregation
from distilvec.modules.moe_encoder import MoeEncoder, MoeEncoderConfig
from distilvec.modules.moe_experts import MixtureOfExperts
from distilvec.modules.sphere import AGGREGATIONS, aggregate

RESULTS = Path(__file__).parent / "results"
#: tokens, width, width of the experts
SIZES = [(256, 384, 1536), (2048, 384, 1536), (8192, 384, 1536), (256, 768, 3072), (2048, 768, 3072)]
LARGE = [(16384, 768, 3072), (65536, 768, 3072)]  # on CUDA only
QUICK = [(64, 32, 128), (512, 32, 128)]
#: batch, tokens per text
TEXTS = [(1, 64), (16, 64), (16, 256)]
WAYS = ("sparse", "dense", "loop")
AIM = 0.03
#: Word pieces of the encoder by default.
CUT = 1000

Step = Callable[[], Any]


def dense(layer: MixtureOfExperts, states: Tensor) -> Tensor:
    """Every expert on every token."""
    mlp, tokens = layer.experts.mlp, states[0]
    weights, chosen = layer.router(tokens).topk(layer.config.experts_per_token)
    every = torch.zeros(len(tokens), mlp.shape[0], dtype=weights.dtype, device=tokens.device)
    every = every.scatter(1, chosen, weights).to(tokens.dtype)
    first, second = (weight.view(mlp.shape) for weight in (mlp.w1, mlp.w2))
    outputs = mlp.activation(tokens @ first.mT) @ second  # [E, T, d]
    return (outputs * every.mT.unsqueeze(-1)).sum(0)[None] + layer.experts.bias


def loop(layer: MixtureOfExperts, states: Tensor) -> Tensor:
    """One expert after the other, on the tokens that a mask gives it."""
    mlp, tokens = layer.experts.mlp, states[0]
    weights, chosen = layer.router(tokens).topk(layer.config.experts_per_token)
    mask = functional.one_hot(chosen, mlp.shape[0]).permute(2, 0, 1)
    total = torch.zeros_like(tokens)
    for e in range(mlp.shape[0]):
        rows, slot = torch.where(mask[e])
        first, second = (weight.view(mlp.shape)[e] for weight in (mlp.w1, mlp.w2))
        outputs = mlp.activation(tokens[rows] @ first.mT) @ second
        total = total.index_add(0, rows, outputs * weights[rows, slot, None].to(tokens.dtype))
    return total[None] + layer.experts.bias


def take_turns(steps: dict[str, Step], rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds per call, one entry a round, after two calls to warm up; the order turns with the round."""
    names = list(steps)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(-2, rounds):
        at = turn % len(names)
        for name in names[at:] + names[:at]:
            start = time.perf_counter()
            steps[name]()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn >= 0:
                found[name].append(time.perf_counter() - start)
    return found


def ratios(times: dict[str, list[float]], name: str, base: str) -> list[float]:
    return sorted(a / b for a, b in zip(times[name], times[base], strict=True))


def ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    return statistics.median(ratios(times, name, base))


def quartiles(times: dict[str, list[float]], name: str, base: str) -> list[float]:
    """First and third, of (time - time of the base) / time of the base."""
    found = ratios(times, name, base)
    return [found[len(found) // 4] - 1, found[-1 - len(found) // 4] - 1]


def measure_dispatch(size: tuple[int, int, int], options: argparse.Namespace) -> list[dict[str, Any]]:
    tokens, width, inner = size
    torch.manual_seed(0)
    config = MoeEncoderConfig(hidden_size=width, num_attention_heads=1, intermediate_size=inner)
    layer = MixtureOfExperts(config)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.02)
    layer = layer.to(options.device, options.dtype)
    states = torch.randn(1, tokens, width, device=options.device, dtype=options.dtype)
    ways: dict[str, Callable[[], Tensor]] = {
        "sparse": lambda: layer(states, None),
        "dense": lambda: dense(layer, states),
        "loop": lambda: loop(layer, states),
    }
    with torch.no_grad():
        results = [way() for way in ways.values()]
    loose = 2e-2 if options.dtype == torch.bfloat16 else 1e-4
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], atol=loose, rtol=loose)

    def trained(way: Callable[[], Tensor]) -> None:
        layer.zero_grad()
        way().sum().backward()

    def only_forward(way: Callable[[], Tensor]) -> None:
        with torch.inference_mode():
            way()

    rows = []
    for what, run in (("forward", only_forward), ("forward and backward", trained)):
        steps: dict[str, Step] = {name: lambda way=way, run=run: run(way) for name, way in ways.items()}
        times = take_turns(steps, options.rounds, options.device)
        rows.append(
            {
                "tokens": tokens,
                "width": width,
                "inner": inner,
                "pass": what,
                "milliseconds": {name: 1e3 * statistics.median(times[name]) for name in WAYS},
                "dense_over_sparse": ratio(times, "dense", "sparse"),
                "loop_over_sparse": ratio(times, "loop", "sparse"),
            }
        )
    return rows


@torch.inference_mode()
def measure_aggregation(model: MoeEncoder, shape: tuple[int, int], options: argparse.Namespace) -> list[dict[str, Any]]:
    ids = torch.randint(3, options.vocabulary, shape, generator=torch.Generator().manual_seed(0)).to(options.device)
    assignments, width = 2 * ids.numel(), model.config.hidden_size
    outputs = torch.randn(assignments, width, device=options.device, dtype=options.dtype)
    order = torch.randperm(assignments).to(options.device)
    weights = torch.rand(ids.numel(), 2, device=options.device, dtype=options.dtype)

    def forward(mode: str) -> Any:
        set_aggregation(model, mode)
        return model(input_ids=ids)

    def alone(mode: str) -> Tensor:
        """What the mixture does after its experts."""
        if mode == "linear":
            weighted = outputs * weights.flatten().index_select(0, order).unsqueeze(-1)
            return outputs.new_zeros(ids.numel(), width).index_add(0, order // 2, weighted)
        spread = outputs.new_zeros(assignments, width).index_copy(0, order, outputs)
        return aggregate(spread.unflatten(0, (-1, 2)), weights, mode).to(options.dtype)

    steps: dict[str, Step] = {mode: lambda mode=mode: forward(mode) for mode in AGGREGATIONS}
    steps |= {f"alone {mode}": lambda mode=mode: alone(mode) for mode in AGGREGATIONS}
    times = take_turns(steps, options.rounds, options.device)
    least = {name: min(taken) for name, taken in times.items()}
    mixtures = model.config.layer_kinds.count("mixture")
    return [
        {
            "batch": shape[0],
            "tokens": shape[1],
            "aggregation": mode,
            "milliseconds": 1e3 * statistics.median(times[mode]),
            "added": ratio(times, mode, "linear") - 1,
            "added_quartiles": quartiles(times, mode, "linear"),
            "alone": mixtures * (least[f"alone {mode}"] - least["alone linear"]) / least["linear"],
        }
        for mode in AGGREGATIONS
    ]


def end_to_end(row: dict[str, Any]) -> str:
    """Whether the aim is met by what an aggregation adds to the whole pass."""
    low, high = row.get("added_quartiles", (row["added"], row["added"]))
    if low <= AIM < high:
        return "not told apart"
    return "yes" if high <= AIM else "no"


def table(found: dict[str, Any]) -> str:
    """The figures as Markdown."""
    rounds = found["rounds"]
    lines = [
        "# Dispatch to experts and their aggregation",
        "",
        f"`{found['command']}`: {found['machine']}, {found['device']}, {found['dtype']}, torch {found['torch']}. "
        f"8 experts, 2 per token; medians over {rounds} rounds, in turn.",
        "",
        "| tokens | width | experts' width | pass | sparse ms | dense ms | loop ms | dense / sparse | loop / sparse |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["dispatch"]:
        taken = " | ".join(f"{row['milliseconds'][way]:.2f}" for way in WAYS)
        lines.append(
            f"| {row['tokens']} | {row['width']} | {row['inner']} | {row['pass']} | {taken} "
            f"| {row['dense_over_sparse']:.2f} | {row['loop_over_sparse']:.2f} |"
        )
    spread, told = "Its spread over rounds was not kept in this file: a verdict on it is one on the median alone.", ""
    if all("added_quartiles" in row for row in found["aggregation"]):
        spread, told = "In parentheses its quartiles.", "; not told apart where the quartiles include the aim"
    lines += [
        "",
        f"Encoder {found['encoder']}, vocabulary {found.get('vocabulary', CUT):,}, {found['parameters'] / 1e6:.1f} M "
        f"parameters, forward pass; ms and tokens per second by the median over {rounds} rounds.",
        "",
        "- added: how much longer the whole pass takes than the linear one, median over rounds of (pass - linear pass) "
        f"/ linear pass. {spread}",
        "- alone: the time of the aggregation step by itself less that of the linear sum, times the number of mixtures "
        f"and over a linear pass; each the least of {rounds} rounds, no median. Below 0 the step was the faster one.",
        f"- met: whether that is at most {AIM:.0%}, the aim, end to end (added) and alone{told}.",
        "",
        "| batch | tokens | aggregation | ms | tokens/s | added | alone | met, end to end | met, alone |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["aggregation"]:
        base = row["aggregation"] == "linear"
        added, alone = f"{row['added']:+.2%}", "yes" if row["alone"] <= AIM else "no"
        if "added_quartiles" in row:
            added += " ({:+.2%} to {:+.2%})".format(*row["added_quartiles"])
        cells = ["", "", "", ""] if base else [added, f"{row['alone']:.2%}", end_to_end(row), alone]
        lines.append(
            f"| {row['batch']} | {row['tokens']} | {row['aggregation']} | {row['milliseconds']:.2f} "
            f"| {1e3 * row['batch'] * row['tokens'] / row['milliseconds']:,.0f} | {' | '.join(cells)} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", type=lambda name: getattr(torch, name))
    parser.add_argument("--encoder", default="12x768", help="layers x width")
    parser.add_argument("--vocabulary", type=int, default=CUT, help="of the encoder; 250048 as published")
    parser.add_argument("--quick", action="store_true", help="small sizes, three rounds")
    parser.add_argument("--table", action="store_true", help="only write the page of the figures that are there")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    name = stem("dispatch", options.device)
    if options.table:
        (options.results / f"{name}.md").write_text(table(json.loads((options.results / f"{name}.json").read_text())))
        return
    if options.quick:
        options.rounds, options.encoder = 3, "2x64"
    sizes = QUICK if options.quick else SIZES + (LARGE if options.device == "cuda" else [])
    dispatch = [row for size in sizes for row in measure_dispatch(size, options)]
    layers, width = map(int, options.encoder.split("x"))
    torch.manual_seed(0)
    config = MoeEncoderConfig(
        vocab_size=options.vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
    )
    model = MoeEncoder(config).eval().to(options.device, options.dtype)
    shapes = TEXTS[:2] if options.quick else TEXTS + ([(256, 128)] if options.device == "cuda" else [])
    found = {
        "command": " ".join(["python", "benchmarks/dispatch.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "device": torch.cuda.get_device_name() if options.device == "cuda" else options.device,
        "dtype": str(options.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "rounds": options.rounds,
        "encoder": options.encoder,
        "vocabulary": options.vocabulary,
        "parameters": sum(p.numel() for p in model.parameters()),
        "dispatch": dispatch,
        "aggregation": [row for shape in shapes for row in measure_aggregation(model, shape, options)],
    }
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (options.results / f"{name}.md").write_text(table(found))
    print(table(found))


if __name__ == "__main__":
    main()
