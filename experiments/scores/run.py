"""Scores as lessons: a student of a quarter taught by vectors, by a joint model's scores, or by both."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.records import WORK, Results, digest
from experiments.harness.script import arguments, finished, settings_of, shared
from experiments.harness.texts import read_rows, shared_rows, write_rows
from experiments.quarter.shapes import SIZES
from experiments.scores.table import write_page

import distilvec
from distilvec.corpus.docstrings import docstring_pairs
from distilvec.flow.demo import demo_teacher
from distilvec.flow.finetune import finetune, finetune_scores
from distilvec.flow.run import train
from distilvec.judging import CachedEncoder, Judgement, JudgingTask, RetrievalTask, judge, load_task
from distilvec.judging.bootstrap import paired_bootstrap
from distilvec.judging.tasks import top_rows
from distilvec.mining.outcome import Mined
from distilvec.recipe import Recipe
from distilvec.scorers.base import score_pairs
from distilvec.scorers.load import load_scorer
from distilvec.teachers import load_teacher
from distilvec.training import bfloat16_pays

EXPERIMENT = "scores"
QUICK = "--quick" in sys.argv
HOME = WORK / (f"{EXPERIMENT}-quick" if QUICK else EXPERIMENT)
NAME = "all-MiniLM-L6-v2"
DTYPE = "bfloat16" if bfloat16_pays() else "float32"
SIZES_OF_PARTS = {
    name: size // 50 if QUICK else size
    for name, size in {"test": 2_000, "validation": 1_000, "scorer": 6_000, "student": 5_000}.items()
}
NEGATIVES = {"scorer": 2, "student": 4, "validation": 2}
EPOCHS, SHARE_OF_PROBE = 1, 4
#: Queries whose 20 nearest the scorer sorts anew.
SORTED, NEAREST = 300, 20
#: What the validation pairs choose from.
WEIGHTS = {"score_kl": (0.1, 0.3), "margin_mse": (1.0, 10.0)}
RATES = (3e-4, 1e-3)
ARMS = ("vectors", "scores", "both")


@functools.cache
def parts() -> dict[str, list[dict[str, str]]]:
    """The shared pairs in parts that have no text in common."""
    rows = list(shared_rows("pairs"))
    order = np.random.default_rng(0).permutation(len(rows))
    found: dict[str, list[dict[str, str]]] = {name: [] for name in SIZES_OF_PARTS}
    seen: set[str] = set()
    left = list(SIZES_OF_PARTS)
    for number in order.tolist():
        pair = {"query": rows[number]["anchor"], "document": rows[number]["positive"]}
        texts = {" ".join(text.lower().split()) for text in pair.values()}
        if texts & seen or len(texts) < 2:
            continue
        seen |= texts
        found[left[0]].append(pair)
        if len(found[left[0]]) == SIZES_OF_PARTS[left[0]]:
            left.pop(0)
            if not left:
                break
    return found


def teacher_section() -> dict[str, Any]:
    return {"name": NAME, "model": demo_teacher(), "dtype": DTYPE}


def mined(part: str) -> Mined:
    """A part with its negatives, which are answers of its other pairs."""
    corpus = write_rows(HOME / f"{part}.jsonl", parts()[part])
    return distilvec.mine(
        teacher_section(),
        {"path": str(corpus), "text": ["query", "document"], "holdout": 0.0},
        HOME / f"mined-{part}",
        negatives=NEGATIVES[part],
    )


def labelled(part: str) -> Path:
    """Pairs of a part as examples: a query with its answer, and with each of its negatives."""
    rows = []
    for row in read_rows(mined(part).file):
        rows.append({"query": row["query"], "document": row["document"], "label": "answer"})
        negatives = [row[name] for name in row if name.startswith("negative_") and row[name]]
        rows += [{"query": row["query"], "document": each, "label": "another"} for each in negatives]
    return write_rows(HOME / f"labelled-{part}.jsonl", rows)


def scorer_folder() -> Path:
    """The joint model, made where it is not there yet; its best epoch is that of the validation pairs."""
    return finetune(
        demo_teacher(),
        str(labelled("scorer")),
        HOME / "joint",
        task="pairs",
        text=["query", "document"],
        validation=str(labelled("validation")),
        max_length=128,
        training={"epochs": 2, "batch_size": 32, "seed": 0, "bf16": DTYPE == "bfloat16"},
        optimizer={"lr": 5e-5},
    )


def scorer_section() -> dict[str, Any]:
    return {"name": "joint", "model": str(scorer_folder()), "label": "answer", "batch_size": 128}


def method_of(arm: str, method: str, weight: float) -> list[dict[str, Any]]:
    if arm == "scores":
        return [{"name": method}]
    vectors: list[dict[str, Any]] = [{"name": "cosine", "map": False}, {"name": "token_states"}]
    return vectors if arm == "vectors" else [*vectors, {"name": method, "weight": weight}]


def recipe(arm: str, seed: int, *, method: str, weight: float, lr: float, probe: bool) -> Recipe:
    """The training of an arm; its folder is named after all that it is made of."""
    pairs = mined("student")
    batch, each = 60, 2 + NEGATIVES["student"]
    steps = EPOCHS * SIZES_OF_PARTS["student"] * each // batch
    made: dict[str, Any] = {
        "corpus": {"path": str(pairs.file), "text": pairs.columns, "holdout": 0.0},
        "teachers": [] if arm == "scores" else [teacher_section()],
        "scorers": [] if arm == "vectors" else [scorer_section()],
        "student": {
            "shrink": {"of": demo_teacher() if arm == "scores" else NAME, "positions": 256, **SIZES["quarter"]},
            "max_length": 256,
            "dropout": 0.0,
        },
        "method": method_of(arm, method, weight),
        "optimizer": {"lr": lr, "heads_lr": None},
        "training": {
            "max_steps": steps // SHARE_OF_PROBE if probe else steps,
            # Items are texts to a method on vectors, and queries with all their documents to one on scores.
            "batch_size": batch if arm == "vectors" else batch // each,
            "seed": seed,
            "adam_beta2": 0.98,
            "lr_scheduler_type": "linear",
            "warmup_steps": 0.02,
            "save_every": 500,
            "bf16": DTYPE == "bfloat16",
        },
        "cache": str(HOME / "shared"),
    }
    return Recipe.build({**made, "output": str(HOME / "runs" / digest(made))})


def trained(made: Recipe) -> Path:
    """Folder of the student, which is trained or gone on with where it is not there."""
    folder = Path(made.output)
    done = folder / "trained"
    if not done.exists():
        train(made, resume=True)
        done.touch()
    return folder / "student"


def validation() -> list[JudgingTask]:
    pairs = parts()["validation"]
    return [task_of("validation", pairs)]


def task_of(name: str, pairs: Sequence[dict[str, str]]) -> JudgingTask:
    return RetrievalTask.from_pairs(name, [each["query"] for each in pairs], [each["document"] for each in pairs])


@functools.cache
def tests() -> list[JudgingTask]:
    cranfield = {name: f"cranfield.{name}.jsonl.gz" for name in ("queries", "corpus", "qrels")}
    documented = [
        {"query": each["summary"], "document": each["description"]} for each in docstring_pairs(limit=2600)[:600]
    ]
    return [
        load_task({"name": "cranfield", "kind": "retrieval", **cranfield}, shared() / "data"),
        task_of("pairs", parts()["test"]),
        task_of("docstrings", documented),
    ]


def judged(name: str, model: Path | str, place: Path) -> Judgement:
    """A model's scores on the tests, kept with what it said of each query."""
    file = place / f"judged-{name}.json"
    if not file.exists():
        found = judge({name: CachedEncoder(load_teacher(model=str(model), dtype=DTYPE))}, tests())
        write_rows(file, [found.to_dict(outputs=True)])
    return Judgement.from_dict(json.loads(file.read_text(encoding="utf-8")))


