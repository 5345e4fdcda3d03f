"""The headline student compressed in every way, and static students of the same teacher beside it.

    python experiments/compression.py           # headline.py has to be there; about an hour on one core
    python experiments/compression.py --table

Compression: every form that `distilvec compress` makes of headline.py's student, calibrated on 1,000 training texts of
the pool, likeness on 1,000 held-out ones, scores on six of the nine sets (probes on at most 5,000 rows).
Static students: tables of all-MiniLM-L6-v2's word pieces (256 numbers for all pieces; 384 for 5,000; 256 for 21,500,
which is a quarter of the teacher's parameters), as they are and trained on the headline's pool, with cosine for two
epochs where nothing else is said, judged on the nine sets exactly as headline.py judges.
"""

from __future__ import annotations

import argparse
import functools
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headline
import numpy as np
from common import WORK, Results, arguments, committed, finished, settings_of, shared
from layout import line
from records import Rows

from distilvec.corpus import Corpus
from distilvec.flow.compress import compress
from distilvec.flow.job import Job
from distilvec.flow.train import train_student
from distilvec.judging import CachedEncoder, judge, speed, talas_tasks
from distilvec.judging.agreement import likeness
from distilvec.recipe import Recipe
from distilvec.report.sections.compressed import Compression
from distilvec.students import load_student

EXPERIMENT = "compression"
SETS = ("stsb", "sick", "sts12", "mrpc", "scitail", "banking77")
PROBE_ROWS, TEXTS = 5_000, 1_000
LR = 3e-3


@dataclass(frozen=True)
class Static:
    """A static student: its table, and how it is trained."""

    dimensions: int
    vocabulary: int | None = None
    epochs: float = 2


STATIC = {
    "static, 256 numbers, all pieces": Static(256),
    "static, 384 numbers, 5,000 pieces": Static(384, 5000),
    "static, 256 numbers, 21,500 pieces": Static(256, 21_500),
    "static, 256 numbers, 21,500 pieces, 6 epochs": Static(256, 21_500, epochs=6),
}


def student() -> Path:
    """The student of headline.py with its own settings."""
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
    job = Job(made)
    untrained = job.student()
    student, fitted = train_student(job)
    shutil.rmtree(made.output, ignore_errors=True)
    tasks = talas_tasks(shared() / "data")
    judged = judge({"untrained": CachedEncoder(untrained), "trained": CachedEncoder(student)}, tasks)
    texts, vectors = job.held_out()
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


def write_page(rows: Rows, folder: Path) -> str:
    """What is there, as Markdown; also written to `table.md`."""
    lines = ["# The headline student compressed, and static students beside it", ""]
    lines += ["Made by `python experiments/compression.py` (its header says what was measured on what)."]
    if "headline" in rows:
        found = {key: value for key, value in rows["headline"].items() if key != "seconds"}
        table = Compression.model_validate(found)
        lines += ["", "## Compressed", "", _markdown(table), ""]
    students = [rows[name] for name in STATIC if name in rows]
    best = committed(headline.EXPERIMENT).get(headline.BEST)
    if students and best:
        full = best["averages"]["teacher"]["all"]
        lines += [
            "## Static students",
            "",
            "Averages over the nine sets in percent; kept: of the teacher's. Of 1,000 held-out sentences of the pool,",
            "times 100: neighbours, the share of the teacher's ten nearest that are found again; order, Spearman's",
            "correlation of all cosines with the teacher's. One seed.",
            "",
            "| model | parameters | Avg-In | Avg-Out | Avg | kept | neighbours | order | texts/s, 1 thread |",
            "|---|---|---|---|---|---|---|---|---|",
            _line("teacher", None, best["averages"]["teacher"], full, None, None),
            _line("headline student", None, best["averages"]["student"], full, best["agreement"], None),
        ]
        for each in students:
            row = STATIC[each["name"]]
            for model in ("untrained", "trained") if row == Static(row.dimensions, row.vocabulary) else ("trained",):
                rate = each["speed"]["texts_per_second"]
                agreed = each.get("agreement", {}).get(model)
                title = f"{each['name']}, {model}"
                lines.append(_line(title, each["parameters"], each["averages"][model], full, agreed, rate))
    text = "\n".join(lines) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(text)
    return text


def _markdown(table: Compression) -> str:
    """Without speeds: the machine did other work beside."""
    for row in table.rows:
        row.texts_per_second = row.latency_p50_ms = row.latency_p95_ms = None
    return table.grid().markdown()


def _line(
    name: str,
    parameters: int | None,
    averages: dict[str, float],
    full: float,
    agreed: dict[str, float] | None,
    rate: float | None,
) -> str:
    shown = " | ".join(f"{100 * averages[group]:.2f}" for group in ("in", "out", "all"))
    size = "" if parameters is None else f"{parameters / 1e6:.2f} M"
    likes = [f"{100 * agreed[key]:.1f}" for key in ("neighbours", "similarity_spearman")] if agreed else ["", ""]
    cells = [name, size, shown, f"{100 * averages['all'] / full:.1f} %", *likes, "" if rate is None else f"{rate:,.0f}"]
    return line(*cells)


def main() -> None:
    parser = arguments(__doc__, device=False)
    options = parser.parse_args()
    results = Results(EXPERIMENT)
    if finished(options, results, write_page):
        return
    if not (student() / "modules.json").exists():
        raise SystemExit(f"There is no {student()}: run headline.py first.")
    headline_settings = settings_of(Recipe.build(headline.recipe(headline.defaults())))
    results.run("headline", compressed, sets=SETS, probe_rows=PROBE_ROWS, texts=TEXTS, of=headline_settings)
    for name in STATIC:
        write_page(results.rows(), results.home)
        results.run(name, functools.partial(static, name), **settings_of(recipe(name)))
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
