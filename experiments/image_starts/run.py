"""Pretrained image students: likelihood, squared error and cosine to four teachers, each with a rate of its own."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.rates import RatedRows, Row, beside, make_rows, rated_arguments, recipe_in, told
from experiments.harness.records import WORK, Results
from experiments.harness.script import finished, shared
from experiments.harness.training import student_of
from experiments.image_starts.table import LIKE, write_page
from experiments.images.data import SETS, data, read_tasks, write_pool
from experiments.images.run import FUNCTIONS, PROBE_SEEDS
from PIL import Image

from distilvec.flow.lessons import teach
from distilvec.flow.settle import prepare
from distilvec.judging import CachedEncoder
from distilvec.judging.perceptron import IMAGES, PerceptronTask
from distilvec.kinds.image.images import data_uri
from distilvec.recipe import Recipe
from distilvec.teachers import load_teacher

EXPERIMENT = "image_starts"
FOLDER = WORK / EXPERIMENT
TEACHERS = ("resnet56", "mlperf", "imagenet", "birds")
EPOCHS, BATCH, HOLDOUT = 50, 128, 0.05
#: That every row is tried at.
RATES = (1e-4, 3e-4, 1e-3, 3e-3)


#: What the losses share in the paper's form.
ANGLES = {"width": 256, "init": "random"}
PAPER = {**ANGLES, "clip": None}
ROWS: dict[str, Row] = {
    "likelihood": Row("gaussian", {**PAPER, "beta_nll": 0}),
    "squared error": Row("multi_mse", PAPER),
    "cosine": Row("multi_cosine", ANGLES),
    "likelihood, ours": Row("gaussian"),
    **{f"likelihood from {name}": Row("gaussian", {**PAPER, "beta_nll": 0}, only=name) for name in TEACHERS},
}


def pool() -> Path:
    """uint8 images [n, 32, 32, 3]: `images`'s corpus, and the training images of the two other sets."""
    file = FOLDER / "pool.npz"
    if not file.exists():
        first, _ = write_pool(FOLDER / "cifar.npz", None)
        parts = [np.load(first)["image"]]
        for name, _ in (SETS["Fashion-MNIST"], SETS["MNIST"]):
            parts.append(np.stack([_as_cifar(image) for image in np.load(data(name))["train_images"]]))
        partial = file.with_suffix(".partial.npz")
        np.savez(partial, image=np.concatenate(parts))
        partial.replace(file)
    return file


def _as_cifar(image: np.ndarray) -> np.ndarray:
    """uint8 [32, 32, 3] of an image of any size with one channel or three."""
    return np.asarray(Image.fromarray(image).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR))


def start() -> Path:
    """The student before."""
    return shared() / "models" / "cifar10_resnet20.safetensors"


def recipe(name: str, lr: float, seed: int) -> Recipe:
    """The run of a row; its folder is named after all that it is made of."""
    row = ROWS[name]
    chosen = [teacher for teacher in TEACHERS if row.taught_by(teacher)]
    models = shared() / "models"
    made: dict[str, Any] = {
        "corpus": {"path": str(pool()), "modality": "image", "holdout": HOLDOUT},
        "teachers": [
            {
                "name": each,
                **(
                    {"call": FUNCTIONS[each][0]}
                    if each in FUNCTIONS
                    else {"model": str(models / f"cifar10_{each}.safetensors")}
                ),
            }
            for each in chosen
        ],
        "student": {"model": str(start())},
        "method": {"name": row.method, **row.options},
        "optimizer": {"lr": lr, "heads_lr": lr, "weight_decay": 0.0},
        "training": {
            "epochs": EPOCHS,
            "batch_size": BATCH,
            "seed": seed,
            "lr_scheduler_type": "linear",
            "max_grad_norm": 0.0,
            "save_every": 1000,
            "bf16": False,  # all rows alike, whatever machine they are made on
        },
        "judging": {"tasks": [], "agreement": False, "speed": False},
        "cache": str(FOLDER),
    }
    return recipe_in(FOLDER, made)


@functools.cache
def validation() -> list[PerceptronTask]:
    """A fifth of each set's training images, in probes that learn from the others."""
    tasks = []
    for name, (file, epochs) in SETS.items():
        archive = np.load(data(file))
        images, labels = archive["train_images"], archive["train_labels"]
        order = np.random.default_rng(0).permutation(len(images))
        fifth = len(order) // 5
        rest, held = (
            ([data_uri(image) for image in images[rows]], labels[rows].tolist())
            for rows in (order[fifth:], order[:fifth])
        )
        tasks.append(PerceptronTask(name, rest, held, seeds=(0, 1), settings=replace(IMAGES, epochs=epochs)))
    return tasks


def scores(model: Path, tasks: list[PerceptronTask]) -> dict[str, dict[str, Any]]:
    encode = CachedEncoder(load_teacher(model=model, modality="image"))
    found = {task.name: task.score(encode) for task in tasks}
    return {name: {"value": each.value, "interval": each.interval} for name, each in found.items()}


def validated(name: str, lr: float) -> dict[str, Any]:
    """Accuracy on validation images, at full length."""
    found = scores(student_of(recipe(name, lr, 0)), validation())
    return {
        "row": name,
        "lr": lr,
        "validation": float(np.mean([each["value"] for each in found.values()])),
        "tasks": found,
    }


def judged_run(name: str, lr: float, seed: int) -> dict[str, Any]:
    """A trained student on the test images, and what of its teachers is in it."""
    student = student_of(recipe(name, lr, seed))
    return {
        **told(student, name, lr, seed),
        "tasks": scores(student, read_tasks(None, PROBE_SEEDS)),
    }


def judged_start() -> dict[str, Any]:
    """The student before, on test and validation images."""
    return {"tasks": scores(start(), read_tasks(None, PROBE_SEEDS)), "validation": scores(start(), validation())}


def rated_rows() -> RatedRows:
    """All rows."""
    return RatedRows(
        Results(EXPERIMENT),
        recipe=recipe,
        validated=validated,
        judged=judged_run,
        like=lambda name: LIKE if name.startswith(f"{LIKE} from") else name,
        grid=RATES,
    )


def taught() -> None:
    teach(prepare(recipe(LIKE, RATES[0], 0)))


def main() -> None:
    parser = rated_arguments(__file__, ";".join(ROWS))
    options = parser.parse_args()
    results = Results(EXPERIMENT)
    if finished(options, results, write_page):
        return
    rated, names = rated_rows(), options.rows.split(";")
    if options.beside > 1:
        beside(rated_rows, names, options.seeds, tune=options.tune, processes=options.beside, before=[taught])
    results.run("start-0", judged_start, model="cifar10_resnet20")
    make_rows(rated, names, options.seeds, write_page, tune=options.tune)


if __name__ == "__main__":
    main()