def values(found: Judgement, name: str) -> dict[str, Any]:
    rows = found.scores[name]
    return {
        task: {
            "value": score.value,
            "interval": score.interval,
            "bm25": (score.details.get("bm25") or {}).get(score.metric),
        }
        for task, score in rows.items()
    }


def probed(made: Recipe) -> dict[str, Any]:
    """What a short training makes of the validation pairs."""
    found = judge({"student": CachedEncoder(load_teacher(model=str(trained(made)), dtype=DTYPE))}, validation())
    return {"validation": found.scores["student"]["validation"].value}


def judged_run(made: Recipe) -> dict[str, Any]:
    """A trained student on the tests."""
    folder = trained(made)
    return {"tasks": values(judged("student", folder, folder.parent), "student")}


def judged_teacher() -> dict[str, Any]:
    return {"tasks": values(judged("teacher", demo_teacher(), HOME), "teacher")}


def judged_start(made: Recipe) -> dict[str, Any]:
    (start,) = (Path(made.output) / "start").iterdir()
    return {"tasks": values(judged("start", start, Path(made.output)), "start")}


def difference(first: list[Recipe], second: list[Recipe] | None) -> dict[str, Any]:
    """Paired differences by task and over all, of two lists of runs with the same seeds; None = the teacher's."""
    sides = [[judged("student", trained(made), Path(made.output)).scores["student"] for made in first]]
    if second is None:
        sides.append([judged("teacher", demo_teacher(), HOME).scores["teacher"]] * len(first))
    else:
        sides.append([judged("student", trained(made), Path(made.output)).scores["student"] for made in second])
    found = {}
    for group in (*sides[0][0], "all"):
        names = list(sides[0][0]) if group == "all" else [group]
        one, other = ([run[name] for run in side for name in names] for side in sides)
        paired = paired_bootstrap(one, other)
        found[group] = {"value": paired.value, "interval": paired.interval}
    return found


