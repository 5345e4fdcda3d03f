"""Mixtures of experts under five aggregations (Tables I and II, Figures 1, 2 and 5 of the paper)."""

from __future__ import annotations

import copy
import functools
import random
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.embedder.run import DTYPE, FOLDER, embedder
from experiments.harness.rates import best_rate
from experiments.harness.records import RESULTS, WORK, Results
from experiments.harness.script import arguments, finished, shared
from experiments.harness.texts import shared_rows
from experiments.mixtures.table import EXPERIMENT, GROUPS, MODES, validation, write_page

from distilvec.corpus import Corpus, read_corpus
from distilvec.flow.demo import demo_teacher
from distilvec.flow.teach import teach_one
from distilvec.judging import CachedEncoder, ClusteringTask, PairTask, SimilarityTask, judge
from distilvec.judging.geometry import geometry
from distilvec.judging.tasks import JudgingTask
from distilvec.methods.table import build_method
from distilvec.modules.aggregation import set_aggregation
from distilvec.recipe import ModelSection, OptimizerSection, TrainingSection
from distilvec.report.geometry import write_geometry
from distilvec.students import load_student, ship, upcycle
from distilvec.training import Material, StoreSource, TrainingSettings, bfloat16_pays, fit

LENGTH, BATCH = 64, 64
EXPERTS, ACTIVE, NOISE, BALANCE = 8, 2, 0.05, 0.1
SENTENCE_STEPS, SENTENCE_LR = 4300, 3e-3
PAIRS, PAIR_LR = 45_000, 3e-4
EPOCHS = 3.0
#: That every row is tried at, and beyond either end where the best is there.
RATES, LOWER, HIGHER = (2e-6, 2e-5, 1e-4, 5e-4), (2e-7,), (2e-3,)
GEOMETRY_TEXTS = 400


