"""What Ray costs: teaching the same texts in one process, and with one and two Ray workers on this machine.

    python benchmarks/ray_teaching.py                    # 300 texts, all-MiniLM-L6-v2 (extras ray and demo)
    python benchmarks/ray_teaching.py --texts 20000 --chunk 1024 --workers 1 4

"before the first part" is the cluster's start, the look at the teacher, the workers' start and imports, and the first
chunk. "after it" is the rate of all other chunks, from the times of their records. Every store is compared with that of
one process. Writes results/ray_teaching.{json,md}.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.flow.demo import demo_teacher
from distilvec.flow.ray import teach_alone, teach_with_ray
from distilvec.recipe import Recipe
from distilvec.store import SignalStore


def recipe_of(folder: Path, teacher: str, output: str) -> Recipe:
    return Recipe.build(
        {
            "corpus": {"path": str(folder / "texts.txt")},
            "teachers": [{"name": "teacher", "model": teacher}],
            "student": {"model": teacher},
            "method": {"name": "cosine"},
            "output": str(folder / output),
        }
    )


def largest_difference(one: SignalStore, other: SignalStore) -> float:
    """Of any value of any vector; the keys have to be the same."""
    keys = one.keys(np.arange(len(one)))
    if len(one) != len(other) or other.missing(keys).any():
        raise SystemExit("the stores do not hold the same keys")
    return float(np.abs(one.read(np.arange(len(one))) - other.read(other.rows(keys))).max())


def with_ray(recipe: Recipe, workers: int, chunk: int) -> tuple[SignalStore, dict[str, Any]]:
    """Teach with a cluster of its own and say where the time went."""
    began, started = time.monotonic(), time.time()
    ((store, filled),) = teach_with_ray(recipe, workers=workers, chunk=chunk)
    seconds = time.monotonic() - began
    written = sorted((store.path / f"{part}.json").stat().st_mtime for part in filled.parts)
    later = max(len(store) - chunk, 0)
    return store, {
        "workers": workers,
        "seconds": seconds,
        "seconds_before_the_first_part": written[0] - started,
        "texts_per_second_after_it": later / (written[-1] - written[0]) if len(written) > 1 else None,
    }


def measure(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    from workload import real_texts

    teacher = str(demo_teacher())
    texts = dict.fromkeys(" ".join(row["text"].split()) for row in real_texts(2 * given.texts))
    (folder / "texts.txt").write_text("\n".join(list(texts)[: given.texts]), encoding="utf-8")
    began = time.monotonic()
    one, filled = teach_alone(recipe_of(folder, teacher, "one"))[0]
    alone = {"seconds": time.monotonic() - began, "texts_per_second": filled.taught / filled.seconds}
    pools = []
    for workers in given.workers:
        store, figures = with_ray(recipe_of(folder, teacher, f"ray-{workers}"), workers, given.chunk)
        pools.append({**figures, "largest_difference": largest_difference(one, store)})
    import ray

    versions = f"Python {platform.python_version()}, ray {ray.__version__}"
    machine = f"{os.cpu_count()} cores ({platform.machine()}), {versions}, load {os.getloadavg()[0]:.1f} at the end"
    return {
        "texts": len(one),
        "chunk": given.chunk,
        "teacher": "all-MiniLM-L6-v2",
        "machine": machine,
        "one_process": alone,
        "ray": pools,
    }


def table(result: dict[str, Any]) -> str:
    """The figures as Markdown."""
    alone = result["one_process"]
    lines = [("one process", f"{alone['seconds']:.1f}", "", f"{alone['texts_per_second']:.1f}", "")]
    for pool in result["ray"]:
        rate = pool["texts_per_second_after_it"]
        name = f"Ray, {pool['workers']} worker{'s' if pool['workers'] > 1 else ''}"
        first = f"{pool['seconds_before_the_first_part']:.1f}"
        shown = "" if rate is None else f"{rate:.1f}"
        lines.append((name, f"{pool['seconds']:.1f}", first, shown, f"{pool['largest_difference']:.1e}"))
    head = "| | seconds in all | before the first part | texts/s after it | largest difference of a value |\n"
    heading = f"{result['texts']:,} texts, {result['teacher']}, chunks of {result['chunk']}; {result['machine']}\n\n"
    return heading + head + "|---|---|---|---|---|\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--chunk", type=int, default=25)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("results"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="distilvec-ray-") as folder:
        result = measure(Path(folder), given)
    given.results.mkdir(parents=True, exist_ok=True)
    (given.results / "ray_teaching.json").write_text(json.dumps(result, indent=2) + "\n")
    (given.results / "ray_teaching.md").write_text(table(result))
    print(table(result))


if __name__ == "__main__":
    main()