def judged_scorer() -> dict[str, Any]:
    """How well the scorer judges: pairs of the validation, and the order of the teacher's nearest on test pairs."""
    pairs = parts()["test"]
    teacher = CachedEncoder(load_teacher(model=demo_teacher(), dtype=DTYPE))
    queries = [each["query"] for each in pairs][:SORTED]
    documents = [each["document"] for each in pairs]
    ranked = top_rows(teacher(queries), teacher(documents), NEAREST)
    scorer = load_scorer(**scorer_section())
    asked = [
        (query, documents[place]) for query, places in zip(queries, ranked.tolist(), strict=True) for place in places
    ]
    scores = score_pairs(scorer, asked).reshape(ranked.shape)
    again = np.take_along_axis(ranked, np.argsort(-scores, axis=1, kind="stable"), axis=1)
    own = np.arange(len(queries))[:, None]
    found = {}
    for name, order in (("teacher", ranked), ("scorer", again)):
        hit = order == own
        found[name] = {
            "first": float(hit[:, 0].mean()),
            "reciprocal": float((hit / np.arange(1, NEAREST + 1)).sum(1).mean()),
        }
    return {"sorted": found, "among_them": float((ranked == own).any(1).mean()), **finetune_scores(scorer_folder())}


def choose(results: Results) -> dict[str, dict[str, Any]]:
    """Method, weight and rate of each arm, by the validation pairs alone."""
    tried: dict[str, list[dict[str, Any]]] = {
        "vectors": [{"method": "score_kl", "weight": 1.0, "lr": lr} for lr in RATES],
        "scores": [{"method": method, "weight": 1.0, "lr": lr} for method in WEIGHTS for lr in RATES],
    }
    found = {}
    for arm in ARMS:
        if arm == "both":
            rate = found["vectors"]["lr"]
            tried[arm] = [
                {"method": method, "weight": weight, "lr": rate}
                for method, weights in WEIGHTS.items()
                for weight in weights
            ]
        reached = []
        for options in tried[arm]:
            made = recipe(arm, 100, **options, probe=True)
            words = ", ".join(f"{key} {value:g}" if key != "method" else str(value) for key, value in options.items())
            name = f"probe/{arm}, lr {options['lr']:g}-100" if arm == "vectors" else f"probe/{arm}, {words}-100"
            row = results.run(name, functools.partial(probed, made), recipe=settings_of(made))
            reached.append(row["validation"])
        found[arm] = tried[arm][int(np.argmax(reached))]
    return found


def main() -> None:
    parser = arguments(__file__, device=False, quick="a fiftieth of everything")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    results = Results(EXPERIMENT, work=HOME)
    if finished(options, results, write_page):
        return
    results.run("teacher-0", judged_teacher)
    results.run("scorer-0", judged_scorer)
    chosen = choose(results)
    runs: dict[str, list[Recipe]] = {arm: [] for arm in ARMS}
    for seed in options.seeds:
        for arm in ARMS:
            made = recipe(arm, seed, **chosen[arm], probe=False)
            runs[arm].append(made)
            results.run(f"{arm}-{seed}", functools.partial(judged_run, made), recipe=settings_of(made))
            write_page(results.rows(), results.home)
    start = runs["vectors"][0]
    results.run("start-0", functools.partial(judged_start, start), recipe=settings_of(start))
    for arm, other in (("scores", "vectors"), ("both", "vectors"), ("both", "scores"), ("both", None)):
        made = functools.partial(difference, runs[arm], None if other is None else runs[other])
        name = f"difference/{arm} less {other or 'the teacher'}-0"
        results.run(name, made, seeds=options.seeds, chosen=chosen)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
