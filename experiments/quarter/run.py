"""Students of a quarter, an eighth and a twentieth of the teacher's parameters, in shapes that keep most of it."""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.records import WORK, Results, digest
from experiments.harness.script import arguments, finished, settings_of, shared
from experiments.harness.texts import read_rows
from experiments.harness.training import student_of
from experiments.headline import run as headline
from experiments.quarter.shapes import MUON, OTHERS, PIECES, RATES, SIZES, TABLES
from experiments.quarter.table import write_page
from experiments.quarter.texts import drawn, everything, larger, pool
from safetensors.numpy import load_file

from distilvec.corpus import Corpus, read_corpus
from distilvec.corpus.docstrings import docstring_pairs
from distilvec.flow.demo import demo_teacher
from distilvec.judging import (
    CachedEncoder,
    Judgement,
    JudgingTask,
    RetrievalTask,
    agreement,
    judge,
    load_task,
    talas_tasks,
)
from distilvec.recipe import Recipe
from distilvec.report import Record
from distilvec.teachers import load_teacher
from distilvec.training import bfloat16_pays

EXPERIMENT = "quarter"
NAME = "all-MiniLM-L6-v2"
DTYPE = "bfloat16" if bfloat16_pays() else "float32"
HOLDOUT = 0.01
EPOCHS, PROBE_EPOCHS, PIECES_EPOCHS = 3.84, 0.404, 0.5
#: Trainings of their own, each with its whole schedule, for quality against time.
COSTS = (0.05, 0.2, 0.8)


def recipe(
    shape: dict[str, Any],
    seed: int,
    epochs: float,
    token_states: float = 1.0,
    *,
    texts: Path | None = None,
    lr: float = 1e-3,
    muon: bool = False,
    batch_size: int = 64,
    compiled: bool = False,
    more: float = 0.0,
) -> dict[str, Any]:
    """The run of a shape; its folder is named after all that it is made of."""
    fast = bfloat16_pays()
    made: dict[str, Any] = {
        "corpus": {
            "path": str(texts or pool()),
            "domain": "source",
            "holdout": HOLDOUT,
            **({"made": more} if more else {}),
        },
        "teachers": [{"name": NAME, "model": demo_teacher(), "dtype": "bfloat16" if fast else None}],
        "student": {"shrink": {"of": NAME, "positions": 256, **shape}, "max_length": 256, "dropout": 0.0},
        "method": [{"name": "cosine", "map": False}, {"name": "token_states", "weight": token_states}],
        "optimizer": {"lr": lr, "heads_lr": None, **({"muon": True} if muon else {})},
        "training": {
            "epochs": epochs,
            "batch_size": batch_size,
            "seed": seed,
            "adam_beta2": 0.98,
            "lr_scheduler_type": "linear",
            "warmup_steps": 0.02,
            "save_every": 500,
            "bf16": fast,
            **({"torch_compile": True} if compiled else {}),
        },
        "judging": {"tasks": [], "agreement": True, "speed": False},
        "cache": str(WORK / EXPERIMENT),
    }
    return {**made, "output": str(WORK / EXPERIMENT / f"run-{digest(made)}")}


def table_recipe(size: str, seed: int, epochs: float) -> dict[str, Any]:
    """The run of a static student of a size, on the larger corpus."""
    made = recipe({}, seed, epochs, texts=larger())
    made["student"] = {
        "static": {"of": NAME, **{key: TABLES[size][key] for key in ("vocabulary", "dimensions")}},
        "max_length": 256,
    }
    made["method"] = {"name": "cosine"}
    made["optimizer"] = {"lr": 3e-3, "heads_lr": 3e-3}
    return {**made, "output": str(WORK / EXPERIMENT / f"run-{digest(made)}")}


def rival_run(made: Recipe, numbers: int | None) -> dict[str, Any]:
    """A static student on all tasks; or, with so many numbers a piece, what model2vec makes of the teacher itself."""
    if numbers is None:
        folder, about = trained(made)
        model = folder / "student"
    else:
        model, about = distilled(numbers)
    return {**about, **likeness(model), **scores(made, model, groups())}