class Bench:
    """Data, tasks and the starts of all rows.

    Args:
        quick: a few texts and steps, kept apart: only to see that it runs.
        device: cpu to keep off an accelerator.
    """

    def __init__(self, quick: bool, device: str | None, results: Results) -> None:
        self.quick, self.results, self.work = quick, results, results.work
        self.place = {"bf16": bfloat16_pays(), **({"use_cpu": True} if device == "cpu" else {})}
        rows = list(shared_rows("pairs"))
        triplets = [row for row in rows if row.get("negative")]
        pairs = [row for row in rows if not row.get("negative")]
        random.Random(0).shuffle(pairs)
        limits = (96, 64) if quick else (PAIRS, None)
        self.pairs = self._corpus("pairs", pairs[: limits[0]], ["anchor", "positive"])
        self.triplets = self._corpus("triplets", triplets[: limits[1]], ["anchor", "positive", "negative"])
        self.validation, self.tests = validation_tasks(120 if quick else None), test_tasks(120 if quick else None)
        texts = [row["text1"] for row in shared_rows("stsb.validation")]
        self.texts = list(dict.fromkeys(texts))[: 20 if quick else GEOMETRY_TEXTS]

    def _corpus(self, name: str, rows: list[dict[str, str]], columns: list[str]) -> Corpus:
        return read_corpus([{c: row[c] for c in columns} for row in rows], self.work / name, text=columns, holdout=0.0)

    def train(
        self, student: Any, corpus: Corpus, lr: float, seed: int, balance: float = 0.0, **training: Any
    ) -> dict[str, Any]:
        """Train in place on pairs or triplets by their ranking, on sentences by the teacher's vectors; how it went."""
        out = self.work / "runs" / f"{time.time_ns()}"
        ranked = corpus.groups is not None
        teachers = [] if ranked else [self.teacher(corpus)]
        learnt = Material(corpus, [info for info, _ in teachers], [source for _, source in teachers])
        section = TrainingSection(
            **{"epochs": 1.0, "adam_beta2": 0.98, **training},
            batch_size=16 if self.quick else BATCH,
            seed=seed,
            lr_scheduler_type="linear",
            save_every=100_000,
            logging_steps=1 if self.quick else 5,
            **self.place,
        )
        optimizer = OptimizerSection(lr=lr, heads_lr=lr, weight_decay=0.0)
        method = build_method("mnrl", {"temperature": 0.05}) if ranked else build_method("cosine", {})
        settings = TrainingSettings(section, optimizer, out, cache=self.work, router_balance=balance)
        fitted = fit(student, method, learnt, settings)
        shutil.rmtree(out, ignore_errors=True)
        steps = [entry for entry in fitted.log if "loss" in entry]
        norms = [entry["grad_norm"] for entry in steps]
        told = "term/ranking" if ranked else "term/cosine"
        losses = [round(float(np.mean([each[told] for each in part])), 4) for part in parts(steps)]
        balances = [[each.get("term/router_balance", np.nan) for each in part] for part in parts(steps)]
        return {
            "steps": fitted.steps,
            "training_seconds": round(fitted.seconds, 1),
            "peak_bytes": fitted.peak_bytes,
            "losses": losses,
            "balance": [round(float(np.mean(each)), 4) for each in balances] if balance else [],
            "grad_norm": {"median": float(np.median(norms)), "largest": float(max(norms))},
        }

    def teacher(self, corpus: Corpus) -> tuple[Any, StoreSource]:
        """all-MiniLM-L6-v2's vectors of a corpus, for training."""
        stores = self.work / "stores" if self.quick else FOLDER / "stores"
        taught = teach_one(ModelSection(name="minilm", model=demo_teacher(), dtype=DTYPE), corpus, stores)
        return taught.info, StoreSource(taught.store, corpus)

    def sentences(self) -> Corpus:
        file = shared() / "data" / "sentences.jsonl.gz"
        if self.quick:
            return read_corpus(file, self.work / "sentences", domain="source", holdout=0.0, limit=96)
        return read_corpus(file, FOLDER / "corpus", domain="source", holdout=0.01)

    def start(self, kind: str, number: int) -> Path:
        """The folder of a mixture, or of the dense model, trained once with a seed."""
        make = functools.partial(self.make_start, kind, number)
        about = {"sentences": [SENTENCE_STEPS, SENTENCE_LR], "pairs": [PAIRS, PAIR_LR], "length": LENGTH}
        self.results.run(f"start-{kind}-{number}", make, **about, noise=NOISE, balance=BALANCE, seed=number)
        if not self.start_folder(kind, number).is_dir():  # the row is there, its weights were deleted
            self.make_start(kind, number)
        return self.start_folder(kind, number)

    def start_folder(self, kind: str, number: int) -> Path:
        return self.work / f"start-{kind}-{SENTENCE_STEPS}-{SENTENCE_LR:g}-{PAIR_LR:g}-{NOISE:g}-{number}"

    def make_start(self, kind: str, number: int) -> dict[str, Any]:
        student = load_student(shared() / "models" / "student-bpe" if self.quick else embedder())
        if kind == "mixture":
            student = unnormalised(upcycle(student, experts=EXPERTS, top_k=ACTIVE, every=2, noise=NOISE, seed=number))
        student.max_seq_length = LENGTH
        balance = BALANCE if kind == "mixture" else 0.0
        angles, loads = [angle(student, self.texts)], [shares(student, self.texts)]
        found = {}
        for name, corpus, lr, more in (
            ("sentences", self.sentences(), SENTENCE_LR, {"max_steps": 4 if self.quick else SENTENCE_STEPS}),
            ("pairs", self.pairs, PAIR_LR, {}),
        ):
            found[name] = self.train(student, corpus, lr, number, balance, warmup_steps=0.02, **more)
            angles.append(angle(student, self.texts))
            loads.append(shares(student, self.texts))
        shutil.rmtree(self.start_folder(kind, number), ignore_errors=True)
        ship(student, self.start_folder(kind, number))
        return {**found, "angles": angles, "loads": loads, "validation": self.score(student, self.validation)}

    def student(self, mode: str, number: int) -> Any:
        student = load_student(self.start("dense" if mode == "dense" else "mixture", number))
        if mode != "dense":
            set_aggregation(student, mode)
        student.max_seq_length = LENGTH
        return student

    def score(self, student: Any, tasks: list[JudgingTask]) -> dict[str, Any]:
        judged = copy.deepcopy(student).bfloat16() if bfloat16_pays() else student
        scores = judge({"student": CachedEncoder(judged)}, tasks).scores["student"]
        return {name: {"value": s.value, "interval": s.interval} for name, s in scores.items()}

    def before(self, mode: str, number: int) -> dict[str, Any]:
        return {"mode": mode, "tasks": self.score(self.student(mode, number), self.tests)}

    def row(self, mode: str, number: int, lr: float, seed: int) -> dict[str, Any]:
        student = self.student(mode, number)
        trained = self.train(student, self.triplets, lr, seed, epochs=EPOCHS, warmup_steps=0.1, adam_beta2=0.999)
        chosen = self.score(student, self.validation)
        result = {"mode": mode, "lr": lr, "seed": seed, **trained, "validation": chosen}
        result["tasks"] = self.score(student, self.tests)
        if seed == 0:
            result["geometry"] = geometry(student, self.texts).to_dict()
        return result

    def look(self, number: int) -> dict[str, Any]:
        """The geometry of a start; its pictures are the paper's figures."""
        found = geometry(self.student("linear", number), self.texts)
        write_geometry(found, f"mixture {number}, trained", self.results.home / "geometry" / str(number))
        return found.to_dict()

    def run(self, mode: str, number: int, lr: float, seed: int) -> dict[str, Any]:
        make = functools.partial(self.row, mode, number, lr, seed)
        about = {"mode": mode, "start": number, "lr": lr, "epochs": EPOCHS, "batch": BATCH, "seed": seed}
        return self.results.run(f"{number}/{mode}, {lr:g}-{seed}", make, **about)

    def rate(self, mode: str) -> float:
        """The rate that is best on validation data, with seed 0 from the first start."""
        grid = RATES[1:2] if self.quick else RATES
        reached = functools.partial(self.reached, mode)
        return best_rate(reached, grid, extended=not self.quick, lower=LOWER, higher=HIGHER)

    def reached(self, mode: str, lr: float) -> float:
        return validation(self.run(mode, 0, lr, 0))


