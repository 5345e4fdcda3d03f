"""Teachers of similar strength, one student: likelihood, squared error and cosine, the paper's form and ours."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.embedder.run import DTYPE, embedder
from experiments.embedder.run import FOLDER as STORES
from experiments.harness.rates import RatedRows, Row, beside, make_rows, rated_arguments, recipe_in, told
from experiments.harness.records import WORK, Results
from experiments.harness.script import finished, shared
from experiments.harness.texts import shared_rows, write_rows
from experiments.harness.training import student_of
from experiments.similar_teachers.table import NEIGHBOURS, TEACHERS, VARIED, write_page

from distilvec.corpus import read_corpus
from distilvec.flow.demo import demo_teacher
from distilvec.flow.lessons import teach
from distilvec.flow.prepare import open_corpus
from distilvec.flow.run import run
from distilvec.flow.settle import prepare
from distilvec.judging import CachedEncoder, JudgingTask, judge, load_task, talas_tasks
from distilvec.recipe import Recipe
from distilvec.report import Record
from distilvec.teachers import load_teacher
from distilvec.training import bfloat16_pays

EXPERIMENT = "similar_teachers"
FOLDER = WORK / EXPERIMENT
STEPS, BATCH, HOLDOUT = 20_000, 32, 0.01
VALIDATION = ("emotion", "tweeteval_sentiment")
NLI = ("mnli", "snli")
STUDENTS = ("static", "embedder")
#: That every row is tried at.
RATES = (3e-4, 1e-3, 3e-3)


#: What the three losses share in the paper's form: kernels, weights of the teachers, nothing clipped.
PAPER = {"width_factor": 1.4, "init": "random", "teacher_weight": "sum", "clip": None}
STANDARDISED, RAW = PAPER | {"vectors": "standardised"}, PAPER | {"vectors": "raw"}
ANGLES = {"width_factor": 1.4, "init": "random"}
ROWS: dict[str, Row] = {
    "likelihood, raw": Row("gaussian", {**RAW, "beta_nll": 0}),
    "squared error, raw": Row("multi_mse", RAW),
    "likelihood, standardised": Row("gaussian", {**STANDARDISED, "beta_nll": 0}),
    "squared error, standardised": Row("multi_mse", STANDARDISED),
    "cosine, random start": Row("multi_cosine", ANGLES),
    "likelihood, ours": Row("gaussian"),
    "cosine, ours": Row("multi_cosine"),
}
ROWS |= {f"{row}, from {name}": replace(ROWS[row], only=name, like=row) for row in VARIED for name in TEACHERS}


def teachers() -> dict[str, str]:
    """Name -> folder; made where they are not there."""
    return {"minilm": demo_teacher(), "pairs": tuned("pairs"), "nli": tuned("nli"), "wide": wide()}


def tuned(kind: str) -> str:
    """The folder of MiniLM after pairs (every second of them) or triplets of NLI."""
    columns = ["anchor", "positive", "negative"] if kind == "nli" else ["anchor", "positive"]
    file = FOLDER / f"{kind}.jsonl"
    made = Recipe.build(
        {
            "corpus": {"path": str(file), "text": columns, "holdout": 0.02},
            "student": {"model": demo_teacher(), "max_length": 128},
            "method": {"name": "mnrl"},
            "optimizer": {"lr": 2e-5},
            "training": {
                "epochs": 1 if kind == "pairs" else 2,
                "batch_size": 64,
                "seed": 0,
                "lr_scheduler_type": "linear",
                "warmup_steps": 0.1,
                "save_every": 200,
                "bf16": bfloat16_pays(),
            },
            "judging": {"tasks": [], "agreement": False, "speed": False},
            "cache": str(FOLDER),
            "output": str(FOLDER / f"teacher-{kind}"),
        }
    )
    if not (Path(made.output) / "report.json").exists():
        pairs = list(shared_rows("pairs"))
        if kind == "nli":
            chosen = [row for row in pairs if row["source"] in NLI and row.get("negative")]
        else:
            chosen = [row for row in pairs if row["source"] not in NLI][::2]
        write_rows(file, ({key: row[key] for key in columns} for row in chosen))
        run(made, resume=True)
    return str(Path(made.output) / "student")


def wide() -> str:
    """The folder of MiniLM with the first token's state beside the mean of all, 768 numbers of length 1."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    folder = FOLDER / "teacher-wide"
    if not (folder / "modules.json").exists():
        model = SentenceTransformer(demo_teacher(), device="cpu")
        both = Pooling(384, pooling_mode=("cls", "mean"))
        SentenceTransformer(modules=[model[0], both, Normalize()], device="cpu").save_pretrained(str(folder))
    return str(folder)


def student_section(student: str) -> dict[str, Any]:
    """One of STUDENTS."""
    if student == "static":
        return {"static": {"of": demo_teacher(), "dimensions": 256, "vocabulary": 8192}}
    return {"model": str(embedder()), "max_length": 128, "dropout": 0.0}


def row_of(name: str) -> tuple[str, Row]:
    """The student and the row of "STUDENT/ROW"."""
    student, _, row = name.partition("/")
    return student, ROWS[row]


