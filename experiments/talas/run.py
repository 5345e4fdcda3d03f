"""The comparison of TALAS's paper (its Tables 1, 2 and 9) on real data, with a real teacher and two students."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from experiments.embedder.run import embedder
from experiments.harness.rates import GRID, best_rate
from experiments.harness.records import WORK, Results
from experiments.harness.script import arguments, finished, shared
from experiments.talas.table import AT, EXPERIMENT, LIKE, ROWS, called, write_page

from distilvec.corpus import read_corpus
from distilvec.flow.demo import demo_teacher
from distilvec.flow.fit import store_lookup
from distilvec.flow.start import make_student
from distilvec.flow.teach import Taught, teach_one
from distilvec.judging import CachedEncoder, RidgeMapped, judge, talas_tasks
from distilvec.methods.base import Needs
from distilvec.methods.table import build_method
from distilvec.recipe import ModelSection, OptimizerSection, StudentSection, TeacherSection, TrainingSection
from distilvec.students import ship
from distilvec.teachers import load_teacher
from distilvec.training import Material, StoreSource, TrainingSettings, bfloat16_pays, fit

EPOCHS, WHOLE = 2.0, {"embedder": 5.0}
#: Teacher -> its folder below --models (None: the demo's). With a stronger one all students take as long as `embedder`.
TEACHERS: dict[str, str | None] = {"minilm": None, "mpnet": "all-mpnet-base-v2"}
PROBE_ROWS = 10_000
DTYPE = "bfloat16" if bfloat16_pays() else "float32"
SETTINGS = {"probe_rows": PROBE_ROWS, "dtype": DTYPE, "batch": 32}

MAIN = ("simcse", "cosine", "leaf", "distillcse", "talas", "talas+asam")
BASELINES = ("mse", "relational", "jasper_stella", "distilcse")
#: The paper's Table 2, from SimCSE alone to everything.
PARTS = (
    "simcse",
    "talas without lasd",
    "talas",
    "tamd only+asam",
    "talas without simcse+asam",
    "talas without lasd+asam",
    "talas+asam",
)


def student_section(name: str) -> StudentSection:
    if name in ("bpe", "remade"):
        return StudentSection(model=str(shared() / "models" / "student-bpe"), max_length=128)
    if name == "embedder":
        return StudentSection(model=str(embedder()), max_length=128)
    layers = {"cut": 2, "cut3": 3}[name]
    return StudentSection(shrink={"of": demo_teacher(), "layers": layers, "vocabulary": 5000}, max_length=128)


class Bench:
    """Corpus, teacher, store and tasks, made once.

    Attributes:
        rows, like: name -> method, options and sharpness-aware steps; name -> the row whose learning rate it takes.
        holdout, limit: of the corpus.
        part: before the names of its rows, "" or one that ends in a slash.
        work: what the results are made from.
        results: where they are kept.
    """

    rows, like = ROWS, LIKE
    part, work = "", WORK / "talas"
    lr: float | None = None
    holdout, limit = 0.0, None

    def __init__(self, student: str, results: Results, teacher: str = "minilm", models: Path | None = None) -> None:
        data, self.results = shared() / "data", results
        folder = TEACHERS[teacher]
        if folder is not None and models is None:
            raise SystemExit(f"{teacher} is in the folder that --models names; see the README.md beside this script.")
        self.name, self.section = called(student, teacher), student_section(student)
        self.teacher_row = called("teacher", teacher)
        self.whole = student in WHOLE or folder is not None
        self.epochs = WHOLE["embedder"] if self.whole else EPOCHS
        about: dict[str, Any] = {"domain": "domain", "holdout": self.holdout, "limit": self.limit}
        self.corpus = read_corpus(self.corpus_file(), self.work / "corpus", **about)
        path = demo_teacher() if folder is None or models is None else str(models / folder)
        self.taught = self.teach(ModelSection(name=teacher, model=path, dtype=DTYPE))
        self.source = StoreSource(self.taught.store, self.corpus)
        self.tests = talas_tasks(data, max_train=PROBE_ROWS)
        self.validation = talas_tasks(data, max_train=4000, split="validation", names=["emotion", "wic", "stsb"])
        self.texts = set(self.corpus.texts())

    def corpus_file(self) -> Path:
        return shared() / "data" / "talas_corpus.jsonl.gz"

    def teach(self, section: TeacherSection) -> Taught:
        return teach_one(section, self.corpus, self.work / "stores")

    def train(
        self,
        row: str,
        lr: float,
        epochs: float,
        seed: int,
        device: str | None,
        evaluate: Callable[[Any, Any], dict[str, float]] | None = None,
        **training: Any,
    ) -> tuple[Any, Any]:
        method, options, sharpness = self.rows[row]
        student = make_student(self.section, [], self.corpus, seed)
        out = self.work / "runs" / f"{self.name}-{row.replace(' ', '_')}-{lr}-{epochs}-{seed}"
        shutil.rmtree(out, ignore_errors=True)
        learnt = Material(
            self.corpus,
            [self.taught.info],
            [self.source],
            evaluate=evaluate,
            lookup=store_lookup([self.taught.store]),
        )
        section = TrainingSection(
            epochs=epochs, batch_size=32, seed=seed, save_every=100_000, **self.arguments(device), **training
        )
        optimizer = OptimizerSection(lr=lr, heads_lr=max(lr, 1e-4), sharpness=sharpness)
        settings = TrainingSettings(section, optimizer, out, cache=self.work / self.name)
        fitted = fit(student, build_method(method, options), learnt, settings)
        shutil.rmtree(out, ignore_errors=True)
        return student, fitted

    @staticmethod
    def arguments(device: str | None) -> dict[str, Any]:
        return {"bf16": bfloat16_pays(), **({"use_cpu": True} if device == "cpu" else {})}

    @staticmethod
    def encoder(student: Any) -> CachedEncoder:
        """The student in the fast encoding loop, in bfloat16 where that pays: all models are judged alike."""
        with tempfile.TemporaryDirectory() as folder:
            ship(student, Path(folder) / "student")
            return CachedEncoder(load_teacher(model=Path(folder) / "student", dtype=DTYPE))

    def tune(self, row: str, device: str | None) -> float:
        """The learning rate with the best validation average, or the one that is given."""
        if self.lr is not None:
            return self.lr
        if row in AT:
            return AT[row]
        row = self.like.get(row, row)
        # Where rates are chosen at full length, the best has neighbours on both sides.
        return best_rate(lambda lr: self.tuned(row, lr, device), GRID, extended=self.whole)

    def tuned(self, row: str, lr: float, device: str | None) -> float:
        epochs = self.epochs if self.whole else 1.0
        make = functools.partial(self.tuning_run, row, lr, epochs, device)
        found = self.results.run(self.called("tuning", f"{row}-{lr}"), make, **self.options(row, lr, epochs, 0))
        validation: float = found["validation"]
        return validation

    def tuning_run(self, row: str, lr: float, epochs: float, device: str | None) -> dict[str, Any]:
        student, _ = self.train(row, lr, epochs, 0, device)
        found = judge({"student": self.encoder(student)}, self.validation)
        return {"row": row, "lr": lr, "validation": found.averages("student")["all"]}

    def called(self, *names: str) -> str:
        """The name of a row of this student."""
        return self.part + "/".join([self.name, *names])

    def options(self, row: str, lr: float, epochs: float, seed: int) -> dict[str, Any]:
        """What a row is made of, beside the settings of the run."""
        method, given, sharpness = self.rows[row]
        about = {"method": method, "options": given, "sharpness": sharpness, "student": self.section.model_dump()}
        return {**about, "corpus": self.corpus_file(), "lr": lr, "epochs": epochs, "seed": seed}

    def score(self, models: dict[str, Any]) -> dict[str, Any]:
        """Scores on all rows, and averages without the rows whose texts are in the corpus."""
        judged = judge(models, self.tests)
        result: dict[str, Any] = {}
        for model, scores in judged.scores.items():
            clean = {task.name: task.without(scores[task.name], self.texts).value for task in self.tests}
            result[model] = {
                "tasks": {name: {"value": s.value, "interval": s.interval} for name, s in scores.items()},
                "averages": judged.averages(model),
                "clean": clean,
                "clean_averages": {
                    group: float(np.mean([clean[t.name] for t in self.tests if group in (t.domain, "all")]))
                    for group in ("in", "out", "all")
                },
            }
        return result

    def references(self) -> None:
        """Teacher, untrained student and free baseline."""
        self.results.run(self.called("references"), self.untrained, student=self.section.model_dump())
        self.results.run(self.teacher_row, self.teacher)

    def untrained(self) -> dict[str, Any]:
        from distilvec.training import TokenizedCorpus, free_maps
        from distilvec.training.sample import make_sample

        student = make_student(self.section, [], self.corpus, 0)
        tokens = TokenizedCorpus.build(student, self.corpus.texts, len(self.corpus), self.work / self.name / "tokens")
        rows = np.asarray(self.corpus.train_rows)
        sample = make_sample(student, tokens, [self.source], rows, seed=0, needs=Needs())
        untrained = self.encoder(student)
        free = RidgeMapped(untrained, free_maps(sample)[0])
        models = {"untrained student": untrained, "free baseline": free}
        parameters = sum(p.numel() for p in student.parameters())
        return {"models": self.score(models), "parameters": parameters}

    def teacher(self) -> dict[str, Any]:
        return {"models": self.score({"teacher": CachedEncoder(self.taught.teacher)})}

    def row(self, row: str, seed: int, device: str | None) -> None:
        lr = self.tune(row, device)
        make = functools.partial(self.trained_run, row, lr, seed, device)
        self.results.run(self.called(f"{row}-{seed}"), make, **self.options(row, lr, self.epochs, seed))

    def trained_run(self, row: str, lr: float, seed: int, device: str | None) -> dict[str, Any]:
        student, fitted = self.train(row, lr, self.epochs, seed, device)
        scores = self.score({"student": self.encoder(student)})["student"]
        last = [entry for entry in fitted.log if "loss" in entry]
        return {
            "row": row,
            "lr": lr,
            "seed": seed,
            "steps": fitted.steps,
            "training_seconds": round(fitted.seconds, 1),
            "skipped_steps": fitted.skipped,
            "last_terms": {k: v for k, v in (last[-1] if last else {}).items() if k.startswith(("term/", "loss"))},
            **scores,
        }


def main() -> None:
    parser = arguments(__file__)
    parser.add_argument("--student", choices=["bpe", "remade", "embedder", "cut", "cut3"], default="bpe")
    parser.add_argument("--teacher", choices=list(TEACHERS), default="minilm")
    parser.add_argument("--models", type=Path, help="folder of all-mpnet-base-v2")
    parser.add_argument("--rows", default="main", help="main, baselines, parts, all, or names with commas")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--lr", type=float, help="of all rows; otherwise each has the best of the grid")
    options = parser.parse_args()
    results = Results(EXPERIMENT, SETTINGS)
    if finished(options, results, write_page):
        return
    bench = Bench(options.student, results, options.teacher, options.models)
    bench.lr = options.lr
    bench.references()
    named = {"main": MAIN, "baselines": BASELINES, "parts": PARTS, "all": tuple(ROWS)}
    rows = named.get(options.rows) or tuple(options.rows.split(","))
    for seed in range(options.seeds):
        for row in rows:
            bench.row(row, seed, options.device)
            write_page(results.rows(), results.home)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