def distilled(numbers: int) -> tuple[Path, dict[str, Any]]:
    """Folder of model2vec's own distillation of the teacher, and what it is and resembles."""
    from model2vec.distill import distill

    folder = WORK / EXPERIMENT / f"model2vec-{numbers}" / "model"
    begun = time.perf_counter()
    if not folder.exists():
        distill(demo_teacher(), pca_dims=numbers).save_pretrained(folder)
    took = time.perf_counter() - begun
    table = max(np.prod(tensor.shape) for tensor in load_file(folder / "model.safetensors").values())
    return folder, {"parameters": int(table), "training_seconds": took}


def trained(made: Recipe) -> tuple[Path, dict[str, Any]]:
    """Folder of the run, which is made or gone on with where it is not whole, and what it cost and resembles."""
    folder = student_of(made).parent
    record = Record.load(folder)
    student = record["scores"].model("student")
    return folder, {
        "parameters": student.parameters,
        "bytes": student.size_bytes,
        "steps": record["cost"].steps,
        "training_seconds": record["cost"].training_seconds,
        "seed": made.training.seed,
    }


def probed(made: Recipe) -> dict[str, Any]:
    """How much a shape resembles the teacher after a short training."""
    folder, about = trained(made)
    return {**about, **likeness(folder / "student")}


def likeness(model: Path) -> dict[str, Any]:
    """What a model shares with the teacher on the pool's held-out texts, which the larger corpus holds out too."""
    corpus = _read(WORK / EXPERIMENT / "corpus", str(pool()), HOLDOUT)
    texts = corpus.texts(corpus.holdout_rows)
    teacher, student = (CachedEncoder(load_teacher(model=each, dtype=DTYPE))(texts) for each in (demo_teacher(), model))
    alike = teacher.shape == student.shape
    found = agreement(teacher, student, shared_space=alike)
    return {"agreement": found, "cosine": found["cosine"] if alike else None, "held_out": len(texts)}


@functools.cache
def _read(place: Path, path: str, holdout: float) -> Corpus:
    return read_corpus(path, place, domain="source", holdout=holdout)


def corpus_of(made: Recipe) -> Corpus:
    """The prepared corpus of a run."""
    return _read(WORK / EXPERIMENT / "corpus", made.corpus.path, made.corpus.holdout)


def judged_run(made: Recipe) -> dict[str, Any]:
    """A trained student on all tasks, beside the teacher."""
    folder, about = trained(made)
    return {**about, **likeness(folder / "student"), **scores(made, folder / "student", groups())}


def cost_run(made: Recipe) -> dict[str, Any]:
    """A trained student on the nine sets, beside the teacher."""
    folder, about = trained(made)
    return {**about, **likeness(folder / "student"), **scores(made, folder / "student", {"nine": groups()["nine"]})}


def start_run(made: Recipe) -> dict[str, Any]:
    """The same student before training, on the nine sets and retrieval."""
    folder, about = trained(made)
    (start,) = (folder / "start").iterdir()
    tasks = {group: found for group, found in groups().items() if group != "unseen"}
    return {"parameters": about["parameters"], **scores(made, start, tasks)}


def scores(made: Recipe, model: Path, tasks_of: dict[str, list[JudgingTask]]) -> dict[str, Any]:
    """A model's scores by group of tasks, beside the teacher's."""
    seen = set(corpus_of(made).texts())
    found: dict[str, Any] = {}
    for group, tasks in tasks_of.items():
        both = Judgement(judgement("teacher", demo_teacher(), group, tasks).scores)
        both.scores |= judgement("student", model, group, tasks).scores
        found[group] = beside_teacher(both, group, tasks, seen)
    return found


def beside_teacher(both: Judgement, group: str, tasks: list[JudgingTask], seen: set[str]) -> dict[str, Any]:
    """Scores of models on a group of tasks, and the student's difference to the teacher.

    Args:
        seen: texts of the corpus; the averages are also taken without test items that have one of them.
    """
    average = "retrieval" if group == "retrieval" else "all"
    difference = both.difference("student", "teacher", average)
    found: dict[str, Any] = {
        "tasks": {
            model: {name: {"value": s.value, "interval": s.interval, "metric": s.metric} for name, s in row.items()}
            for model, row in both.scores.items()
        },
        "averages": {model: both.averages(model) for model in both.scores},
        "retention": both.retention("student", "teacher"),
        "difference": {"value": difference.value, "interval": difference.interval},
    }
    if group == "retrieval":
        found["bm25"] = {task.name: task.bm25() for task in tasks if isinstance(task, RetrievalTask)}
    else:
        clean = both.without(tasks, seen)
        found["without_overlap"] = {model: clean.averages(model) for model in clean.scores}
    return found