def unnormalised(student: Any) -> Any:
    """The upcycled student with the router's own weights, and experts that are larger by what those take off."""
    encoder = student[0].model
    encoder.config.normalize_weights = False
    with torch.no_grad():
        for name, weight in encoder.named_parameters():
            if name.endswith(".experts.mlp.w2"):
                weight.mul_(EXPERTS / ACTIVE)
    return student


def parts(steps: list[dict[str, float]]) -> list[list[dict[str, float]]]:
    """The log in at most 30 parts of even length."""
    return [part.tolist() for part in np.array_split(np.array(steps, dtype=object), min(30, len(steps)))]


def similarity(name: str, split: str, limit: int | None) -> JudgingTask:
    rows = list(shared_rows(f"{name}.{split}"))[:limit]
    columns = [[row[key] for row in rows] for key in ("text1", "text2", "score")]
    return SimilarityTask(name, *columns)


def pair_task(name: str, right: str, split: str, limit: int | None) -> JudgingTask:
    rows = list(shared_rows(f"{name}.{split}"))[:limit]
    labels = [int(str(row["label"]) == right) for row in rows]
    return PairTask(name, [row["text1"] for row in rows], [row["text2"] for row in rows], labels)


def clustering(name: str, split: str, limit: int | None) -> JudgingTask:
    rows = list(shared_rows(f"{name}.{split}"))
    random.Random(0).shuffle(rows)
    return ClusteringTask(name, [row["text"] for row in rows[:limit]], [row["label"] for row in rows[:limit]])


def validation_tasks(limit: int | None) -> list[JudgingTask]:
    return [
        *(similarity(name, "validation", limit) for name in ("stsb", "sick")),
        pair_task("mrpc", "1", "validation", limit),
        clustering("banking77", "train", limit or 2000),
    ]


def test_tasks(limit: int | None) -> list[JudgingTask]:
    return [
        *(similarity(name, "test", limit) for name in GROUPS["similarity"]),
        pair_task("mrpc", "1", "test", limit),
        pair_task("scitail", "entails", "test", limit),
        clustering("banking77", "test", limit),
        clustering("ag_news", "test", limit or 2000),
    ]


def shares(student: Any, texts: list[str]) -> list[list[float]]:
    """Each mixture's shares of the assignments; empty for a dense model."""
    return [each.load for each in geometry(student, texts).mixtures if each.layer > 0]


def angle(student: Any, texts: list[str]) -> list[dict[str, float]]:
    """By mixture, all together first: median angle between the active experts, and the share above 40 degrees."""
    return [{"median": each.angle.median, "wide": each.wide} for each in geometry(student, texts).mixtures]


def main() -> None:
    parser = arguments(__file__, quick="a few steps on a few texts, kept apart")
    parser.add_argument("--rows", nargs="+", choices=[*MODES, "dense"], default=list(MODES))
    parser.add_argument("--starts", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--tune", action="store_true", help="only the rates")
    options = parser.parse_args()
    work = WORK / f"{EXPERIMENT}{'-quick' if options.quick else ''}"
    results = Results(EXPERIMENT, {"quick": options.quick, "bf16": bfloat16_pays()}, work=work)
    if finished(options, results, write_page):
        if options.record and (results.home / "geometry").is_dir():
            pictures = shutil.ignore_patterns("*.png", "*.json")
            shutil.copytree(
                results.home / "geometry", RESULTS / EXPERIMENT / "geometry", ignore=pictures, dirs_exist_ok=True
            )
        return
    bench = Bench(options.quick, options.device, results)
    if options.tune:
        for mode in options.rows:
            print(mode, bench.rate(mode), flush=True)
    else:
        for number in options.starts:
            bench.start("mixture", number)
            results.run(f"{number}/geometry", functools.partial(bench.look, number), start=number)
        for seed in options.seeds:
            for mode in options.rows:
                for number in options.starts:
                    bench.run(mode, number, bench.rate(mode), seed)
                write_page(results.rows(), results.home)
        for mode in options.rows:
            for number in options.starts:
                make = functools.partial(bench.before, mode, number)
                results.run(f"{number}/before, {mode}", make, mode=mode, start=number)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
