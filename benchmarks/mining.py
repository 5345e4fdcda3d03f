"""Mining: time and memory for 20 thousand queries in 200 thousand documents, beside sentence-transformers' miner.

    OMP_NUM_THREADS=1 python benchmarks/mining.py            # about a quarter of an hour of one core

Both get the same vectors and pairs, and look for five negatives among the hundred nearest that are at least 5 % below
the positive; each run is a process of its own, which may take 8 GiB. `distilvec.mine` reads a .npy file into a store
(of float32, as the file is; with float16, its default, near ties change places), searches, and writes the pairs;
`mine_hard_negatives` gets a model whose `encode` hands out rows of the same file, once with its own chunk of 16,384
queries and once with 2,048. Seconds are of the processor, so that a machine with other work gives the same; encoding is
in neither. Memory: the most that the process held by itself, without mapped files.

real: all-MiniLM-L6-v2's vectors of 20,000 anchors and positives of the shared pairs and of 20,000 shared sentences (it
needs DISTILVEC_DATA); the other 160,000 documents are these again with noise, at a cosine of about 0.85. synthetic:
random directions, each query at a cosine of about 0.7 to its positive. Result: benchmarks/results/mining.json and .md,
with what the rate means for ten million documents.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
WIDTH, LIMIT = 384, 8 << 30
SIZES = ((2_000, 20_000), (20_000, 200_000))
NEGATIVES, RANKS, MARGIN = 5, 100, 0.05


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def synthetic(queries: int, documents: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    found = unit(draw.standard_normal((documents, WIDTH), np.float32))
    noise = draw.standard_normal((queries, WIDTH), np.float32) / np.sqrt(WIDTH)
    return unit(found[:queries] + noise), found


def real(queries: int, documents: int, work: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the largest size, encoded once."""
    file = work / "encoded.npy"
    if not file.exists():
        import gzip

        sys.path.append(str(Path(__file__).parent.parent))
        from experiments.harness.script import shared

        from distilvec.flow.demo import demo_teacher
        from distilvec.teachers import load_teacher
        from distilvec.training import bfloat16_pays

        with gzip.open(shared() / "data" / "pairs.jsonl.gz", "rt", encoding="utf-8") as lines:
            pairs = {row["anchor"]: row["positive"] for row in map(json.loads, lines)}
        pairs = {anchor: answer for anchor, answer in pairs.items() if anchor != answer}
        with gzip.open(shared() / "data" / "sentences.jsonl.gz", "rt", encoding="utf-8") as lines:
            sentences = [json.loads(next(lines))["text"] for _ in range(20_000)]
        chosen = list(pairs.items())[:20_000]
        texts = [anchor for anchor, _ in chosen] + [answer for _, answer in chosen] + sentences
        teacher = load_teacher(model=demo_teacher(), dtype="bfloat16" if bfloat16_pays() else "float32")
        np.save(work / "partial.npy", unit(teacher.encode(texts)))
        (work / "partial.npy").rename(file)
    encoded = np.load(file)
    asked, answers, others = encoded[:20_000], encoded[20_000:40_000], encoded[40_000:]
    draw = np.random.default_rng(0)
    originals = np.concatenate([answers[:queries], answers[queries:], others])[:documents]
    found = [originals]
    while sum(map(len, found)) < documents:
        noise = draw.standard_normal(originals.shape, np.float32) / np.sqrt(WIDTH)
        found.append(unit(originals + 0.62 * noise))
    return asked[:queries], np.concatenate(found)[:documents]


class Watch:
    """Processor seconds and the most anonymous memory while the block runs."""

    def __enter__(self) -> Watch:
        self.memory, self._ends = 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return self

    def _look(self) -> None:
        while not self._ends.wait(0.02):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon"):
                    self.memory = max(self.memory, 1024 * int(line.split()[1]))

    def __exit__(self, *_: Any) -> None:
        self.seconds = round(time.process_time() - self._cpu, 1)
        self.wall = round(time.perf_counter() - self._wall, 1)
        self._ends.set()
        self._thread.join()


