"""A quarter of the parameters in two whole layers, on the large sentence pool."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.records import WORK, Results, digest
from experiments.harness.script import arguments, finished, settings_of, shared
from experiments.harness.texts import shared_rows, write_rows
from experiments.harness.training import student_of
from experiments.headline.table import BEST, write_page
from sentence_transformers import SentenceTransformer

from distilvec.corpus import read_corpus
from distilvec.flow.demo import demo_teacher
from distilvec.judging import CachedEncoder, judge, speed, talas_tasks
from distilvec.recipe import Recipe
from distilvec.report import Record
from distilvec.teachers import load_teacher
from distilvec.training import bfloat16_pays

EXPERIMENT = "headline"
#: Share of the pool that is held out.
HOLDOUT = 0.005
DTYPE = "bfloat16" if bfloat16_pays() else "float32"


def pool() -> Path:
    """All texts of the pool, each once, one a line."""
    file = WORK / "headline" / "pool.jsonl"
    if not file.exists():
        texts: dict[str, str] = {}
        columns_of = {"talas_corpus": ("text",), "sentences": ("text",), "pairs": ("anchor", "positive", "negative")}
        for name, columns in columns_of.items():
            for row in shared_rows(name):
                for column in columns:
                    if row.get(column):
                        texts.setdefault(row[column], row.get("source") or row["domain"])
        write_rows(file, ({"text": text, "source": source} for text, source in texts.items()))
    return file


def recipe(options: argparse.Namespace) -> dict[str, Any]:
    """The run; its folder is named after all that it is made of, so that no other settings find its student there."""
    fast = bfloat16_pays()
    made: dict[str, Any] = {
        "corpus": {"path": str(pool()), "domain": "source", "holdout": HOLDOUT},
        "teachers": [{"name": "all-MiniLM-L6-v2", "model": demo_teacher(), "dtype": "bfloat16" if fast else None}],
        "student": {
            "shrink": {"of": "all-MiniLM-L6-v2", "layers": options.layers, "vocabulary": options.vocabulary},
            "space": options.space,
            "max_length": 128,
        },
        "method": {"name": options.method},
        "optimizer": {"lr": options.lr, "heads_lr": options.lr},
        "training": {
            "epochs": options.epochs,
            "batch_size": options.batch_size,
            "seed": options.seed,
            "evaluate_every": 1000,
            "save_every": 1000,
            "bf16": fast,
        },
        "judging": {"tasks": [], "agreement": True},
        "cache": str(WORK / "headline"),
    }
    return {**made, "output": str(WORK / "headline" / f"run-{options.method}-{digest(made)}")}


def defaults() -> argparse.Namespace:
    """The headline's own settings."""
    return parser().parse_args([])


def parser() -> argparse.ArgumentParser:
    parser = arguments(__file__, device=False)
    parser.add_argument("--epochs", type=float, default=6.0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--method", default=BEST)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 6])
    parser.add_argument("--vocabulary", type=int, default=5000)
    parser.add_argument("--space", choices=["own", "teacher"], default="own")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main() -> None:
    options = parser().parse_args()
    named = ("epochs", "lr", "batch_size", "layers", "vocabulary", "space", "seed")
    results = Results(EXPERIMENT, {name: getattr(options, name) for name in named})
    if finished(options, results, write_page):
        return
    (WORK / "headline").mkdir(parents=True, exist_ok=True)
    made = Recipe.build(recipe(options))
    chosen = settings_of(made)
    results.run(options.method, functools.partial(judged_run, made), recipe=chosen)
    results.run(f"{options.method}-speed", functools.partial(timed_run, made), recipe=chosen)
    print(write_page(results.rows(), results.home))


def trained(made: Recipe) -> tuple[Path, Any]:
    """Folder and corpus of the run, which is made or gone on with where it is not whole."""
    folder = student_of(made).parent
    about = made.corpus.model_dump(exclude={"path"})
    return folder, read_corpus(made.corpus.path, WORK / "headline" / "corpus", **about)


def timed_run(made: Recipe) -> dict[str, Any]:
    folder, corpus = trained(made)
    return speeds(folder / "student", corpus.texts(corpus.holdout_rows[:512]))


def judged_run(made: Recipe) -> dict[str, Any]:
    """Student and teacher on the nine sets, and what training and student cost."""
    folder, corpus = trained(made)
    record, tasks = Record.load(folder), talas_tasks(shared() / "data")
    models = {
        "teacher": CachedEncoder(load_teacher(model=demo_teacher(), dtype=DTYPE)),
        "student": CachedEncoder(load_teacher(model=folder / "student", dtype=DTYPE)),
    }
    judged = judge(models, tasks)
    row, top = (record["scores"].model(role) for role in ("student", "teacher"))
    seen = set(corpus.texts())
    return {
        "recipe": {
            key: value
            for key, value in settings_of(made).items()
            if key in ("student", "method", "optimizer", "training")
        },
        "corpus_texts": len(corpus),
        "overlap": {task.name: corpus.overlap(task.texts()) for task in tasks},
        "tasks": {
            model: {name: {"value": s.value, "interval": s.interval, "metric": s.metric} for name, s in scores.items()}
            for model, scores in judged.scores.items()
        },
        "averages": {model: judged.averages(model) for model in models},
        "clean_averages": {model: without(tasks, scores, seen) for model, scores in judged.scores.items()},
        "retention": judged.retention("student", "teacher"),
        "difference": {
            "value": judged.difference("student", "teacher").value,
            "interval": judged.difference("student", "teacher").interval,
        },
        "agreement": record["agreement"].values,
        "sizes": {"student": [row.parameters, row.size_bytes], "teacher": [top.parameters, top.size_bytes]},
        "training_seconds": record["cost"].training_seconds,
        "steps": record["cost"].steps,
        "seed": made.training.seed,
    }


def clean(tasks: list[Any], scores: dict[str, Any], seen: set[str]) -> dict[str, float]:
    """Set -> score of the test rows none of whose texts was trained on."""
    return {task.name: task.without(scores[task.name], seen).value for task in tasks}


def without(tasks: list[Any], scores: dict[str, Any], seen: set[str]) -> dict[str, float]:
    """Averages over the test rows none of whose texts was trained on."""
    values = clean(tasks, scores, seen)
    groups = ("in", "out", "all")
    return {g: float(np.mean([values[t.name] for t in tasks if g in (t.domain, "all")])) for g in groups}


def speeds(student: Path, texts: list[str]) -> dict[str, Any]:
    """Both models through plain sentence-transformers in float32, in turns; the median of three rounds each."""
    models = {"teacher": SentenceTransformer(demo_teacher()), "student": SentenceTransformer(str(student))}
    rounds = [{name: speed(model, texts, seconds=3.0) for name, model in models.items()} for _ in range(3)]
    keys = ("texts_per_second", "latency_p50_ms", "latency_p95_ms")
    found: dict[str, Any] = {
        name: {key: float(np.median([each[name][key] for each in rounds])) for key in keys} for name in models
    }
    ratios = [each["student"]["texts_per_second"] / each["teacher"]["texts_per_second"] for each in rounds]
    return {
        **found,
        "ratio": sorted(ratios),
        "cores": rounds[0]["teacher"]["cores"],
        "threads": rounds[0]["teacher"]["threads"],
    }


if __name__ == "__main__":
    main()
