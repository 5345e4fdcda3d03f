"""Mixtures of experts under five aggregations (the spherical aggregation paper's Tables I and II, Figures 1, 2 and 5).

    python experiments/mixtures.py                       # all rows, three seeds: hours on one core
    python experiments/mixtures.py --rows linear,sba --seeds 1
    python experiments/mixtures.py --table

Start: all-MiniLM-L6-v2, upcycled to a mixture in every second block (8 experts, top-2, their weights summing to 1),
with noise of 0.3 of the weights on the copies: with less, the experts point the same way and nothing can differ (at 0.1
the angles are 16 degrees and linear loses 1 % of the length). It is trained with multiple negatives
ranking and the load-balancing loss on 12,000 of the shared pairs that are no triplets, linear aggregation, until its
routing is balanced: that is the one checkpoint. From it each row is fine-tuned on the 6,293 shared triplets with its
aggregation: identical data, order, steps and learning rate, two epochs of batches of 64, linear schedule with 10 %
warm-up, temperature 0.05. `dense` is MiniLM itself with the same two trainings.

Judged: similarity (STS-B, SICK, STS12: Spearman), clustering (Banking77: V-measure), pair classification (MRPC,
SciTail: average precision of the cosine). `before` is the checkpoint with the aggregation switched and nothing
trained. Scores are of bfloat16 models where the machine gains from it. Geometry over the texts of STS-B's validation
split. Every row is kept as soon as it is there, so the script
goes on where it stopped.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, WORK, Results, arguments, finished, shared
from mixture_table import EXPERIMENT, MODES, write_page

from distilvec.corpus import Corpus, read_corpus
from distilvec.flow.demo import demo_teacher
from distilvec.judging import CachedEncoder, ClusteringTask, PairTask, SimilarityTask, judge
from distilvec.judging.geometry import geometry
from distilvec.judging.tasks import JudgingTask
from distilvec.methods.table import build_method
from distilvec.modules.aggregation import set_aggregation
from distilvec.recipe import OptimizerSection, TrainingSection
from distilvec.report.geometry import write_geometry
from distilvec.students import load_student, ship, upcycle
from distilvec.training import bfloat16_pays, fit

PAIRS, LENGTH, BATCH = 12_000, 64, 64
NOISE, BALANCE = 0.3, 0.1
WARM_LR, LR = 5e-5, 2e-5
WARM_EPOCHS, EPOCHS = 1.0, 2.0
GEOMETRY_TEXTS = 400


class Bench:
    """Data, tasks and the checkpoint that all rows start from.

    Args:
        quick: a few texts and steps, kept apart: only to see that it runs.
        device: cpu to keep off an accelerator.
    """

    def __init__(self, quick: bool, device: str | None, results: Results) -> None:
        self.quick, self.results, self.work = quick, results, results.work
        self.place = {"bf16": bfloat16_pays(), **({"use_cpu": True} if device == "cpu" else {})}
        rows = read("pairs")
        triplets = [row for row in rows if row.get("negative")]
        pairs = [row for row in rows if not row.get("negative")]
        random.Random(0).shuffle(pairs)
        limits = (96, 64) if quick else (PAIRS, None)
        self.pairs = self._corpus("pairs", pairs[: limits[0]], ["anchor", "positive"])
        self.triplets = self._corpus("triplets", triplets[: limits[1]], ["anchor", "positive", "negative"])
        self.tasks = tasks(120 if quick else None)
        texts = [row["text1"] for row in read("stsb.validation")]
        self.texts = list(dict.fromkeys(texts))[: 20 if quick else GEOMETRY_TEXTS]

    def _corpus(self, name: str, rows: list[dict[str, str]], columns: list[str]) -> Corpus:
        return read_corpus([{c: row[c] for c in columns} for row in rows], self.work / name, text=columns, holdout=0.0)

    def train(
        self, student: Any, corpus: Corpus, lr: float, epochs: float, seed: int, balance: float = 0.0
    ) -> dict[str, Any]:
        """Fine-tune in place; what it cost and how it went."""
        out = self.work / "runs" / f"{time.time_ns()}"
        fitted = fit(
            student,
            build_method("mnrl", {"temperature": 0.05}),
            [],
            corpus,
            [],
            training=TrainingSection(
                epochs=epochs,
                batch_size=16 if self.quick else BATCH,
                seed=seed,
                lr_scheduler_type="linear",
                warmup_steps=0.1,
                save_every=100_000,
                logging_steps=5,
                **self.place,
            ),
            optimizer=OptimizerSection(lr=lr, weight_decay=0.0),
            folder=out,
            cache=self.work,
            router_balance=balance,
        )
        shutil.rmtree(out, ignore_errors=True)
        steps = [entry for entry in fitted.log if "loss" in entry]
        norms = [entry["grad_norm"] for entry in steps]
        return {
            "steps": fitted.steps,
            "training_seconds": round(fitted.seconds, 1),
            "peak_bytes": fitted.peak_bytes,
            "losses": [round(entry["term/ranking"], 4) for entry in steps],
            "balance": [round(entry["term/router_balance"], 4) for entry in steps if "term/router_balance" in entry],
            "grad_norm": {"median": float(np.median(norms)), "largest": float(max(norms))},
        }

    def base(self, kind: str) -> Path:
        """The checkpoint, trained once: of the mixture, or of the dense model."""
        make = partial(self.make_base, kind)
        self.results.run(f"base-{kind}", make, lr=WARM_LR, epochs=WARM_EPOCHS, noise=NOISE, balance=BALANCE)
        if not self.base_folder(kind).is_dir():  # the row is there, its weights were deleted
            self.make_base(kind)
        return self.base_folder(kind)

    def base_folder(self, kind: str) -> Path:
        return self.work / f"base-{kind}-{WARM_LR:g}-{WARM_EPOCHS:g}-{NOISE:g}-{BALANCE:g}-{len(self.pairs)}"

    def make_base(self, kind: str) -> dict[str, Any]:
        student = load_student(demo_teacher())
        if kind == "mixture":
            student = upcycle(student, experts=8, top_k=2, every=2, noise=NOISE, seed=0)
        student.max_seq_length = LENGTH
        fresh = loads(student, self.texts)
        trained = self.train(student, self.pairs, WARM_LR, WARM_EPOCHS, 0, BALANCE if kind == "mixture" else 0.0)
        shutil.rmtree(self.base_folder(kind), ignore_errors=True)
        ship(student, self.base_folder(kind))
        return {**trained, "loads_before": fresh, "loads": loads(student, self.texts)}

    def student(self, mode: str) -> Any:
        student = load_student(self.base("dense" if mode == "dense" else "mixture"))
        if mode != "dense":
            set_aggregation(student, mode)
        student.max_seq_length = LENGTH
        return student

    def score(self, student: Any) -> dict[str, Any]:
        judged = copy.deepcopy(student).bfloat16() if bfloat16_pays() else student
        scores = judge({"student": CachedEncoder(judged)}, self.tasks).scores["student"]
        return {name: {"value": s.value, "interval": s.interval} for name, s in scores.items()}

    def before(self, mode: str) -> dict[str, Any]:
        return {"mode": mode, "tasks": self.score(self.student(mode))}

    def row(self, mode: str, seed: int) -> dict[str, Any]:
        student = self.student(mode)
        trained = self.train(student, self.triplets, LR, EPOCHS, seed)
        result = {"mode": mode, "seed": seed, **trained, "tasks": self.score(student)}
        if seed == 0:
            found = geometry(student, self.texts)
            write_geometry(found, mode, self.work / "geometry" / mode)
            result["geometry"] = found.to_dict()
        return result

    def look(self) -> dict[str, Any]:
        """The geometry of the checkpoint; its pictures are the paper's figures."""
        found = geometry(self.student("linear"), self.texts)
        write_geometry(found, "the upcycled and balanced mixture", self.results.home / "geometry")
        return found.to_dict()