def ours(folder: Path) -> dict[str, Any]:
    """Mine in a process that has imported everything."""
    import distilvec
    from distilvec.flow import mine as _  # noqa: F401

    with Watch() as watch:
        found = distilvec.mine(
            {"vectors": str(folder / "vectors.npy"), "texts": str(folder / "texts.txt"), "storage": "float32"},
            {"path": str(folder / "pairs.jsonl"), "text": ["query", "document"], "holdout": 0.0},
            folder / "mined",
            documents=str(folder / "documents.txt"),
            negatives=NEGATIVES,
            ranks=(1, RANKS),
            relative_margin=MARGIN,
            duplicates=None,
        )
    rows = [json.loads(line) for line in found.file.read_text(encoding="utf-8").splitlines()]
    chosen = {row["query"]: [row[name] for name in found.columns[2:] if row[name]] for row in rows}
    return {"negatives": chosen, "search_wall": found.seconds, **told(watch)}


def theirs(folder: Path, chunk: int) -> dict[str, Any]:
    """The same by sentence-transformers."""
    import torch
    from datasets import Dataset
    from sentence_transformers import util

    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    place = {text: row for row, text in enumerate((folder / "texts.txt").read_text().splitlines())}

    class Model:
        device = torch.device("cpu")
        similarity = staticmethod(util.cos_sim)
        similarity_pairwise = staticmethod(util.pairwise_cos_sim)

        def encode_query(self, texts: list[str], **_: Any) -> np.ndarray:
            return np.asarray(vectors[[place[text] for text in texts]])

        encode_document = encode_query

    pairs = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    dataset = Dataset.from_list(pairs)
    documents = (folder / "documents.txt").read_text().splitlines()
    with Watch() as watch:
        found = util.mine_hard_negatives(
            dataset,
            Model(),  # type: ignore[arg-type]
            anchor_column_name="query",
            positive_column_name="document",
            corpus=documents,
            range_max=RANKS,
            relative_margin=MARGIN,
            num_negatives=NEGATIVES,
            faiss_batch_size=chunk,
            output_format="n-tuple",
            verbose=False,
        )
    names = [name for name in found.column_names if name.startswith("negative")]
    return {"negatives": {row["query"]: [row[name] for name in names] for row in found}, **told(watch)}


def told(watch: Watch) -> dict[str, Any]:
    return {"seconds": watch.seconds, "wall": watch.wall, "memory": watch.memory}