def recipe(name: str, lr: float, seed: int) -> Recipe:
    """The run of a row; its folder is named after all that it is made of."""
    (student, row), there = row_of(name), teachers()
    made: dict[str, Any] = {
        "corpus": {"path": str(shared() / "data" / "sentences.jsonl.gz"), "domain": "source", "holdout": HOLDOUT},
        "teachers": [
            {"name": each, "model": folder, "dtype": DTYPE} for each, folder in there.items() if row.taught_by(each)
        ],
        "student": student_section(student),
        "method": {"name": row.method, **row.options},
        "optimizer": {"lr": lr, "heads_lr": lr},
        "training": {
            "max_steps": STEPS,
            "batch_size": BATCH,
            "seed": seed,
            "lr_scheduler_type": "linear",
            "warmup_steps": 0.02,
            "max_grad_norm": 0.0,
            "save_every": 1000,
            "evaluate_every": 4000,
            "bf16": bfloat16_pays(),
        },
        "judging": {"tasks": [], "agreement": True, "speed": False},
        "cache": str(STORES),  # MiniLM has taught the same corpus there
    }
    return recipe_in(FOLDER, made)


def encoder(folder: str | Path) -> CachedEncoder:
    return CachedEncoder(load_teacher(model=folder, dtype=DTYPE))


def tests() -> list[JudgingTask]:
    """The six sets."""
    data = shared() / "data"
    found = talas_tasks(data, max_train=5000, names=["banking77", "emotion", "tweeteval_sentiment"])
    for name, most in (("sst2", 5000), ("imdb", 2000), ("ag_news", 5000)):
        found.append(load_task(classification(name, "test", most), data))
    return found


def classification(name: str, split: str, most: int) -> dict[str, Any]:
    files = {"train": f"{name}.train.jsonl.gz", "test": f"{name}.{split}.jsonl.gz"}
    return {"name": name, "kind": "classification", "max_train": most, **files}


def validated(name: str, lr: float) -> dict[str, Any]:
    """The average over validation splits, at full length."""
    student = student_of(recipe(name, lr, 0))
    data = shared() / "data"
    tasks = talas_tasks(data, max_train=4000, split="validation", names=VALIDATION)
    tasks.append(load_task(classification("sst2", "validation", 4000), data))
    judged = judge({"student": encoder(student)}, tasks)
    scores = {task: score.value for task, score in judged.scores["student"].items()}
    return {"row": name, "lr": lr, "validation": judged.averages("student")["all"], "tasks": scores}


def judged_model(folder: str | Path) -> dict[str, Any]:
    """Scores on the six sets, also without the rows that are in the corpus."""
    tasks = tests()
    judged = judge({"model": encoder(folder)}, tasks)
    seen = set(read_corpus(shared() / "data" / "sentences.jsonl.gz", FOLDER / "corpus", domain="source").texts())
    clean = judged.without(tasks, seen)
    return {
        "tasks": {name: {"value": s.value, "interval": s.interval} for name, s in judged.scores["model"].items()},
        "clean": {name: s.value for name, s in clean.scores["model"].items()},
        "averages": judged.averages("model"),
        "clean_averages": clean.averages("model"),
    }


def judged_run(name: str, lr: float, seed: int) -> dict[str, Any]:
    """A trained student on the six sets, and what of its teachers is in it."""
    made = recipe(name, lr, seed)
    student = student_of(made)
    record = Record.load(student.parent)
    return {
        **told(student, name, lr, seed),
        "log": [row for row in record["training"].log if NEIGHBOURS in row],
        **judged_model(student),
    }


def references(results: Results) -> None:
    """The teachers."""
    for name, folder in teachers().items():
        results.run(f"references/{name}", functools.partial(judged_model, folder), model=name)


def judged_before(student: str) -> dict[str, Any]:
    """The student as every row finds it."""
    folder = FOLDER / f"before-{student}"
    prepare(recipe(f"{student}/likelihood, ours", RATES[0], 0)).start.open().save_pretrained(str(folder))
    return judged_model(folder)


def rated_rows(student: str) -> RatedRows:
    """The rows of a student."""
    return RatedRows(
        Results(EXPERIMENT),
        recipe=recipe,
        validated=validated,
        judged=judged_run,
        like=lambda name: f"{student}/{row_of(name)[1].like}" if row_of(name)[1].like else name,
        grid=RATES,
    )


def taught(student: str, row: str) -> None:
    teach(prepare(recipe(f"{student}/{row}", RATES[0], 0)))


def main() -> None:
    parser = rated_arguments(__file__, ";".join(ROWS))
    parser.add_argument("--teachers", action="store_true", help="only build and judge the teachers")
    parser.add_argument("--student", choices=STUDENTS, default="static")
    options = parser.parse_args()
    results = Results(EXPERIMENT)
    if finished(options, results, write_page):
        return
    if options.teachers:
        references(results)
        return
    rated = rated_rows(options.student)
    names = [f"{options.student}/{row}" for row in options.rows.split(";")]
    if options.beside > 1:
        open_corpus(recipe(f"{options.student}/likelihood, ours", RATES[0], 0))  # once, before all ask for it
        teaching = [functools.partial(taught, options.student, f"{VARIED[0]}, from {name}") for name in TEACHERS]
        make = functools.partial(rated_rows, options.student)
        beside(make, names, options.seeds, tune=options.tune, processes=options.beside, before=teaching)
    results.run(f"references/{options.student}", functools.partial(judged_before, options.student))
    make_rows(rated, names, options.seeds, write_page, tune=options.tune)


if __name__ == "__main__":
    main()