def judgement(name: str, model: str | Path, group: str, tasks: list[JudgingTask]) -> Judgement:
    """A model's scores on a group of tasks, kept with what it said of each item."""
    place = WORK / EXPERIMENT if name == "teacher" else Path(model).parent
    return kept_judgement(place / "judged" / f"{name}-{group}.json", name, model, tasks)


def kept_judgement(file: Path, name: str, model: str | Path, tasks: list[JudgingTask]) -> Judgement:
    """A model's scores on tasks, with what it said of each item; read from the file if it is there."""
    if not file.exists():
        made = judge({name: CachedEncoder(load_teacher(model=model, dtype=DTYPE))}, tasks)
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(made.to_dict(outputs=True)), encoding="utf-8")
        partial.replace(file)
    return Judgement.from_dict(json.loads(file.read_text(encoding="utf-8")))


def groups() -> dict[str, list[JudgingTask]]:
    """The nine sets, four that nobody looked at, and retrieval."""
    data = shared() / "data"
    single = {"kind": "classification", "max_train": 5000}
    unseen = [
        {"name": "imdb", **single, "max_train": 2000, "train": "imdb.train.jsonl.gz", "test": "imdb.test.jsonl.gz"},
        {"name": "ag_news", **single, "train": "ag_news.train.jsonl.gz", "test": "ag_news.test.jsonl.gz"},
        {"name": "sst2", **single, "train": "sst2.train.jsonl.gz", "test": "sst2.test.jsonl.gz"},
        {"name": "rte", "kind": "pairs", "positive": "entailment", "test": "rte.validation.jsonl.gz"},
    ]
    cranfield = {name: f"cranfield.{name}.jsonl.gz" for name in ("queries", "corpus", "qrels")}
    asked = drawn()
    docstrings = docstring_pairs(limit=2600)[:600]  # those that the demo holds out
    return {
        "nine": talas_tasks(data),
        "unseen": [load_task(spec, data) for spec in unseen],
        "retrieval": [
            load_task({"name": "cranfield", "kind": "retrieval", **cranfield}, data),
            RetrievalTask.from_pairs("pairs", [each["anchor"] for each in asked], [each["positive"] for each in asked]),
            RetrievalTask.from_pairs(
                "docstrings", [each["summary"] for each in docstrings], [each["description"] for each in docstrings]
            ),
        ],
    }


def timed_run(made: Recipe) -> dict[str, Any]:
    """Texts per second and time of one text, of student and teacher in turns."""
    texts = [row["text"] for row in read_rows(pool())][::200]
    return headline.speeds(trained(made)[0] / "student", texts)


class Rows:
    """The results, row by row; the page is written anew after each."""

    def __init__(self, results: Results) -> None:
        self.results = results

    def run(self, name: str, make: Callable[..., Any], made: Recipe, *more: Any, **about: Any) -> dict[str, Any]:
        options = about or {"recipe": settings_of(made)}
        found = self.results.run(name, functools.partial(make, made, *more), **options)
        write_page(self.results.rows(), self.results.home)
        return found


def probe(rows: Rows, options: argparse.Namespace) -> None:
    """Shapes beside others, after a short training."""
    for name, shape in {**SIZES, **OTHERS}.items():
        if name.partition(",")[0] in options.sizes:
            lr = RATES[name.partition(",")[0]]
            rows.run(f"probe/{name}-0", probed, Recipe.build(recipe(shape, 0, PROBE_EPOCHS, lr=lr)))
    if "quarter" in options.sizes:
        made = Recipe.build(recipe(SIZES["quarter"], 0, PROBE_EPOCHS, token_states=0.0))
        rows.run("probe/quarter, without token states-0", probed, made)


def pieces(rows: Rows, options: argparse.Namespace) -> None:
    """Quarters with more word pieces."""
    for name, shape in PIECES.items():
        made = recipe(shape, 0, PIECES_EPOCHS, texts=everything(), compiled=True, **MUON)
        rows.run(f"pieces/{name}-0", probed, Recipe.build(made))


