"""What a service as a teacher costs: how much of the throughput that a server allows comes through.

    python benchmarks/service.py

The servers run on this machine, in a process of their own. One takes so many requests at once, each for so long, and is
asked by twice as many connections; the others let so many requests a second through and answer 429 to the rest, and the
last fails besides: every tenth request is dropped, answered with 500 or with half an answer. Every store is checked to
hold all vectors. Writes results/service.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.corpus.keys import content_keys
from distilvec.flow.teach import fill_store
from distilvec.store import SignalStore
from distilvec.teachers import load_teacher

ROOT = Path(__file__).parent.parent
BATCH, LATENCY, PER_SECOND = 64, 0.1, 40.0
#: What the server does; options of the teacher.
CASES: dict[str, dict[str, Any]] = {
    "8 at once, 0.1 s each": {"slots": 8, "api": {"concurrency": 16}},
    "40 requests a second, the teacher knows": {
        "rate": PER_SECOND,
        "api": {"concurrency": 16},
        "rate_limit": PER_SECOND,
    },
    "40 requests a second, the teacher does not": {"rate": PER_SECOND, "api": {"concurrency": 8, "attempts": 30}},
    "40 requests a second, and one in ten fails": {
        "rate": PER_SECOND,
        "faulty": True,
        "api": {"concurrency": 16},
        "rate_limit": PER_SECOND,
    },
}


def serve(slots: int | None, rate: float | None, faulty: bool) -> None:
    """In a process of its own: print the address, then serve until killed."""
    sys.path.insert(0, str(ROOT))
    from tests.teachers.serving import Service

    free = threading.Semaphore(slots) if slots else None
    lock, allowance = threading.Lock(), [rate or 0.0, time.monotonic()]

    def let_in() -> bool:
        if not rate:
            return True
        with lock:
            now = time.monotonic()
            allowance[0] = min(rate / 4, allowance[0] + (now - allowance[1]) * rate)
            allowance[1] = now
            if allowance[0] < 1:
                return False
            allowance[0] -= 1
            return True

    def fault(number: int, texts: list[str]) -> Any:
        if not let_in():
            return {"retry_after": "0.2"}
        if free is None:
            time.sleep(LATENCY)
        else:
            with free:
                time.sleep(LATENCY)
        return ("drop", 500, "half")[number // 10 % 3] if faulty and number % 10 == 5 else None

    service = Service(fault)
    print(service.url, flush=True)
    service.serve_forever()


@contextmanager
def server(case: dict[str, Any]) -> Iterator[str]:
    words = [str(case.get("slots") or 0), str(case.get("rate") or 0), str(int(case.get("faulty", False)))]
    with subprocess.Popen([sys.executable, __file__, "--serve", *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def measure(case: dict[str, Any], texts: list[str], folder: Path) -> dict[str, float]:
    """Texts per second of filling a store, beside what the server allows."""
    keys = content_keys(texts)

    class Texts:
        def __len__(self) -> int:
            return len(texts)

        def teacher_texts(self, rows: Any) -> list[str]:
            return [texts[int(row)] for row in rows]

        teacher_keys = keys

    with server(case) as url:
        teacher = load_teacher(
            name="service",
            api={"url": url, "model": "m", **case["api"]},
            batch_size=BATCH,
            rate_limit=case.get("rate_limit"),
        )
        store = SignalStore.create(folder, teacher.card, teacher.card.width)
        begun = time.perf_counter()
        filled = fill_store(store, teacher, Texts())  # type: ignore[arg-type]
        seconds = time.perf_counter() - begun
    if filled.taught != len(texts) or store.missing(keys).any():
        raise SystemExit("vectors are missing")
    allowed = BATCH * (
        case["slots"] / LATENCY if "slots" in case else case["rate"] * (0.9 if case.get("faulty") else 1)
    )
    return {"texts": len(texts), "seconds": seconds, "allowed": allowed, "share": len(texts) / seconds / allowed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=50_000)
    parser.add_argument("--serve", nargs=3, metavar=("SLOTS", "RATE", "FAULTY"), help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("results"))
    given = parser.parse_args()
    if given.serve:
        slots, rate, faulty = given.serve
        serve(int(slots) or None, float(rate) or None, bool(int(faulty)))
        return
    texts = [f"sentence {number} about {'something ' * (number % 20)}" for number in range(given.texts)]
    result: dict[str, Any] = {
        "machine": f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"numpy {np.__version__}, load {os.getloadavg()[0]:.1f}",
        "batch": BATCH,
    }
    with tempfile.TemporaryDirectory(prefix="distilvec-service-") as name:
        result["rows"] = {
            what: measure(case, texts, Path(name) / str(number)) for number, (what, case) in enumerate(CASES.items())
        }
    lines = [f"{given.texts:,} texts in requests of {BATCH}; {result['machine']}", ""]
    lines += ["| the server | texts/s that it allows | texts/s | share |", "|---|---|---|---|"]
    for what, row in result["rows"].items():
        lines.append(f"| {what} | {row['allowed']:,.0f} | {row['texts'] / row['seconds']:,.0f} | {row['share']:.0%} |")
    given.results.mkdir(exist_ok=True)
    (given.results / "service.json").write_text(json.dumps(result, indent=1) + "\n")
    (given.results / "service.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
