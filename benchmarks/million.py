"""Time and memory of a whole small run on many short texts: vectors from a file, a fresh tokenizer, 20 steps.

    python benchmarks/million.py --rows 100000 --rows 1000000

Each run is a process of its own; its highest anonymous memory (what is not mapped from files) is read ten times a
second. `--source FOLDER` runs another checkout beside this one, on the same files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
WIDTH = 64
# The command line of an older checkout may lie in one file.
COMMAND = """
import sys
try:
    from distilvec.cli.main import main
except ModuleNotFoundError:
    from distilvec.cli import main
main(sys.argv[1:])
"""


def write(place: Path, rows: int) -> Path:
    """Texts of four to eight words of a made-up vocabulary of 20,000 and a number, their vectors, and the recipe.

    The numbers have seven digits in no order, however many texts there are: learning a tokenizer takes memory by how
    the words look.
    """
    draw = random.Random(0)
    letters = "abcdefghijklmnoprstuvw"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(20_000)]
    texts = place / "texts.txt"
    with texts.open("w", encoding="utf-8") as out:
        for number in range(rows):
            end = 1_000_000 + number * 7_368_787 % 9_000_000  # no number twice: the factor shares no prime with it
            out.write(" ".join(draw.choices(words, k=draw.randint(4, 8))) + f" {end}\n")
    vectors = np.lib.format.open_memmap(place / "vectors.npy", "w+", np.float32, (rows, WIDTH))
    generator = np.random.default_rng(0)
    for start in range(0, rows, 100_000):
        part = vectors[start : start + 100_000]
        part[:] = generator.standard_normal(part.shape, np.float32)
    vectors.flush()
    recipe = {
        "corpus": {"path": str(texts), "holdout": 0.001},
        "teachers": [{"name": "file", "vectors": str(place / "vectors.npy"), "texts": str(texts)}],
        "student": {"fresh": {"layers": 2, "width": 64, "heads": 2, "vocabulary": 8192}},
        "method": {"name": "cosine"},
        "training": {"max_steps": 20, "batch_size": 64, "use_cpu": True},
        "judging": {"speed": False},
    }
    file = place / "recipe.yaml"
    file.write_text(json.dumps(recipe), encoding="utf-8")  # JSON is YAML
    return file


def anonymous_bytes(process: int) -> int:
    """Memory of a process that no file stands behind."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


def run(recipe: Path, source: Path) -> dict[str, float]:
    """Seconds and highest anonymous bytes of `distilvec run`."""
    out = recipe.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    environment = {**os.environ, "PYTHONPATH": str(source / "src"), "HF_HUB_OFFLINE": "1"}
    begun, most = time.monotonic(), 0
    with (recipe.parent / "log").open("w") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "run", str(recipe), "-o", str(out)],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        while True:
            ended, status, used = os.wait4(child.pid, os.WNOHANG)
            if ended:
                break
            most = max(most, anonymous_bytes(child.pid))
            time.sleep(0.1)
    if status:
        raise SystemExit((recipe.parent / "log").read_text()[-2000:])
    computed = used.ru_utime + used.ru_stime
    return {"seconds": time.monotonic() - begun, "cpu_seconds": computed, "anonymous_bytes": most}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, action="append", help="texts; may be given several times")
    parser.add_argument("--source", type=Path, help="another checkout, run on the same files")
    parser.add_argument("--keep", type=Path, help="a JSON file for the results, instead of those in benchmarks/results")
    asked = parser.parse_args()
    found: list[dict[str, Any]] = []
    for rows in asked.rows or [100_000, 1_000_000]:
        with tempfile.TemporaryDirectory() as place:
            recipe = write(Path(place), rows)
            row: dict[str, Any] = {"rows": rows, "this": run(recipe, ROOT)}
            if asked.source:
                row["other"] = run(recipe, asked.source.resolve())
        found.append(row)
        print(json.dumps(row), flush=True)
    (asked.keep or RESULTS / "million.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if asked.keep is None:
        (RESULTS / "million.md").write_text(table(found), encoding="utf-8")


def table(found: list[dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "# A run on many short texts",
        "",
        "`python benchmarks/million.py`: vectors from a file, a fresh tokenizer of 8,192 pieces, 20 steps, report.",
        "",
        "| texts | time | processor time | anonymous memory at most | other checkout: time | processor time | memory |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in found:
        cells = [f"{row['rows']:,}"]
        for name in ("this", "other"):
            each = row.get(name)
            figures = (
                [f"{each['seconds']:.0f} s", f"{each['cpu_seconds']:.0f} s", f"{each['anonymous_bytes'] / 1e9:.2f} GB"]
                if each
                else [""] * 3
            )
            cells += figures
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
