"""Molecules at length: likelihood, squared error and cosine to six teachers, each with a rate of its own.

    python experiments/molecules_long.py --tune           # rates, at full length: three hours of a core
    python experiments/molecules_long.py --seeds 0 1 2
    python experiments/molecules_long.py --seeds 0 1 2 --beside 16    # with an accelerator
    python experiments/molecules_long.py --table

The students of molecules.py read 20,000 molecules six times, at one rate, and two of their teachers are bits and
unbounded descriptors, for which a likelihood rewards a tiny variance without end. Here: all 40,000 screening compounds,
20,000 steps of 64 at a constant rate, and six teachers of dense vectors: the five networks, and RDKit's descriptors
(arcsinh of them, standardised, at most three deviations from the mean). Student: GINE, 5 layers of 128, from random
weights. In the rows of the paper's form kernels have three hidden layers of 256 from random weights, teachers are
weighted by their coordinates, and neither gradients nor targets are clipped.

Of the molecules of the task files a fifth is tested, the same for all columns; a probe (that of molecules.py) learns
from the others. Each row has its own rate: the best of three, or of more where the best would be at an end, at full
length, by probes that are tested on a fifth of the others and learn from the rest. Besides, the likelihood of each of
the two teachers that are best by these probes, and of both, at the rate of all. Every row is kept as soon as it is
there, and trainings that were interrupted go on.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from common import WORK, Results, arguments, finished, shared
from molecule_rows import NETWORKS, SETS, Column, bounded_descriptors, pool_file, read_columns
from molecules_long_table import LIKE, TEACHERS, chosen, mean_of_files, write_page
from rates import RatedRows, beside, make_rows, recipe_in, trained

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


@dataclass(frozen=True)
class Row:
    """A method with its options.

    Attributes:
        only: those of the teachers that teach; all where empty.
    """

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    only: tuple[str, ...] = ()


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
    return Row(row.method, row.options, tuple(only.split("+"))) if only else row


def teacher(name: str) -> dict[str, Any]:
    if name in NETWORKS:
        return {"name": name, "model": str(shared() / "models" / f"{NETWORKS[name]}.safetensors")}
    return {"name": name, "call": bounded_descriptors, "batch_size": 512, "storage": "float32"}


def recipe(name: str, lr: float, seed: int) -> Recipe:
    """The run of a row; its folder is named after all that it is made of."""
    row = row_of(name)
    made: dict[str, Any] = {
        "corpus": {"path": str(pool_file()), "modality": "molecule", "holdout": HOLDOUT},
        "teachers": [teacher(each) for each in TEACHERS if each in (row.only or TEACHERS)],
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
    student = trained(recipe(name, lr, 0))
    found = scores(CachedEncoder(load_teacher(model=student)), "validation")
    return {"row": name, "lr": lr, "validation": mean_of_files(found), "tasks": found}


def judged_run(name: str, lr: float, seed: int) -> dict[str, Any]:
    """A trained student on the tested molecules, and what of its teachers is in it."""
    student = trained(recipe(name, lr, seed))
    record = Record.load(student.parent)
    cost = record["cost"]
    assert cost is not None
    return {
        "row": name,
        "lr": lr,
        "seed": seed,
        "steps": cost.steps,
        "training_seconds": cost.training_seconds,
        "held_out": record["reproduced"].terms,
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
    parser = arguments(__doc__, device=False)
    parser.add_argument("--tune", action="store_true", help="only choose rates")
    parser.add_argument("--beside", type=int, default=1, help="trainings beside each other")
    parser.add_argument("--rows", help="names, separated by semicolons; else those above")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
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