def read(name: str) -> list[dict[str, Any]]:
    with gzip.open(shared() / "data" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def tasks(limit: int | None) -> list[JudgingTask]:
    """Similarity, pair classification, clustering."""
    found: list[JudgingTask] = []
    for name in ("stsb", "sick", "sts12"):
        rows = read(f"{name}.test")[:limit]
        columns = [[row[key] for row in rows] for key in ("text1", "text2", "score")]
        found.append(SimilarityTask(name, *columns))
    for name, right in (("mrpc", "1"), ("scitail", "entails")):
        rows = read(f"{name}.test")[:limit]
        labels = [int(str(row["label"]) == right) for row in rows]
        found.append(PairTask(name, [row["text1"] for row in rows], [row["text2"] for row in rows], labels))
    rows = read("banking77.test")[:limit]
    return [*found, ClusteringTask("banking77", [row["text"] for row in rows], [row["label"] for row in rows])]


def loads(student: Any, texts: list[str]) -> list[list[float]]:
    """Each mixture's shares of the assignments; empty for a dense model."""
    return [each.load for each in geometry(student, texts).mixtures if each.layer > 0]


def main() -> None:
    parser = arguments(__doc__, quick="a few steps on a few texts, kept apart")
    parser.add_argument("--rows", default=",".join([*MODES, "dense"]), help="aggregations, or dense, between commas")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    work = WORK / f"{EXPERIMENT}{'-quick' if options.quick else ''}"
    results = Results(EXPERIMENT, {"pairs": PAIRS, "length": LENGTH, "bf16": bfloat16_pays()}, work=work)
    if finished(options, results, write_page):
        if options.record and (results.home / "geometry").is_dir():
            pictures = shutil.ignore_patterns("*.png", "*.json")
            shutil.copytree(
                results.home / "geometry", RESULTS / EXPERIMENT / "geometry", ignore=pictures, dirs_exist_ok=True
            )
        return
    bench = Bench(options.quick, options.device, results)
    rows = options.rows.split(",")
    warm = {"warm_lr": WARM_LR, "warm_epochs": WARM_EPOCHS, "noise": NOISE, "balance": BALANCE}
    jobs: list[tuple[str, Callable[[], dict[str, Any]], dict[str, Any]]] = [("geometry", bench.look, {})]
    for seed in range(options.seeds):
        options_of = {"lr": LR, "epochs": EPOCHS, "batch": BATCH, "seed": seed}
        jobs += [(f"{mode}-{seed}", partial(bench.row, mode, seed), {"mode": mode, **options_of}) for mode in rows]
    jobs += [(f"before-{mode}", partial(bench.before, mode), {"mode": mode}) for mode in rows]
    for number, (name, job, about) in enumerate(jobs, 1):
        start = time.perf_counter()
        results.run(name, job, **warm, **about)
        print(f"{number} of {len(jobs)}, {name}: {time.perf_counter() - start:.0f} s", flush=True)
        write_page(results.rows(), results.home)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
