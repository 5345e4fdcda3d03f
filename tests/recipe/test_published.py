"""Every recipe of a paper, resolved, has the settings that the paper or its code publishes, and ends in its tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.recipe.published import PUBLISHED

from distilvec.judging import load_tasks
from distilvec.judging.perceptron import PerceptronTask
from distilvec.recipe import Recipe, given

FOLDER = Path(__file__).resolve().parents[2] / "src/distilvec/recipe/packaged"
RECIPES = sorted(FOLDER.glob("paper-*.yaml"))


def _resolved(file: Path, folder: Path) -> dict[str, Any]:
    """What the trainer, the student and the method get of a recipe."""
    recipe = Recipe.load(file)
    training = recipe.training
    options = recipe.method.build().options
    sharpness, schedule = recipe.optimizer.sharpness, training.lr_scheduler_kwargs
    student = given(recipe.student, "student")
    return {
        "schedule": training.lr_scheduler_type,
        "floor": schedule.get("min_lr"),
        "warmup": training.warmup_steps,
        "clip": training.max_grad_norm,
        "lr": recipe.optimizer.lr,
        "heads_lr": recipe.optimizer.heads_lr,
        "weight_decay": recipe.optimizer.weight_decay,
        "adam_beta2": training.adam_beta2,
        "batch": training.batch_size * training.gradient_accumulation_steps,
        "epochs": training.epochs,
        "max_steps": training.max_steps,
        "pooling": student.pooling,
        "max_length": student.max_length,
        "aggregation": student.aggregation,
        "task_dropout": None if recipe.task is None else recipe.task.dropout,
        "sharpness": None if sharpness is None else sharpness.kind,
        "rho": None if sharpness is None else sharpness.rho,
        "eta": None if sharpness is None else sharpness.eta,
        **{f"options.{key}": value for key, value in {**options.model_dump(), **vars(options.fixed)}.items()},
    }


@pytest.mark.parametrize("name", sorted(file.stem for file in RECIPES))
def test_a_papers_recipe_has_its_published_settings(name: str, tmp_path: Path) -> None:
    assert name in PUBLISHED, f"add what the paper publishes of {name} to tests/recipe/published.py"
    published = PUBLISHED[name]
    found = _resolved(FOLDER / f"{name}.yaml", tmp_path)
    assert {key: found[key] for key in published} == pytest.approx(published)
    # What a recipe leaves to the defaults is not published: it says of warm-up and clipping what is meant.
    assert {"schedule", "warmup", "clip", "lr", "batch"} <= set(published)
    written = Recipe.load(FOLDER / f"{name}.yaml").training.model_fields_set
    assert {"warmup_steps", "max_grad_norm"} <= written


def test_the_table_of_published_settings_names_recipes_that_exist() -> None:
    assert set(PUBLISHED) == {file.stem for file in RECIPES}


#: Recipe -> kind of task -> how many its paper's tables have (CelebA and Tox21, which have many labels, are left out).
TABLES = {
    "paper-sba": {"mteb": 3},
    "paper-gaussian-text": {"mteb": 12 + 7 + 10},
    "paper-gaussian-images": {"perceptron": 7},
    "paper-gaussian-molecules": {"perceptron": 10 + 21},
}


@pytest.mark.parametrize("name", TABLES)
def test_a_run_ends_in_the_papers_table(name: str, tmp_path: Path) -> None:
    specs = Recipe.load(FOLDER / f"{name}.yaml").judging.tasks
    if "mteb" in TABLES[name]:
        pytest.importorskip("mteb")
    _write_labelled(specs, tmp_path)
    tasks = load_tasks(specs, tmp_path)
    assert Counter("perceptron" if isinstance(task, PerceptronTask) else task.kind for task in tasks) == TABLES[name]
    targets = Counter(task.target for task in tasks if isinstance(task, PerceptronTask))
    assert targets == {
        "paper-gaussian-images": {"classification": 7},
        "paper-gaussian-molecules": {"regression": 10, "binary": 21},
    }.get(name, {})
    for task in tasks:
        if isinstance(task, PerceptronTask):
            logarithm = task.name in ("half_life", "clearance_hepatocyte", "clearance_microsome")
            assert len(task.seeds) == 5 and task.log == logarithm


def _write_labelled(specs: list[Any], folder: Path) -> None:
    """Files like those that the probes of a recipe read: images in a folder per class, or molecules in a table."""
    for spec in specs:
        for file in () if isinstance(spec, str) else {spec["train"], spec.get("test", spec["train"])}:
            if file.endswith(".csv"):
                wide = spec["target"] == "regression"
                rows = [f"{'C' * n}O,{n if wide else n % 2}\n" for n in range(1, 31)]
                (folder / file).parent.mkdir(exist_ok=True)
                (folder / file).write_text("Drug,Y\n" + "".join(rows))
                continue
            for kind in ("a", "b"):
                (folder / file / kind).mkdir(parents=True)
                for number in range(8):
                    Image.new("L", (8, 8), 16 * number + ord(kind)).save(folder / file / kind / f"{number}.png")
