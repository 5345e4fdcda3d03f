"""Many text teachers, one student: the many-teachers paper's comparison, with teachers of different kinds."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.harness.records import WORK, Results, digest
from experiments.harness.script import arguments, finished, shared
from experiments.harness.texts import read_rows
from experiments.headline.run import clean, pool, without
from experiments.many_text import teachers as text_teachers
from experiments.many_text.table import EXPERIMENT, ROWS, SETS, Row, write_page
from experiments.talas.run import DTYPE, PROBE_ROWS, Bench
from experiments.talas.spine import spine_student, trained_as

from distilvec.corpus import read_corpus
from distilvec.flow.combine import combine
from distilvec.flow.demo import demo_teacher
from distilvec.flow.fit import store_lookup
from distilvec.flow.start import make_student
from distilvec.flow.teach import Taught, teach_one
from distilvec.judging import CachedEncoder, ClusteringTask, agreement, free_map, judge, talas_tasks
from distilvec.methods.table import build_method
from distilvec.recipe import CallSection, ModelSection, OptimizerSection, ShrinkSection, StudentSection, TrainingSection
from distilvec.training import Material, TrainingSettings, fit

GRID = (3e-4, 1e-3)
BATCH = 32
#: Training texts that the linear maps of `linear_explained` are fitted on.
FITTED_ON = 4000
#: Share held out of each corpus, about 540 and 1,400 texts.
HELD_OUT = {"talas": 0.04, "pool": 0.005}


class ManyText:
    """Corpus, teachers, stores and tasks, made once.

    Args:
        corpus: talas or pool.
        epochs: of every row.
        quick: small teachers, 200 texts, a few dozen test items: only to see that it runs.
        device: cpu to keep off an accelerator.
    """

    def __init__(self, corpus: str, epochs: float, quick: bool, device: str | None, results: Results) -> None:
        self.name, self.epochs, self.device, self.results = corpus, epochs, device, results
        self.work = results.work
        data = cut_data(self.work / "data") if quick else shared() / "data"
        self.built = self.work / "text_teachers" if quick else text_teachers.FOLDER
        settings = text_teachers.QUICK if quick else text_teachers.SETTINGS
        text_teachers.build(self.built, settings, 4000 if quick else None)
        self.corpus = read_corpus(
            pool() if corpus == "pool" else data / "talas_corpus.jsonl.gz",
            self.work / "corpus" / corpus,
            domain="source" if corpus == "pool" else "domain",
            holdout=0.2 if quick else HELD_OUT[corpus],
        )
        self.texts = set(self.corpus.texts())
        self.taught = self.teach(quick)
        limit = 200 if quick else PROBE_ROWS
        self.tests = talas_tasks(data, max_train=limit)
        self.validation = talas_tasks(
            data, max_train=min(limit, 4000), split="validation", names=["emotion", "wic", "stsb"]
        )
        rows = list(read_rows(data / "banking77.test.jsonl.gz"))
        self.clusters = ClusteringTask("banking77 clusters", [r["text"] for r in rows], [r["label"] for r in rows])

    def teach(self, quick: bool) -> dict[str, Taught]:
        """Every teacher with its store.

        A function's fingerprint does not say what it was built with, so the options of the rows and the folder of the
        stores do.
        """
        sections = {"minilm": ModelSection(name="minilm", model=demo_teacher(), dtype=DTYPE)}
        about: dict[str, Any] = {"minilm": None}
        for name in text_teachers.BUILDERS:
            call = text_teachers.load(name, self.built)
            sections[name] = CallSection(name=name, call=call, batch_size=2048)
            about[name] = json.loads((self.built / name / "config.json").read_text())["built"]
        if not quick:
            student = spine_student("bpe")
            sections["bpe"] = ModelSection(name="bpe", model=str(student), dtype=DTYPE)
            about["bpe"] = trained_as("bpe")
        setup = {"teachers": list(about), "built": about, "epochs": self.epochs, "texts": len(self.corpus)}
        self.built_with = about
        self.results.run(f"{self.name}/setup", functools.partial(setup_row, setup), **setup)
        self.stores = self.work / "stores" / digest(about)
        return {name: teach_one(section, self.corpus, self.stores) for name, section in sections.items()}

    def teachers_of(self, row: Row) -> list[Taught]:
        if row.together:
            teacher, store, filled, seen = combine(
                list(self.taught.values()), "concatenate", self.corpus, self.stores, "float16"
            )
            return [Taught(teacher, seen, store, filled)]
        return [self.taught[row.only]] if row.only else list(self.taught.values())

    def student(self, row: Row, seed: int) -> Any:
        model = str(shared() / "models" / "student-bpe")
        if row.shrink is None:
            section = StudentSection(model=model, max_length=128)
        else:
            section = StudentSection(shrink=ShrinkSection(of=model, **row.shrink), max_length=128)
        return make_student(section, [], self.corpus, seed)

    def train(self, name: str, lr: float, epochs: float, seed: int) -> tuple[Any, Any]:
        row = ROWS[name]
        student, taught = self.student(row, seed), self.teachers_of(row)
        out = self.work / "runs" / f"{self.name}-{slug(name)}-{lr}-{epochs}-{seed}"
        shutil.rmtree(out, ignore_errors=True)
        rows = np.concatenate([self.corpus.train_rows, self.corpus.holdout_rows])
        learnt = Material(
            self.corpus,
            [each.info for each in taught],
            [each.source(self.corpus, rows, self.work) for each in taught],
            lookup=store_lookup([each.store for each in taught]),
        )
        training = TrainingSection(
            epochs=epochs, batch_size=BATCH, seed=seed, save_every=100_000, **Bench.arguments(self.device)
        )
        cache = self.work / f"student{'' if row.shrink is None else '-' + slug(name)}"
        settings = TrainingSettings(training, OptimizerSection(lr=lr, heads_lr=lr), out, cache=cache)
        fitted = fit(student, build_method(row.method, row.options), learnt, settings)
        shutil.rmtree(out, ignore_errors=True)
        return student, fitted

    def tune(self, name: str) -> float:
        """The learning rate with the better validation average after one epoch."""
        name = ROWS[name].like or name
        scores = {}
        for lr in GRID:
            make, options = functools.partial(self.tuning_run, name, lr), self.options(name, lr, 1.0, 0)
            scores[lr] = self.results.run(f"{self.name}/tuning/{name}-{lr}", make, **options)["validation"]
        return max(scores, key=scores.__getitem__)

    def tuning_run(self, name: str, lr: float) -> dict[str, Any]:
        student, _ = self.train(name, lr, 1.0, 0)
        found = judge({"student": Bench.encoder(student)}, self.validation)
        return {"row": name, "lr": lr, "validation": found.averages("student")["all"]}

    def options(self, name: str, lr: float, epochs: float, seed: int) -> dict[str, Any]:
        """What a row is made of, beside the settings of the run."""
        about = {"row": name, **dataclasses.asdict(ROWS[name]), "built": self.built_with}
        return {**about, "lr": lr, "epochs": epochs, "seed": seed, "batch": BATCH}

    def score(self, encoder: CachedEncoder) -> dict[str, Any]:
        """The nine sets, Banking77's clusters, and what of each teacher is in the vectors, on held-out texts."""
        judged = judge({"model": encoder}, self.tests)
        scores = judged.scores["model"]
        clusters = judge({"model": encoder}, [self.clusters]).scores["model"]["banking77 clusters"]
        return {
            "tasks": {name: {"value": s.value, "interval": s.interval} for name, s in scores.items()},
            "averages": judged.averages("model"),
            "clean": clean(self.tests, scores, self.texts),
            "clean_averages": without(self.tests, scores, self.texts),
            "clustering": {"value": clusters.value, "interval": clusters.interval},
            "per_teacher": self.per_teacher(encoder),
        }

    def per_teacher(self, encoder: CachedEncoder) -> dict[str, dict[str, float]]:
        """What a linear map finds of each teacher, and how alike the similarities are, whatever the method was."""
        train, held = np.asarray(self.corpus.train_rows)[:FITTED_ON], np.asarray(self.corpus.holdout_rows)
        seen, new = encoder(self.corpus.texts(train)), encoder(self.corpus.texts(held))
        found = {}
        for name, taught in self.taught.items():
            known, target = (self.vectors(taught, rows) for rows in (train, held))
            alike = agreement(target, new)
            found[name] = {
                "linear_explained": linear_explained(seen, known, new, target),
                **{key: alike[key] for key in ("cka", "neighbours", "similarity_spearman")},
            }
        return found

    def vectors(self, taught: Taught, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """float32 [n, D] from a teacher's store."""
        return np.asarray(taught.store.read(taught.store.rows(np.asarray(self.corpus.teacher_keys)[rows])))

    def references(self) -> None:
        """The teachers themselves and the untrained student."""
        self.results.run(f"{self.name}/references/untrained", self.untrained, built=self.built_with)
        for name, built in self.built_with.items():
            make = functools.partial(self.teacher, name)
            self.results.run(f"{self.name}/references/{name}", make, teacher=built, built=self.built_with)

    def untrained(self) -> dict[str, Any]:
        student = self.student(ROWS["gaussian"], 0)
        return {"parameters": count(student), **self.score(Bench.encoder(student))}

    def teacher(self, name: str) -> dict[str, Any]:
        taught = self.taught[name]
        embedder = getattr(taught.teacher, "_function", None)
        size = embedder.parameters if embedder is not None else taught.teacher.card.parameters
        width = taught.teacher.card.width
        return {"parameters": size, "width": width, **self.score(CachedEncoder(taught.teacher))}

    def row(self, name: str, seed: int) -> None:
        lr = self.tune(name)
        make = functools.partial(self.trained_run, name, lr, seed)
        self.results.run(f"{self.name}/{name}-{seed}", make, **self.options(name, lr, self.epochs, seed))

    def trained_run(self, name: str, lr: float, seed: int) -> dict[str, Any]:
        student, fitted = self.train(name, lr, self.epochs, seed)
        bound = ROWS[name].options.get("preset") == "code" and self.at_the_bound(student, fitted.method)
        return {
            "row": name,
            "lr": lr,
            "seed": seed,
            "teachers": [ROWS[name].only] if ROWS[name].only else list(self.taught),
            "steps": fitted.steps,
            "training_seconds": round(fitted.seconds, 1),
            "parameters": count(student),
            "heads": fitted.heads,
            "held_out": self.named(fitted.held_out, ROWS[name]),
            **({"bound": bound} if bound else {}),
            **self.score(Bench.encoder(student)),
        }

    @staticmethod
    def named(terms: dict[str, float], row: Row) -> dict[str, float]:
        """Terms with their teacher's name, where there is but one too."""
        return {f"{name}:{row.only}" if row.only else name: value for name, value in terms.items()}

    @torch.no_grad()
    def at_the_bound(self, student: Any, method: Any) -> dict[str, dict[str, float]]:
        """How near a kernel's inverse deviations, exp(tanh x) of the published code, are to their bound e.

        `share_of_bound`: mean of exp(tanh x) / e. `correlation`: of an item's -log-likelihood with its squared error;
        where both are 1, maximising the likelihood is minimising the squared error.
        """
        rows = np.asarray(self.corpus.holdout_rows)
        place = next(method.parameters()).device
        embedded = student.encode(self.corpus.texts(rows), convert_to_tensor=True, show_progress_bar=False)
        found = {}
        for (name, taught), kernel in zip(self.taught.items(), method.kernels(embedded.to(place).float()), strict=True):
            target = torch.from_numpy(self.vectors(taught, rows)).to(place)
            inverse, squared = kernel.spread.tanh().exp(), (target.unsqueeze(-2) - kernel.mean).square()
            nll = (0.5 * squared * inverse.square() - inverse.log()).mean((-1, -2))
            both = torch.stack([nll, squared.mean((-1, -2))])
            found[name] = {
                "share_of_bound": float(inverse.mean() / np.e),
                "correlation": float(torch.corrcoef(both)[0, 1]),
            }
        return found


def linear_explained(seen: np.ndarray, known: np.ndarray, new: np.ndarray, target: np.ndarray) -> float:
    """1 - mean over a teacher's coordinates of residual variance / variance, of a ridge map with offset.

    Args:
        seen, known: [n, d] and [n, D], a student's and a teacher's vectors that the map is fitted on.
        new, target: [m, d] and [m, D], of other texts.
    """
    centre, offset = seen.mean(0), known.mean(0)
    residual = target - offset - (new - centre) @ free_map(seen - centre, known - offset, penalty=1e-3)
    return float(1 - np.mean((residual**2).mean(0) / np.maximum(target.var(0), 1e-12)))


def setup_row(setup: dict[str, Any]) -> dict[str, Any]:
    return setup


def slug(row: str) -> str:
    """A row's name as that of a folder."""
    return row.replace(",", "").replace(" ", "_")


def count(student: Any) -> int:
    return sum(p.numel() for p in student.parameters())


def cut_data(folder: Path, rows: int = 40) -> Path:
    """A seeded sample of every file of the evaluation sets, and of TALAS's corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted((shared() / "data").glob("*.jsonl.gz")):
        if file.name.split(".")[0] in ("sentences", "pairs", "imdb", "cranfield", "ag_news"):
            continue
        found = list(read_rows(file))
        kept = np.random.default_rng(0).permutation(len(found))[: 200 if "corpus" in file.name else rows]
        with gzip.open(folder / file.name, "wt", encoding="utf-8") as out:
            out.writelines(json.dumps(found[row]) + "\n" for row in kept)
    return folder


def main() -> None:
    parser = arguments(__file__, quick="everything tiny and kept apart, to see that it runs")
    parser.add_argument("--rows", default="main", help=f"{', '.join(SETS)}, or names of rows, separated by semicolons")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--corpus", choices=list(HELD_OUT), default="talas")
    parser.add_argument("--epochs", type=float, default=2.0)
    options = parser.parse_args()
    work = WORK / f"{EXPERIMENT}{'-quick' if options.quick else ''}"
    results = Results(EXPERIMENT, {"run_epochs": options.epochs, "dtype": DTYPE}, work=work)
    if finished(options, results, write_page):
        return
    rows = [row for name in options.rows.split(";") for row in SETS.get(name, (name,))]
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise SystemExit(f"unknown rows: {', '.join(unknown)}; there are {', '.join([*SETS, *ROWS])}")
    bench = ManyText(options.corpus, options.epochs, options.quick, options.device, results)
    bench.references()
    for seed in range(options.seeds):
        for row in rows:
            if ROWS[row].only in (None, *bench.taught):
                bench.row(row, seed)
                write_page(results.rows(), results.home)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
