"""The headline student compressed in every way, and static students of the same teacher beside it."""

from __future__ import annotations

import argparse
import functools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from experiments.compression.table import STATIC, write_page
from experiments.harness.records import WORK, Results
from experiments.harness.script import arguments, finished, settings_of, shared
from experiments.harness.training import settled, trained
from experiments.headline import run as headline

from distilvec.corpus import Corpus
from distilvec.flow.compress import compress
from distilvec.flow.lessons import held_out
from distilvec.judging import CachedEncoder, judge, speed, talas_tasks
from distilvec.judging.agreement import likeness
from distilvec.recipe import Recipe
from distilvec.students import load_student

EXPERIMENT = "compression"
SETS = ("stsb", "sick", "sts12", "mrpc", "scitail", "banking77")
PROBE_ROWS, TEXTS = 5_000, 1_000
LR = 3e-3


def student() -> Path:
    """The student of `headline` with its own settings."""
    return Path(headline.recipe(headline.defaults())["output"]) / "student"


def compressed() -> dict[str, Any]:
    """The table of the headline student."""
    compact = load_student(student())
    corpus = Corpus.open(WORK / "headline" / "corpus")
    held, trained = (
        corpus.texts(np.random.default_rng(0).choice(rows, TEXTS, replace=False))
        for rows in (corpus.holdout_rows, corpus.train_rows)
    )
    tasks = talas_tasks(shared() / "data", names=SETS, max_train=PROBE_ROWS)
    return compress(compact, held, trained, tasks).model_dump(mode="json")


def recipe(name: str) -> Recipe:
    """The headline's recipe with a static student."""
    row = STATIC[name]
    made = headline.recipe(argparse.Namespace(**{**vars(headline.defaults()), "lr": LR, "epochs": row.epochs}))
    table = {"dimensions": row.dimensions, "vocabulary": row.vocabulary}
    made["student"] = {"static": {"of": "all-MiniLM-L6-v2", **table}, "max_length": 128}
    made["training"] |= {"bf16": False, "evaluate_every": None}
    made["output"] = str(WORK / "compression" / slug(name))
    return Recipe.build(made)


def static(name: str) -> dict[str, Any]:
    """A static student before and after training."""
    made = recipe(name)
    shutil.rmtree(made.output, ignore_errors=True)
    prepared = settled(made)
    untrained = prepared.start.open()
    student, fitted, lessons = trained(prepared)
    shutil.rmtree(made.output, ignore_errors=True)
    tasks = talas_tasks(shared() / "data")
    judged = judge({"untrained": CachedEncoder(untrained), "trained": CachedEncoder(student)}, tasks)
    texts, vectors = held_out(prepared.corpus, lessons.first)
    agreed = {
        model: likeness(vectors, encode(texts))
        for model, encode in (("untrained", CachedEncoder(untrained)), ("trained", CachedEncoder(student)))
    }
    return {
        "name": name,
        "agreement": agreed,
        "averages": {model: judged.averages(model) for model in ("untrained", "trained")},
        "tasks": {m: {task: score.value for task, score in found.items()} for m, found in judged.scores.items()},
        "parameters": sum(parameter.numel() for parameter in student.parameters()),
        "speed": speed(student, tasks[-1].texts()[:256]),
        "steps": fitted.steps,
        "training_seconds": round(fitted.seconds, 1),
    }


def slug(name: str) -> str:
    return name.replace(", ", "-").replace(",", "").replace(" ", "_")


def main() -> None:
    parser = arguments(__file__, device=False)
    options = parser.parse_args()
    results = Results(EXPERIMENT)
    if finished(options, results, write_page):
        return
    if not (student() / "modules.json").exists():
        raise SystemExit(f"There is no {student()}: run `headline` first.")
    headline_settings = settings_of(Recipe.build(headline.recipe(headline.defaults())))
    results.run("headline", compressed, sets=SETS, probe_rows=PROBE_ROWS, texts=TEXTS, of=headline_settings)
    for name in STATIC:
        write_page(results.rows(), results.home)
        results.run(name, functools.partial(static, name), **settings_of(recipe(name)))
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
