"""Questions that a language model writes for texts: what they do to a search by the student; README.md explains it."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

from experiments.harness.records import WORK, Results
from experiments.harness.script import arguments, finished, shared
from experiments.harness.texts import read_rows, shared_rows, write_rows
from experiments.questions.table import EXPERIMENT, write_page

import distilvec
from distilvec.flow.demo import demo_teacher
from distilvec.judging import CachedEncoder, RetrievalTask, judge, load_task
from distilvec.kinds.writing.questions import write_questions
from distilvec.teachers import load_teacher

WRITER = "smollm2-135m"
SEEDS = (0, 1)
#: Abstracts that it is asked about.
ASKED = 640
#: Settings of the second training, on pairs, and its rates: the one that is best on held-out pairs is taken.
PAIRS = {"epochs": 4, "batch_size": 64}
RATES = (2e-5, 1e-4, 3e-4, 1e-3)


def documents() -> list[str]:
    """The abstracts of Cranfield: what is searched, trained on, and asked about."""
    texts = (f"{row['title']} {row['text']}".strip() for row in shared_rows("cranfield.corpus"))
    return [text for text in texts if text]


def corpus() -> Path:
    """The abstracts as a file."""
    file = WORK / EXPERIMENT / "cranfield.jsonl"
    if not file.exists():
        write_rows(file, ({"text": text} for text in documents()))
    return file


def questions(models: Path) -> Path:
    """A pair of a question and its text, for those of the first abstracts that the model had a usable question for.

    A file that an interrupted run left is finished with `distilvec questions` and the same limit, or removed.
    """
    file = WORK / EXPERIMENT / "questions.jsonl"
    if not file.exists():
        write_questions(str(corpus()), file, model=str(models / WRITER), limit=ASKED)
    return file


def cranfield() -> RetrievalTask:
    """The search of all 225 queries among all abstracts; no query is trained on."""
    files = {name: f"cranfield.{name}.jsonl.gz" for name in ("queries", "corpus", "qrels")}
    task = load_task({"name": "cranfield", "kind": "retrieval", **files}, shared() / "data")
    assert isinstance(task, RetrievalTask)
    return task


def judged(**models: Any) -> dict[str, Any]:
    """nDCG@10 with interval of each model, and of BM25."""
    task = cranfield()
    found = judge({name: CachedEncoder(load_teacher(model=str(each))) for name, each in models.items()}, [task])
    scores = {name: each["cranfield"] for name, each in found.scores.items()}
    shown = {name: {"value": score.value, "interval": score.interval} for name, score in scores.items()}
    return {"scores": shown, "bm25": (task.bm25() or {}).get("ndcg@10"), "queries": len(task.queries)}


def started() -> dict[str, Any]:
    """The teacher."""
    return judged(teacher=demo_teacher())


def trained(folder: Path, given: list[dict[str, Any]], seed: int) -> Path:
    """A student with a quarter of the teacher's parameters, all other choices left to the defaults."""
    if not (folder / "student" / "modules.json").exists():
        distilvec.distill(
            {"name": "teacher", "model": demo_teacher()},
            {"parts": given},
            folder,
            training={"seed": seed},
            judging={"tasks": [], "speed": False},
            cache=str(folder.parent / f"cache-{len(given)}"),
        )
    return folder / "student"


def texts_row(seed: int) -> dict[str, Any]:
    """Taught the abstracts."""
    begun = time.perf_counter()
    student = trained(WORK / EXPERIMENT / f"texts-{seed}", [{"path": str(corpus())}], seed)
    return {"minutes": (time.perf_counter() - begun) / 60, **judged(student=student)}


def both_row(models: Path, seed: int) -> dict[str, Any]:
    """Taught the abstracts and the questions."""
    pairs, begun = questions(models), time.perf_counter()
    parts = [{"path": str(corpus())}, {"path": str(pairs), "text": "query"}]
    student = trained(WORK / EXPERIMENT / f"both-{seed}", parts, seed)
    return {"minutes": (time.perf_counter() - begun) / 60, **about(pairs), **judged(student=student)}


def pairs_row(models: Path, seed: int, lr: float) -> dict[str, Any]:
    """Taught the abstracts, then trained on pairs of question and text."""
    pairs, begun, place = questions(models), time.perf_counter(), WORK / EXPERIMENT
    first = trained(place / f"texts-{seed}", [{"path": str(corpus())}], seed)
    done = distilvec.distill(
        {"name": "before", "model": str(first)},
        {"path": str(pairs), "text": ["query", "text"]},
        place / f"pairs-{lr:g}-{seed}",
        student=str(first),
        method="mnrl",
        optimizer={"lr": lr},
        training={"seed": seed, **PAIRS},
        judging={"speed": False},
    )
    student = done.record["scores"].model("student")
    assert student is not None
    held_out = {name: score.value for name, score in student.scores.items()}
    minutes = (time.perf_counter() - begun) / 60
    return {
        "minutes": minutes,
        "lr": lr,
        "held_out": held_out,
        **about(pairs),
        **judged(student=done.folder / "student"),
    }


def chosen(row: dict[str, Any]) -> dict[str, Any]:
    """The row of the rate that was taken."""
    return row


def pairs_rows(models: Path, results: Results, seed: int) -> None:
    """A row at the rate that is best on the pairs that the first seed holds out."""

    def kept(name: str, lr: float, seed: int) -> dict[str, Any]:
        make = functools.partial(pairs_row, models, seed, lr)
        return results.run(name, make, seed=seed, lr=lr, second=PAIRS)

    tried = {lr: kept(f"tuning/pairs-{lr:g}", lr, SEEDS[0]) for lr in RATES}
    best = max(tried, key=lambda lr: next(iter(tried[lr]["held_out"].values())))
    name = f"texts, then pairs-{seed}"
    if seed == SEEDS[0]:
        results.run(name, functools.partial(chosen, tried[best]), seed=seed, lr=best, second=PAIRS)
    else:
        kept(name, best, seed)


def about(pairs: Path) -> dict[str, Any]:
    """How many questions there are, of how many texts, and the first few."""
    rows = list(read_rows(pairs))
    return {"questions": len(rows), "texts": ASKED, "examples": [row["query"] for row in rows[:8]]}


def main() -> None:
    parser = arguments(__file__, device=False)
    parser.add_argument("--models", type=Path, help=f"folder of {WRITER}")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    options = parser.parse_args()
    results = Results(EXPERIMENT, {"writer": WRITER, "asked": ASKED})
    if finished(options, results, write_page):
        return
    if options.models is None:
        raise SystemExit(f"--models names the folder of {WRITER}; see the README.md beside this script.")
    results.run("teacher-0", started)
    for seed in options.seeds:
        results.run(f"texts-{seed}", functools.partial(texts_row, seed), seed=seed)
        results.run(f"texts and questions-{seed}", functools.partial(both_row, options.models, seed), seed=seed)
        pairs_rows(options.models, results, seed)
        write_page(results.rows(), results.home)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
