"""Texts per second of static students beside a transformer of the same size, on the same texts, in turns.

    OMP_NUM_THREADS=1 python benchmarks/static.py [--texts 2048] [--rounds 7]

Models: all-MiniLM-L6-v2, two layers of it with at most 5,000 word pieces (the headline's student) and tables of its
pieces, all untrained: speed depends on shapes and tokenizers, not on what the weights say. Texts: sentences of the
shared pool (DISTILVEC_DATA), of which others choose the pieces; without it, documentation of the standard library.
Plain sentence-transformers in float32, batches of 32, one thread; all models encode all texts in every round, in
alternating order, so that a busy machine slows them alike. A ratio is that of two models in one round: the median over
rounds stands with the least and the largest. Results: benchmarks/results/static.json and static.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import random
import statistics
import sys
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from encode import RESULTS, _instructions, documentation, measure
from sentence_transformers import SentenceTransformer
from workload import shared

from distilvec.flow.demo import demo_teacher
from distilvec.students import shrink, static

TEACHER, LAYERS = "all-MiniLM-L6-v2", "two layers, 5,000 pieces"
#: name -> numbers per piece, and how many pieces are kept.
TABLES: dict[str, tuple[int, int | None]] = {
    "table, 256 numbers, all pieces": (256, None),
    "table, 256 numbers, 21,500 pieces": (256, 21_500),
    "table, 384 numbers, 5,000 pieces": (384, 5_000),
}
#: The headline's student is cut there too.
MAX_LENGTH, PIECES_FROM = 128, 100_000


def texts(count: int) -> tuple[list[str], list[str]]:
    """Texts to encode, and others that choose the pieces."""
    folder = shared()
    if folder is None:
        found = documentation(PIECES_FROM)
    else:
        with gzip.open(folder / "data" / "sentences.jsonl.gz", "rt", encoding="utf-8") as rows:
            found = list(dict.fromkeys(json.loads(row)["text"] for row in rows))
        random.Random(0).shuffle(found)
    return found[:count], found[count : count + PIECES_FROM]


def models(chosen_by: list[str]) -> dict[str, SentenceTransformer]:
    """Every model by name, in float32."""
    found = {TEACHER: SentenceTransformer(demo_teacher(), device="cpu")}
    found[LAYERS], _ = shrink(demo_teacher(), layers=[1, 6], vocabulary=5_000, texts=chosen_by)
    for name, (dimensions, vocabulary) in TABLES.items():
        found[name] = static(demo_teacher(), dimensions=dimensions, vocabulary=vocabulary, texts=chosen_by)
    found[LAYERS].max_seq_length = MAX_LENGTH
    return {name: model.to("cpu").float().eval() for name, model in found.items()}


def ratios(times: dict[str, list[tuple[float, float]]], slow: str, fast: str, kind: int) -> list[float]:
    """How many times as fast, round by round, sorted; kind 0 is wall time, 1 processor time."""
    return sorted(own[kind] / other[kind] for own, other in zip(times[slow], times[fast], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    encoded, chosen_by = texts(options.texts)
    made = models(chosen_by)
    times = measure({name: lambda model=model: model.encode(encoded) for name, model in made.items()}, options.rounds)
    rows = [
        {
            "model": name,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "times_the_teacher": ratios(times, TEACHER, name, 0),
            "times_the_layers": ratios(times, LAYERS, name, 0),
            "times_the_layers_processor": ratios(times, LAYERS, name, 1),
            "seconds": [wall for wall, _ in times[name]],
        }
        for name, model in made.items()
    ]
    write(rows, encoded, options)


def write(rows: list[dict[str, Any]], encoded: list[str], options: argparse.Namespace) -> None:
    result = {
        "command": " ".join(["python", *sys.argv]),
        "threads": torch.get_num_threads(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {_instructions()}",
        "load_average": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "texts": len(encoded),
        "words_median": statistics.median(len(text.split()) for text in encoded),
        "source": "shared sentences" if shared() else "documentation of the standard library",
        "rows": rows,
    }
    (RESULTS / "static.json").write_text(json.dumps(result, indent=1) + "\n")
    table = [
        "# Static students and a transformer of the same size",
        "",
        f"`{result['command']}` on {result['machine']}, {result['threads']} thread, torch {result['torch']}, "
        f"load average {result['load_average']}. {result['texts']} texts ({result['source']}; median of "
        f"{result['words_median']:.0f} words), batches of 32. Median ratio of {options.rounds} rounds in turns "
        "(least to largest).",
        "",
        f"| model | parameters | times the speed of {TEACHER} | of the two layers | the same in processor time |",
        "|---|---|---|---|---|",
        *(
            f"| {row['model']} | {row['parameters'] / 1e6:.2f} M | {_spread(row['times_the_teacher'])} | "
            f"{_spread(row['times_the_layers'])} | {_spread(row['times_the_layers_processor'])} |"
            for row in rows
        ),
    ]
    (RESULTS / "static.md").write_text("\n".join(table) + "\n")
    print("\n".join(table))


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({values[0]:.1f} to {values[-1]:.1f})"


if __name__ == "__main__":
    main()
