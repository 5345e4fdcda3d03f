"""What `distilvec plan` predicts, against what training then reached."""

from __future__ import annotations

import functools
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from experiments.choosing.table import write_page
from experiments.harness import training as opened
from experiments.harness.records import WORK, Results
from experiments.harness.script import arguments, finished, settings_of, shared

from distilvec.choosing.choose import choose
from distilvec.flow.demo import demo_teacher
from distilvec.judging import CachedEncoder, judge, talas_tasks
from distilvec.recipe import Recipe
from distilvec.training import bfloat16_pays

EXPERIMENT = "choosing"
SETS = ("emotion", "wic", "stsb", "banking77", "mrpc", "scitail", "sick", "sts12")
LAYERS, PIECES = (1, 2, 3, 4), (5000, 30522)
PROBE_ROWS = 4000
LR, STATIC_LR = 3e-4, 3e-3  # what docs/static.md advises for tables


def recipe(student: dict[str, Any], output: Path, device: str | None) -> Recipe:
    place = {"bf16": bfloat16_pays(), **({"use_cpu": True} if device == "cpu" else {})}
    rate = STATIC_LR if student.get("static") else LR
    return Recipe.build(
        {
            "corpus": {"path": str(shared() / "data" / "talas_corpus.jsonl.gz"), "holdout": 0.04},
            "teachers": [{"name": "minilm", "model": demo_teacher()}],
            "student": student,
            "method": {"name": "cosine"},
            "optimizer": {"lr": rate, "heads_lr": rate},
            "training": {"epochs": 2, "batch_size": 32, "seed": 0, "save_every": 100_000, **place},
            "judging": {"tasks": [], "speed": False},
            "output": str(output),
            "cache": str(WORK / "choosing"),
        }
    )


def sets() -> list[Any]:
    return talas_tasks(shared() / "data", names=SETS, max_train=PROBE_ROWS)


def predicted() -> dict[str, Any]:
    """What `plan` measures and predicts, with the tasks of the page in place of a recipe's own."""
    open_recipe = recipe({"auto": {}}, WORK / "choosing" / "plan", None)
    open_recipe.judging.tasks = [{"name": task, **_files(task)} for task in SETS]
    return choose(open_recipe, layers=LAYERS, vocabularies=PIECES).to_dict()


def _files(name: str) -> dict[str, Any]:
    """The description of one of TALAS's sets."""
    from distilvec.judging.talas_sets import TALAS_SETS

    data = shared() / "data"
    kind = TALAS_SETS[name]
    files = {split: str(data / f"{name}.{split}.jsonl.gz") for split in ("train", "test")}
    probed = {"train": files["train"], "max_train": PROBE_ROWS}  # only a classification has rows to train a probe on
    return {**kind, "test": files["test"], **(probed if kind["kind"] == "classification" else {})}


def trained(section: dict[str, Any], name: str, device: str | None) -> dict[str, Any]:
    """The candidate after training."""
    made = recipe(section, WORK / "choosing" / "runs" / name, device)
    shutil.rmtree(made.output, ignore_errors=True)
    student, fitted, _ = opened.trained(opened.settled(made))
    shutil.rmtree(made.output, ignore_errors=True)
    scores = judge({"student": CachedEncoder(student)}, sets()).scores["student"]
    return {
        "average": float(np.mean([score.value for score in scores.values()])),
        "tasks": {task: score.value for task, score in scores.items()},
        "steps": fitted.steps,
        "training_seconds": round(fitted.seconds, 1),
    }


def teacher() -> dict[str, Any]:
    from distilvec.teachers import load_teacher

    scores = judge({"teacher": CachedEncoder(load_teacher(model=demo_teacher()))}, sets()).scores["teacher"]
    return {"average": float(np.mean([score.value for score in scores.values()]))}


def slug(name: str) -> str:
    """A name as that of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def main() -> None:
    parser = arguments(__file__)
    options = parser.parse_args()
    results = Results(EXPERIMENT, {"sets": SETS, "probe_rows": PROBE_ROWS, "bf16": bfloat16_pays()})
    if finished(options, results, write_page):
        return
    plan = results.run("plan", predicted, layers=LAYERS, vocabularies=PIECES)
    results.run("teacher", teacher)
    for row in plan["rows"]:
        make = functools.partial(trained, row["section"], slug(row["name"]), options.device)
        made = recipe(row["section"], Path("out"), options.device)
        results.run(row["name"], make, **settings_of(made))
        write_page(results.rows(), results.home)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