def child(who: str, folder: Path, chunk: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    result = ours(folder) if who == "ours" else theirs(folder, chunk)
    (folder / f"{who}.json").write_text(json.dumps(result))


def measure(queries: np.ndarray, documents: np.ndarray) -> dict[str, Any]:
    """All three on one set of vectors, each in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="distilvec-mining-") as name:
        folder = Path(name)
        asked = [f"query {row}" for row in range(len(queries))]
        answers = [f"document {row}" for row in range(len(documents))]
        np.save(folder / "vectors.npy", np.concatenate([queries, documents]))
        (folder / "texts.txt").write_text("\n".join([*asked, *answers]) + "\n")
        (folder / "documents.txt").write_text("\n".join(answers[len(asked) :]) + "\n")
        pairs = zip(asked, answers, strict=False)
        lines = [json.dumps({"query": query, "document": answer}) + "\n" for query, answer in pairs]
        (folder / "pairs.jsonl").write_text("".join(lines))
        found: dict[str, Any] = {}
        for label, who, chunk in (("distilvec", "ours", 0), ("2,048", "theirs", 2048), ("16,384", "theirs", 16384)):
            command = [sys.executable, __file__, "--child", who, "--folder", name, "--chunk", str(chunk)]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                found[label] = {"failed": (done.stderr.strip().splitlines() or ["killed"])[-1][:200]}
                continue
            found[label] = json.loads((folder / f"{who}.json").read_text())
        own, other = found["distilvec"].pop("negatives", {}), found["2,048"].pop("negatives", {})
        found["16,384"].pop("negatives", None)
        same, near = [], []
        for query, negatives in other.items():
            rows = [[int(name.split()[1]) for name in names] for names in (own.get(query, []), negatives)]
            same.append(rows[0] == rows[1])
            one, two = (documents[row] @ queries[int(query.split()[1])] for row in rows)
            near.append(len(one) == len(two) and np.allclose(one, two, atol=1e-6))
        shares = {"share": same, "similar": near} if same else {}
        found["alike"] = {"queries": len(same), **{name: float(np.mean(each)) for name, each in shares.items()}}
        return {"queries": len(queries), "documents": len(documents), **found}


def table(result: dict[str, Any]) -> str:
    """The page of the figures."""
    lines = [
        "# Mining beside sentence-transformers' miner",
        "",
        "Made by `python benchmarks/mining.py`, whose header says what is compared. "
        f"{result['cores']} core, {result['versions']}.",
        "",
        "| vectors | queries x documents | distilvec | mine_hard_negatives, chunks of 2,048 | its default, 16,384 |",
        "|---|---|---|---|---|",
    ]
    for kind, rows in result["rows"].items():
        for row in rows:
            cells = [_cell(row[name]) for name in ("distilvec", "2,048", "16,384")]
            size = f"{row['queries']:,} x {row['documents']:,}"
            lines.append(f"| {kind} | {size} | {' | '.join(cells)} |")
    lines += [
        "",
        "Processor seconds, and the most memory of the process itself. Both find the same negatives in the same order, "
        "and the same similarities to a millionth, which is more where several documents have one vector:",
        "",
    ]
    for kind, rows in result["rows"].items():
        for row in rows:
            alike = row["alike"]
            if "share" in alike:
                lines.append(
                    f"- {kind}, {row['documents']:,} documents: {100 * alike['share']:.2f} %, and "
                    f"{100 * alike['similar']:.2f} %, of the {alike['queries']:,} queries for which theirs found five."
                )
    large = result["rows"]["synthetic"][-1]
    if "failed" not in large["distilvec"]:
        lines += ["", *_arithmetic(large)]
    return "\n".join(lines) + "\n"


def _arithmetic(large: dict[str, Any]) -> list[str]:
    """What the largest synthetic run means for ten million documents."""
    products = large["queries"] * large["documents"]
    rate = products / large["distilvec"]["seconds"]
    flops = 2 * WIDTH * rate / 1e9
    lines = [
        "## Ten million documents",
        "",
        f"The largest synthetic run takes {rate / 1e6:,.0f} million products of vectors a second, all told, "
        f"{flops:,.0f} GFLOPS of one core. The time is queries x documents / rate, on as many cores as the matrix "
        "product uses:",
        "",
        "| queries | documents | products | hours of this core |",
        "|---|---|---|---|",
    ]
    for queries in (100_000, 1_000_000, 10_000_000):
        hours = queries * 1e7 / rate / 3600
        lines.append(f"| {queries:,} | 10,000,000 | {queries * 1e7:.0e} | {hours:,.0f} |")
    lines += [
        "",
        f"Vectors stay on disk: {2 * WIDTH * 1e7 / 1e9:.1f} GB in float16, the store's default. In memory are, one "
        "after the other, a part of the store while it is filled, and blocks of queries and documents while they are "
        "searched; neither grows with the corpus. What each text takes beside that was not measured by itself.",
    ]
    return lines


def _cell(found: dict[str, Any]) -> str:
    if "failed" in found:
        return f"not within {LIMIT >> 30} GiB ({found['failed'].split(':')[0]})"
    return f"{found['seconds']:,.0f} s, {found['memory'] / 1e9:.2f} GB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "distilvec-mining")
    parser.add_argument("--kinds", nargs="+", choices=("synthetic", "real"), default=["synthetic", "real"])
    parser.add_argument("--sizes", nargs="+", type=int, help="documents; a tenth as many queries")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--chunk", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.folder, options.chunk)
        return
    from importlib.metadata import version

    options.work.mkdir(parents=True, exist_ok=True)
    sizes = [(size // 10, size) for size in options.sizes] if options.sizes else list(SIZES)
    rows: dict[str, list[Any]] = {}
    for kind in options.kinds:
        for queries, documents in sizes:
            given = synthetic(queries, documents) if kind == "synthetic" else real(queries, documents, options.work)
            rows.setdefault(kind, []).append(measure(*given))
            print(kind, json.dumps(rows[kind][-1]), flush=True)
    result = {
        "cores": os.environ.get("OMP_NUM_THREADS", str(os.cpu_count())),
        "versions": ", ".join(f"{name} {version(name)}" for name in ("distilvec", "sentence-transformers", "torch")),
        "rows": rows,
    }
    if not options.sizes and set(options.kinds) == {"synthetic", "real"}:
        (RESULTS / "mining.json").write_text(json.dumps(result, indent=1) + "\n")
        (RESULTS / "mining.md").write_text(table(result))
    print(table(result))


if __name__ == "__main__":
    main()
