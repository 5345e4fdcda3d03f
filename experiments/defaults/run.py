"""What a user gets who gives a teacher and texts, and nothing else: the table of defaults, tried."""

from __future__ import annotations

import argparse
import functools
import json
import random
from pathlib import Path
from typing import Any

from experiments.defaults.table import FEW, JUDGED, MODELS, write_page
from experiments.harness.records import WORK, Results
from experiments.harness.script import arguments, finished, shared
from experiments.harness.texts import shared_rows

import distilvec
from distilvec.flow.demo import demo_teacher, write_data
from distilvec.recipe import Recipe

EXPERIMENT = "defaults"
#: Corpus -> texts of it.
CORPORA = {"banking77-150": 150, "banking77-300": 300, "banking77": 1_500, "docstrings": 4_000, "sentences": 20_000}
#: Row -> folder of the teacher below --models (None: the demo's), and the student (None: cut out of the teacher).
TEACHERS: dict[str, tuple[str | None, Any]] = {
    "minilm": (None, None),
    "mpnet": ("all-mpnet-base-v2", None),
    "mpnet into minilm": ("all-mpnet-base-v2", "minilm"),
    "minilm into a table": (None, {"static": {"of": "teacher"}}),
    "minilm into a fresh student": (None, {"fresh": {}}),
    "minilm into student-bpe": (None, "student-bpe"),
}
SEEDS = (0, 1, 2)


def texts_of(corpus: str) -> list[str]:
    """The texts of a corpus, the same each time."""
    count = FEW[corpus] + JUDGED if corpus in FEW else CORPORA[corpus]
    if corpus == "docstrings":
        file, _ = write_data(WORK / EXPERIMENT / "docstrings", count)
        return [" ".join(json.loads(line)["text"].split()) for line in file.read_text(encoding="utf-8").splitlines()]
    name = "banking77.train" if corpus.startswith("banking77") else "sentences"
    texts = [row["text"] for row in shared_rows(name)]
    random.Random(0).shuffle(texts)
    return texts[:count]


def run_row(teacher: str, corpus: str, seed: int, models: Path | None, lr: float | None = None) -> dict[str, Any]:
    """One run with nothing chosen by hand but the rate, if any; scores by model with intervals, what was chosen."""
    folder, student = TEACHERS[teacher]
    named = {"minilm": demo_teacher, "student-bpe": lambda: str(shared() / "models" / "student-bpe")}
    student = named[student]() if isinstance(student, str) else student
    if folder is not None and models is None:
        raise SystemExit(f"{teacher} is in the folder that --models names; see the README.md beside this script.")
    path = demo_teacher() if folder is None or models is None else str(models / folder)
    file = WORK / EXPERIMENT / f"{corpus}.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(texts_of(corpus)), encoding="utf-8")
    out = WORK / EXPERIMENT / f"{teacher.replace(' ', '-')}-{corpus}-{lr or 'default'}-{seed}"
    run = distilvec.distill(
        {"name": "teacher", "model": path, "dtype": "bfloat16"},
        {"path": str(file), "holdout": JUDGED / (JUDGED + FEW[corpus]) if corpus in FEW else None},
        out,
        student=student,
        training={"seed": seed, "bf16": True},
        optimizer={"lr": lr},
        judging={"speed": False},
        cache=str(WORK / EXPERIMENT / f"{folder or 'minilm'}-{corpus}"),
    )
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    recipe = Recipe.load(out / "recipe.yaml")
    keys = {"student": True, "method": True, "optimizer": {"lr"}, "training": {"epochs", "batch_size"}}
    chosen = recipe.model_dump(mode="json", include=keys, exclude_defaults=True)
    if "model" in chosen.get("student", {}):
        chosen["student"]["model"] = TEACHERS[teacher][1]  # not a path of this machine
    cost = report["sections"]["cost"]
    return {"chosen": chosen, "cost": cost, "scores": scores_in(report), "text": run.text()}


def scores_in(report: Any) -> dict[str, Any]:
    """Model -> value, low and high of the share of neighbours found, from a report."""
    found = {}
    for row in report["sections"]["scores"]["models"]:
        score = row["averages"].get("neighbours")
        if score is not None and row["role"] in MODELS:
            found[row["role"]] = [score["value"], score["low"], score["high"]]
    return found


def main() -> None:
    parser = arguments(__file__, device=False)
    parser.add_argument("--models", type=Path, help="folder of all-mpnet-base-v2")
    parser.add_argument(
        "--rows", nargs="*", default=[*(f"{t}/{c}" for t in TEACHERS for c in CORPORA), *(f"minilm/{c}" for c in FEW)]
    )
    parser.add_argument("--lr", type=float, help="a learning rate in place of the default's; the row says so")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    options: argparse.Namespace = parser.parse_args()
    results = Results(EXPERIMENT)
    if finished(options, results, write_page):
        return
    for seed in options.seeds:
        for row in options.rows:
            teacher, corpus = row.split("/")
            made = functools.partial(run_row, teacher, corpus, seed, options.models, options.lr)
            rate = {} if options.lr is None else {"lr": options.lr}
            name = f"{row} at {options.lr:g}-{seed}" if rate else f"{row}-{seed}"
            results.run(name, made, teacher=teacher, corpus=corpus, seed=seed, **rate)
    print(write_page(results.rows(), WORK / EXPERIMENT))


if __name__ == "__main__":
    main()
