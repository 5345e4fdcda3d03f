"""Aligning the tokens of two tokenizers: the library against the same thing in plain Python.

    OMP_NUM_THREADS=1 python benchmarks/alignment.py [--rounds 5]
    python benchmarks/alignment.py --table                             # only the page again, from the .json

Student bert-base-uncased (WordPiece), teacher Mistral (SentencePiece with byte fallback), from the shared data. Short
texts are TALAS's corpus, long ones ConTRoL's premises cut to 128 tokens on either side. Mode strict, tokenising left
out. The plain programme is Levenshtein's recurrence and time warping cell by cell on the same normalised strings,
without a memory; it runs on a part of the texts, on which both must agree, and the ratio is of the same texts in the
same run. All figures are processor time of one thread. "first time" begins with an empty table of distances; the other
ways have met all strings before. The aim of 50 times the plain programme's speed is held against every way.
Results: benchmarks/results/alignment.json and alignment.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import rapidfuzz
from workload import real_texts, shared

from distilvec.alignment import Aligner
from distilvec.alignment.loading import load_tokenizer, vocabulary_of
from distilvec.alignment.strings import alike, kind_of, plain

RESULTS = Path(__file__).parent / "results"
LENGTH = 128
BATCHES = (1, 32, 256, 1000)
#: Times the speed of the plain programme.
AIM = 50
Pair = tuple[int, int]
Ids = tuple[np.ndarray, np.ndarray]


def edit_distance(a: str, b: str) -> int:
    """Levenshtein's recurrence, row by row."""
    before = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y)))
        before = row
    return before[-1]


def plain_pairs(student: Sequence[str], teacher: Sequence[str]) -> list[Pair]:
    """Mode strict, cell by cell."""
    far = float("inf")
    total = [[far] * (len(teacher) + 1) for _ in range(len(student) + 1)]
    total[0][0] = 0
    for i, x in enumerate(student, 1):
        for j, y in enumerate(teacher, 1):
            total[i][j] = edit_distance(x, y) + min(total[i - 1][j - 1], total[i - 1][j], total[i][j - 1])
    i, j, cells = len(student), len(teacher), []
    while i and j:
        cells.append((i - 1, j - 1))
        diagonal, up, left = total[i - 1][j - 1], total[i - 1][j], total[i][j - 1]
        if diagonal <= up and diagonal <= left:
            i, j = i - 1, j - 1
        elif up <= left:
            i -= 1
        else:
            j -= 1
    rows, columns = Counter(i for i, _ in cells), Counter(j for _, j in cells)
    return [(i, j) for i, j in reversed(cells) if rows[i] == columns[j] == 1 and student[i] == teacher[j]]


def processor_seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    """What it took, and what it gave."""
    began = time.process_time()
    result = action()
    return time.process_time() - began, result


def in_batches(aligner: Aligner, ids: Sequence[Ids], size: int) -> list[np.ndarray]:
    """Strict pairs of all texts, `size` at a time."""
    return [
        pairs for at in range(0, len(ids), size) for pairs in aligner.batch(ids[at : at + size], ["strict"])["strict"]
    ]


