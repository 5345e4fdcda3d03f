"""Molecules at length: likelihood, squared error and cosine to six teachers, each with a rate of its own."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from experiments.harness.rates import RatedRows, Row, beside, make_rows, rated_arguments, recipe_in, told
from experiments.harness.records import WORK, Results
from experiments.harness.script import finished, shared
from experiments.harness.training import student_of
from experiments.molecules.rows import NETWORKS, SETS, Column, bounded_descriptors, pool_file, read_columns
from experiments.molecules_long.table import LIKE, TEACHERS, chosen, mean_of_files, write_page

from distilvec.errors import DataError
from distilvec.flow.lessons import teach
from distilvec.flow.settle import prepare
from distilvec.judging import CachedEncoder
from distilvec.judging.perceptron import PerceptronTask
from distilvec.recipe import CallSection, Recipe
from distilvec.report import Record
from distilvec.teachers import Reading, load_teacher
from distilvec.teachers.table import open_teacher

EXPERIMENT = "molecules_long"
FOLDER = WORK / EXPERIMENT
STEPS, BATCH, HOLDOUT = 20_000, 64, 0.05
#: That every row is tried at.
RATES = (3e-4, 1e-3, 3e-3)


#: What the losses share in the paper's form.
ANGLES = {"width": 256, "init": "random"}
PAPER = {**ANGLES, "teacher_weight": "sum", "clip": None}
ROWS: dict[str, Row] = {
    LIKE: Row("gaussian", {**PAPER, "beta_nll": 0}),
    "squared error": Row("multi_mse", PAPER),
    "cosine": Row("multi_cosine", ANGLES),
}


def row_of(name: str) -> Row:
    """One of ROWS, or "likelihood from A" and "likelihood from A+B"."""
    like, _, only = name.partition(" from ")
    row = ROWS[like]
    return replace(row, only=only) if only else row


def teacher(name: str) -> dict[str, Any]:
    if name in NETWORKS:
        return {"name": name, "model": str(shared() / "models" / f"{NETWORKS[name]}.safetensors")}
    return {"name": name, "call": bounded_descriptors, "batch_size": 512, "storage": "float32"}


def recipe(name: str, lr: float, seed: int) -> Recipe:
    """The run of a row; its folder is named after all that it is made of."""
    row = row_of(name)
    made: dict[str, Any] = {
        "corpus": {"path": str(pool_file()), "modality": "molecule", "holdout": HOLDOUT},
        "teachers": [teacher(each) for each in TEACHERS if row.taught_by(each)],
        "student": {"molecule": {"kind": "gine", "layers": 5, "width": 128}},
        "method": {"name": row.method, "depth": 3, **row.options},
        "optimizer": {"lr": lr, "heads_lr": lr, "weight_decay": 0.0},
        "training": {
            "max_steps": STEPS,
            "batch_size": BATCH,
            "seed": seed,
            "lr_scheduler_type": "constant",
            "warmup_steps": 0,
            "max_grad_norm": 0.0,
            "save_every": 1000,
            "evaluate_every": 4000,
            "bf16": False,  # all rows alike, whatever machine they are made on
        },
        "judging": {"tasks": [], "agreement": False, "speed": False},
        "cache": str(FOLDER),
    }
    return recipe_in(FOLDER, made)


@functools.cache
def parts() -> dict[str, int]:
    """Molecule -> fifth, 0 to 4; the first is tested, the second is for validation."""
    smiles = sorted({each for column in columns() for each in column.smiles})
    return dict(zip(smiles, (np.random.default_rng(0).permutation(len(smiles)) % 5).tolist(), strict=True))


@functools.cache
def columns() -> list[Column]:
    return read_columns(shared() / "data" / "molecules", SETS)


@functools.cache
def tasks(which: Literal["test", "validation"]) -> list[PerceptronTask]:
    """A probe for each column; those whose tested molecules are all of one class are left out."""
    made = []
    for column in columns():
        fifths = [parts()[each] for each in column.smiles]

        def chosen(*numbers: int, column: Column = column, fifths: list[int] = fifths) -> tuple[list[str], list[Any]]:
            rows = [row for row, fifth in enumerate(fifths) if fifth in numbers]
            return [column.smiles[row] for row in rows], [column.answers[row] for row in rows]

        learnt, tested = (chosen(1, 2, 3, 4), chosen(0)) if which == "test" else (chosen(2, 3, 4), chosen(1))
        seeds = (0, 1, 2, 3, 4) if which == "test" else (0, 1)
        settings = column.settings(len(learnt[0]))
        try:
            task = PerceptronTask(column.task, learnt, tested, target=column.target, seeds=seeds, settings=settings)
        except DataError:
            continue
        made.append(task)
    return made


def scores(encode: CachedEncoder, which: Literal["test", "validation"]) -> dict[str, float]:
    """Column -> area under the ROC curve, or R2 of numbers."""
    return {task.name: task.score(encode).value for task in tasks(which)}


def validated(name: str, lr: float) -> dict[str, Any]:
    """On validation molecules, at full length."""
    student = student_of(recipe(name, lr, 0))
    found = scores(CachedEncoder(load_teacher(model=student)), "validation")
    return {"row": name, "lr": lr, "validation": mean_of_files(found), "tasks": found}


def judged_run(name: str, lr: float, seed: int) -> dict[str, Any]:
    """A trained student on the tested molecules, and what of its teachers is in it."""
    student = student_of(recipe(name, lr, seed))
    record = Record.load(student.parent)
    return {
        **told(student, name, lr, seed),
        "curve": [[row["step"], round(row["loss"], 5)] for row in record["training"].log if "loss" in row][::10],
        "tasks": scores(CachedEncoder(load_teacher(model=student)), "test"),
    }


def judged_teacher(name: str) -> dict[str, Any]:
    made = recipe(f"{LIKE} from {name}", RATES[0], 0).teachers[0]
    encode = CachedEncoder(made.call if isinstance(made, CallSection) else open_teacher(made, Reading()))
    return {"tasks": scores(encode, "test"), "validation": mean_of_files(scores(encode, "validation"))}


def judged_before() -> dict[str, Any]:
    """The student before."""
    folder = FOLDER / "before"
    prepare(recipe(LIKE, RATES[0], 0)).start.open().save_pretrained(str(folder))
    return {"tasks": scores(CachedEncoder(load_teacher(model=folder)), "test")}


def rated_rows() -> RatedRows:
    """All rows."""
    return RatedRows(
        Results(EXPERIMENT),
        recipe=recipe,
        validated=validated,
        judged=judged_run,
        like=lambda name: name.partition(" from ")[0],
        grid=RATES,
    )


def taught() -> None:
    teach(prepare(recipe(LIKE, RATES[0], 0)))


def main() -> None:
    parser = rated_arguments(__file__, None)
    options = parser.parse_args()
    results = Results(EXPERIMENT)
    if finished(options, results, write_page):
        return
    taught()
    for name in TEACHERS:
        results.run(f"teachers/{name}", functools.partial(judged_teacher, name), model=name)
    results.run("before-0", judged_before, model="before")
    rated = rated_rows()
    names = options.rows.split(";") if options.rows else [*ROWS, *chosen(results.rows())]
    if options.beside > 1:
        beside(rated_rows, names, options.seeds, tune=options.tune, processes=options.beside)
    make_rows(rated, names, options.seeds, write_page, tune=options.tune)


if __name__ == "__main__":
    main()
