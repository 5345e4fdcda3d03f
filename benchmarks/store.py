"""A store of random vectors: making it, opening it, reading random batches, and the memory that takes.

    python benchmarks/store.py                       # 10 million rows of 64 dimensions, about 1.6 GB of disk
    python benchmarks/store.py --rows 100000 --width 384 --folder /tmp/store

Reading is measured in a fresh process, from a warm page cache. Writes results/store.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.store import SignalStore

BATCH = 256
CARD = {"name": "random", "kind": "vectors", "fingerprint": "random-normal"}


def make(folder: Path, rows: int, width: int, dtype: str) -> dict[str, Any]:
    """Write the store as teaching does, chunk by chunk."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((min(rows, 100_000), width), dtype=np.float32)
    began = time.perf_counter()
    store = SignalStore.create(folder, CARD, width, dtype)
    with store.writer("benchmark") as writer:
        for start in range(0, rows, len(vectors)):
            count = min(len(vectors), rows - start)
            writer.add(rng.integers(0, 256, (count, 16), dtype=np.uint8), vectors[:count])
    seconds = time.perf_counter() - began
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {
        "make_seconds": seconds,
        "make_rows_per_second": rows / seconds,
        "bytes": size,
        "parts": len(writer.parts),
    }


def anonymous_bytes() -> int:
    """RssAnon of this process."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon"))


def rate(call: Callable[[np.ndarray], Any], batches: np.ndarray) -> float:
    """Rows per second over batches int64 [n, 256]."""
    began = time.perf_counter()
    for batch in batches:
        call(batch)
    return batches.size / (time.perf_counter() - began)


def measure(folder: Path, batches: int) -> dict[str, Any]:
    """Open and read, in the process that calls this."""
    began = time.perf_counter()
    store = SignalStore.open(folder)
    opened = time.perf_counter() - began
    at_open = anonymous_bytes()
    began = time.perf_counter()
    if store.verify():  # reads every byte of the parts, which also warms the cache
        raise SystemExit("the store is damaged")
    verified = time.perf_counter() - began
    rng = np.random.default_rng(1)
    warm, timed = (rng.integers(0, len(store), (batches, BATCH)) for _ in range(2))
    keys = [store.keys(batch) for batch in timed]
    rate(lambda batch: store.read(store.rows(store.keys(batch))), warm)
    before = anonymous_bytes()
    read = rate(store.read, timed)
    following = iter(keys)
    looked_up = rate(lambda batch: store.read(store.rows(next(following))), timed)
    after = anonymous_bytes()
    return {
        "open_seconds": opened,
        "verify_seconds": verified,
        "read_rows_per_second": read,
        "lookup_and_read_rows_per_second": looked_up,
        "anonymous_bytes_at_open": at_open,
        "anonymous_bytes_before_reading": before,
        "anonymous_bytes_after_reading": after,
        "rows_read": int(timed.size * 2),
    }


def table(result: dict[str, Any]) -> str:
    """The figures as Markdown."""
    grown = (result["anonymous_bytes_after_reading"] - result["anonymous_bytes_before_reading"]) / 2**20
    lines = [
        ("making it", f"{result['make_seconds']:.0f} s ({result['make_rows_per_second']:,.0f} rows/s)", ""),
        ("size on disk", f"{result['bytes'] / 1e9:.2f} GB in {result['parts']} parts", ""),
        ("opening", f"{result['open_seconds'] * 1e3:.0f} ms", "under 2 s"),
        ("verifying all checksums", f"{result['verify_seconds']:.1f} s", ""),
        ("random batches of 256 by row", f"{result['read_rows_per_second']:,.0f} rows/s", "at least 20,000"),
        ("random batches of 256 by key", f"{result['lookup_and_read_rows_per_second']:,.0f} rows/s", ""),
        ("anonymous memory of the process", f"{result['anonymous_bytes_after_reading'] / 2**20:.0f} MiB", ""),
        (f"... grown over {result['rows_read']:,} rows read", f"{grown:.1f} MiB", "does not grow"),
    ]
    heading = (
        f"{result['rows']:,} rows of {result['width']} dimensions, {result['dtype']}; {result['machine']}\n\n"
        "| | measured | aim |\n|---|---|---|\n"
    )
    return heading + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def run(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Make the store, then measure in a fresh process."""
    made = make(folder, given.rows, given.width, given.dtype)
    command = [sys.executable, __file__, "--measure", str(folder), "--batches", str(given.batches)]
    measured: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    machine = f"{os.cpu_count()} cores ({platform.machine()}), {versions}"
    shape = {"rows": given.rows, "width": given.width, "dtype": given.dtype, "machine": machine}
    return shape | made | measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--batches", type=int, default=4_000)
    parser.add_argument("--folder", type=Path, help="keep the store here; default: a temporary folder")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("results"))
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given.batches)))
        return
    if given.folder:
        result = run(given.folder, given)
    else:
        with tempfile.TemporaryDirectory(prefix="distilvec-store-") as folder:
            result = run(Path(folder), given)
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "store.json").write_text(json.dumps(result, indent=2) + "\n")
    (given.results / "store.md").write_text(table(result))
    print(json.dumps(result, indent=2))
    print(table(result))


if __name__ == "__main__":
    main()