def rates(rows: Rows, options: argparse.Namespace) -> None:
    """Larger and larger learning rates, until one is worse."""
    for size in options.sizes:
        for muon in (False, True):
            best = 0.0
            for lr in (1e-3, 2e-3, 4e-3, 8e-3):
                made = Recipe.build(recipe(SIZES[size], 0, PROBE_EPOCHS, texts=larger(), lr=lr, muon=muon))
                found = rows.run(f"rate/{size}, {'muon, ' if muon else ''}{lr:g}-0", probed, made)
                if found["agreement"]["neighbours"] < best:
                    break
                best = found["agreement"]["neighbours"]


def cost(rows: Rows, options: argparse.Namespace) -> None:
    """Quality against time."""
    for epochs in COSTS:
        for name in ("quarter", "quarter, today's"):
            made = recipe({**SIZES, **OTHERS}[name], 0, epochs, texts=larger() if options.larger else None)
            rows.run(f"cost/{name}, {epochs:g}-0", cost_run, Recipe.build(made))


def rivals(rows: Rows, options: argparse.Namespace) -> None:
    """Tables of the same sizes."""
    for size in options.sizes:
        for seed in options.seeds:
            made = Recipe.build(table_recipe(size, seed, options.epochs))
            rows.run(f"rival/table, {size}-{seed}", rival_run, made, None)
        numbers, made = TABLES[size]["model2vec"], Recipe.build(table_recipe(size, 0, 1.0))
        about = {"numbers": numbers, "version": version("model2vec")}
        rows.run(f"rival/model2vec, {size}-0", rival_run, made, numbers, **about)


def whole(rows: Rows, options: argparse.Namespace) -> None:
    """Whole trainings, judged on all tasks."""
    for seed in options.seeds:
        for size in options.sizes:
            texts = everything() if options.all else larger() if options.larger else None
            how = dict(MUON) if options.muon else {"lr": RATES[size]}
            kind = options.shape if options.muon else size
            how |= {"compiled": options.compiled, "more": options.made}
            made = Recipe.build(recipe({**SIZES, **PIECES}[kind], seed, options.epochs, texts=texts, **how))
            name = kind + ", all texts" * options.all + ", more texts" * options.larger
            name += f", {options.made:g} made of each" * bool(options.made) + ", Muon" * options.muon
            rows.run(f"{name}-{seed}", judged_run, made)
            rows.run(f"speed/{name}-{seed}", timed_run, made)
            if seed == options.seeds[0]:
                rows.run(f"start/{name}-{seed}", start_run, made)


def main() -> None:
    parser = arguments(__file__, device=False)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=float, default=EPOCHS)
    parser.add_argument("--larger", action="store_true", help="all sentences, and docstrings")
    parser.add_argument("--all", action="store_true", help="these, and the pairs' texts")
    parser.add_argument("--made", type=float, default=0.0, help="texts made of each text: parts and splices")
    parser.add_argument("--muon", action="store_true", help="orthogonal steps, in batches of 128, of the quarter")
    parser.add_argument("--shape", choices=list(PIECES), default="quarter", help="of the quarter, with --muon")
    parser.add_argument("--pieces", action="store_true", help="only compare quarters with more word pieces")
    parser.add_argument("--compiled", action="store_true", help="with a compiled network: needs a C++ compiler")
    parser.add_argument("--rivals", action="store_true", help="static students and model2vec's, of the same sizes")
    parser.add_argument("--rates", action="store_true", help="only compare learning rates, on the larger corpus")
    parser.add_argument("--cost", action="store_true", help="short trainings of the quarter, and of today's shape")
    parser.add_argument("--probe", action="store_true", help="only compare shapes, trained on 40,000 texts")
    options = parser.parse_args()
    results = Results(EXPERIMENT)
    if finished(options, results, write_page):
        return
    if options.muon and options.sizes != ["quarter"]:
        parser.error("--muon is for --sizes quarter: its rate was chosen there")
    if options.shape != "quarter" and not options.muon:
        parser.error("--shape is for --muon: the shapes were compared with it")
    asked = (part for part in (probe, pieces, rates, cost, rivals) if getattr(options, part.__name__))
    next(asked, whole)(Rows(results), options)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