def measure(texts: list[str], tokenizers: list[Any], part: int, rounds: int) -> dict[str, Any]:
    """Microseconds per text of every way, and how many times the plain programme's speed that is."""
    vocabularies = [vocabulary_of(tokenizer) for tokenizer in tokenizers]
    encoded = [tokenizer.encode_batch(texts, add_special_tokens=False) for tokenizer in tokenizers]
    ids = [(np.array(a.ids[:LENGTH]), np.array(b.ids[:LENGTH])) for a, b in zip(*encoded)]
    few = ids[:part]
    kinds = [kind_of(vocabulary) for vocabulary in vocabularies]
    words = [
        [
            alike([plain(v[i], kind) for i in side.tolist()], lower=True)
            for side, v, kind in zip(pair, vocabularies, kinds)
        ]
        for pair in few
    ]
    seconds, expected = processor_seconds(lambda: [plain_pairs(*sides) for sides in words])
    reference = seconds / len(few)
    building, _ = processor_seconds(lambda: Aligner(*vocabularies))
    first = [processor_seconds(lambda: in_batches(Aligner(*vocabularies), ids, 256))[0] - building for _ in range(2)]
    aligner = Aligner(*vocabularies)
    if [list(map(tuple, pairs.tolist())) for pairs in in_batches(aligner, few, 32)] != expected:
        raise SystemExit("the library and the plain programme do not agree")
    in_batches(aligner, ids, 256)
    ways = {}
    for size in BATCHES:
        chosen = (few * -(-size // len(few)))[: max(size, len(few))]
        taken = [processor_seconds(partial(in_batches, aligner, chosen, size))[0] for _ in range(rounds)]
        ways[str(size)] = statistics.median(taken) / len(chosen)
    return {
        "texts": len(ids),
        "compared": len(few),
        "student_tokens": float(np.mean([len(a) for a, _ in ids])),
        "teacher_tokens": float(np.mean([len(b) for _, b in ids])),
        "cells": float(np.mean([len(a) * len(b) for a, b in ids])),
        "compared_cells": float(np.mean([len(a) * len(b) for a, b in few])),
        "building_seconds": building,
        "plain": reference,
        "first_time": min(first) / len(ids),
        "batches": ways,
    }


def step_milliseconds() -> tuple[float, int] | None:
    """A SimCSE step and its batch, as benchmarks/step.py measured them last."""
    file = RESULTS / "step.json"
    if not file.exists():
        return None
    found = json.loads(file.read_text())
    return next(row["milliseconds"] for row in found["rows"] if row["name"] == "simcse"), found["batch_size"]


def table(result: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = [
        "# Cost of aligning tokens",
        "",
        f"`python benchmarks/alignment.py`: {result['machine']}. Processor time of one thread, mode strict, "
        "bert-base-uncased against Mistral; ratios against plain Python in the same run, on which both agree. "
        f"First time: no distance is known yet; the other ways have met all strings before. Aim: at least {AIM} times "
        "plain Python.",
        "",
        "| texts | tokens (student/teacher) | way | µs per text | times plain Python | met |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in result["corpora"].items():
        head = f"| {name} | {found['student_tokens']:.1f}/{found['teacher_tokens']:.1f} |"
        rows = [("plain Python", found["plain"])]
        rows += [("first time, batches of 256", found["first_time"])]
        rows += [
            (f"batches of {size}" if size != "1" else "one by one", each) for size, each in found["batches"].items()
        ]
        lines += [
            f"{head} {way} | {each * 1e6:,.1f} | {found['plain'] / each:,.0f} "
            f"| {'' if way == 'plain Python' else 'yes' if found['plain'] / each >= AIM else 'no'} |"
            for way, each in rows
        ]
    short = next(iter(result["corpora"].values()))
    lines += [
        "",
        f"Reading both vocabularies once: {short['building_seconds'] * 1e3:.0f} ms.",
    ]
    if result["step"]:
        step, size = result["step"]
        cost = short["batches"]["32"] * size * 1e3
        lines.append(
            f"A batch of {size} short texts takes {cost:.2f} ms, {cost / step:.2%} of the SimCSE step of "
            f"benchmarks/results/step.md ({step:.0f} ms wall time; aim: below 10 %)."
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=4000, help="short texts")
    parser.add_argument("--table", action="store_true", help="only write the page of the figures that are there")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.table:
        (given.results / "alignment.md").write_text(table(json.loads((given.results / "alignment.json").read_text())))
        return
    folder = shared()
    if folder is None:
        raise SystemExit("the tokenizers are in the shared data: set DISTILVEC_DATA")
    names = ("bert-base-uncased", "mistral-7b-v0.1")
    tokenizers = [load_tokenizer(folder / "data" / "tokenizers" / name) for name in names]
    with gzip.open(folder / "data" / "control.test.jsonl.gz", "rt", encoding="utf-8") as lines:
        premises = [json.loads(line)["text1"] for line in lines]
    corpora = {
        "TALAS's corpus": measure([row["text"] for row in real_texts(given.texts)], tokenizers, 1000, given.rounds),
        "ConTRoL's premises": measure(premises, tokenizers, 64, given.rounds),
    }
    versions = f"Python {platform.python_version()}, numpy {np.__version__}, rapidfuzz {rapidfuzz.__version__}"
    result = {
        "command": "python benchmarks/alignment.py",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {versions}",
        "corpora": corpora,
        "step": step_milliseconds(),
    }
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "alignment.json").write_text(json.dumps(result, indent=1) + "\n")
    (given.results / "alignment.md").write_text(table(result))
    print(table(result))


if __name__ == "__main__":
    main()
