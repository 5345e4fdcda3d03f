"""`embedder-bpe`: the shared `student-bpe` after the shared sentences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.embedder.table import write_page
from experiments.harness.records import WORK, Results
from experiments.harness.script import arguments, finished, settings_of, shared
from experiments.harness.training import student_of

from distilvec.flow.demo import demo_teacher
from distilvec.judging import CachedEncoder, judge, talas_tasks
from distilvec.recipe import Recipe
from distilvec.report import Record
from distilvec.teachers import load_teacher
from distilvec.training import bfloat16_pays

EXPERIMENT = "embedder"
FOLDER = WORK / EXPERIMENT
DTYPE = "bfloat16" if bfloat16_pays() else "float32"


def recipe() -> Recipe:
    """The run."""
    return Recipe.build(
        {
            "corpus": {"path": str(shared() / "data" / "sentences.jsonl.gz"), "domain": "source", "holdout": 0.01},
            "teachers": [{"name": "minilm", "model": demo_teacher(), "dtype": DTYPE}],
            "student": {"model": str(shared() / "models" / "student-bpe"), "max_length": 128, "dropout": 0.0},
            "method": {"name": "cosine"},
            "optimizer": {"lr": 1e-3, "heads_lr": 1e-3},
            "training": {
                "epochs": 4,
                "batch_size": 64,
                "seed": 0,
                "adam_beta2": 0.98,
                "lr_scheduler_type": "linear",
                "warmup_steps": 0.02,
                "save_every": 1000,
                "bf16": bfloat16_pays(),
            },
            "judging": {"tasks": [], "agreement": True, "speed": False},
            "cache": str(FOLDER),
            "output": str(FOLDER / "run"),
        }
    )


def embedder() -> Path:
    """Its folder; made, or gone on with, where it is not there."""
    return student_of(recipe())


def scored() -> dict[str, Any]:
    """Scores of teacher and both students, and what of the teacher is in the trained one."""
    student = embedder()
    record = Record.load(student.parent)
    models = {"teacher": demo_teacher(), "before": shared() / "models" / "student-bpe", "after": student}
    encoders = {name: CachedEncoder(load_teacher(model=folder, dtype=DTYPE)) for name, folder in models.items()}
    judged = judge(encoders, talas_tasks(shared() / "data", max_train=5000))
    return {
        "tasks": {name: {task: s.value for task, s in scores.items()} for name, scores in judged.scores.items()},
        "averages": {name: judged.averages(name) for name in models},
        "agreement": record["agreement"].values,
        "steps": record["cost"].steps,
        "training_seconds": record["cost"].training_seconds,
    }


def main() -> None:
    options = arguments(__file__, device=False).parse_args()
    results = Results(EXPERIMENT)
    if finished(options, results, write_page):
        return
    results.run("embedder", scored, recipe=settings_of(recipe()))
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
