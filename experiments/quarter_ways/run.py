"""Ways to train the student of a quarter: what each is worth after some minutes of one core."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
from experiments.harness.records import WORK, Results, digest
from experiments.harness.script import arguments, finished, settings_of
from experiments.harness.texts import read_rows, write_rows
from experiments.harness.training import student_of
from experiments.quarter.run import DTYPE, recipe
from experiments.quarter.shapes import SIZES
from experiments.quarter.texts import DEMO, documented, others, pool
from experiments.quarter_ways.table import write_page

from distilvec.corpus.docstrings import docstring_pairs
from distilvec.flow.demo import demo_teacher
from distilvec.judging import CachedEncoder, RetrievalTask, agreement
from distilvec.recipe import Recipe
from distilvec.report import Record
from distilvec.teachers import load_teacher

EXPERIMENT = "quarter_ways"
PLAIN, FEW = 40_000, 10_000
#: Share of a pool's words that stand in longer texts.
SHARE = 0.4
#: Of the demo's own pairs the first 600 are tests of `quarter`; the others measure here.
TESTS = 600
COSINE = {"name": "cosine", "map": False}
#: Corpus and changes of a way.
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("plain", {}),
    "joined": ("joined", {}),
    "docstrings": ("docstrings", {}),
    "joined and docstrings": ("both", {}),
    "rate 5e-4": ("plain", {"optimizer": {"lr": 5e-4}}),
    "rate 2e-3": ("plain", {"optimizer": {"lr": 2e-3}}),
    "rate 3e-3": ("plain", {"optimizer": {"lr": 3e-3}}),
    "batches of 32": ("plain", {"training": {"batch_size": 32}}),
    "batches of 128": ("plain", {"training": {"batch_size": 128}}),
    "Muon": ("plain", {"optimizer": {"lr": 2e-3, "muon": True}}),
    "Muon, batches of 128": ("plain", {"optimizer": {"lr": 2e-3, "muon": True}, "training": {"batch_size": 128}}),
    "token states 0": ("plain", {"method": [COSINE]}),
    "token states 3": ("plain", {"method": [COSINE, {"name": "token_states", "weight": 3.0}]}),
    "cosine schedule": ("plain", {"training": {"lr_scheduler_type": "cosine"}}),
    "beta2 0.999": ("plain", {"training": {"adam_beta2": 0.999}}),
    "few": ("few", {"training": {"epochs": 16.0}}),
    "few, as many made": ("few", {"corpus": {"made": 1.0}, "training": {"epochs": 8.0}}),
    "few, three times as many made": ("few", {"corpus": {"made": 3.0}, "training": {"epochs": 4.0}}),
}


def corpus(kind: str) -> Path:
    """A pool; all but "few" of about equally many words."""
    file = WORK / EXPERIMENT / f"{kind}.jsonl"
    if file.exists():
        return file
    rows = list(read_rows(pool()))
    order = np.random.default_rng(0).permutation(len(rows))[2000:]  # the first 2,000 are held out
    plain = [rows[row] for row in order][: FEW if kind == "few" else None]
    words = sum(len(row["text"].split()) for row in plain[:PLAIN])
    longer: list[dict[str, str]] = []
    if kind in ("joined", "both"):
        longer += joined(plain[PLAIN:], int(words * SHARE / (2 if kind == "both" else 1)))
    if kind in ("docstrings", "both"):
        longer += documented(int(words * SHARE / (2 if kind == "both" else 1)))
    left = words - sum(len(row["text"].split()) for row in longer)
    chosen = list(longer)
    for row in plain:
        left -= len(row["text"].split())
        if left < 0:
            break
        chosen.append(row)
    return write_rows(file, chosen)


def joined(rows: list[dict[str, str]], words: int, seed: int = 0) -> list[dict[str, str]]:
    """Two to twelve sentences of one source at a time, until there are so many words."""
    random = np.random.default_rng(seed)
    of: dict[str, list[str]] = {}
    for row in rows:
        of.setdefault(row["source"], []).append(row["text"])
    sources = [name for name, texts in of.items() if len(texts) > 12]
    share = np.array([len(of[name]) for name in sources], float)
    made: list[dict[str, str]] = []
    while words > 0:
        source = sources[int(random.choice(len(sources), p=share / share.sum()))]
        drawn = random.choice(len(of[source]), int(random.integers(2, 13)), replace=False)
        text = " ".join(of[source][row] for row in drawn)
        words -= len(text.split())
        made.append({"text": text, "source": f"joined {source}"})
    return made


def measured_texts() -> dict[str, list[str]]:
    """Held-out sentences, and longer texts: half joined of others of these, half docstrings that no pool holds."""
    rows = list(read_rows(pool()))
    held = [rows[row] for row in np.random.default_rng(0).permutation(len(rows))[:2000]]
    long = [row["text"] for row in joined(held[1500:], 20_000, seed=1)][:300]
    return {
        "sentences": [row["text"] for row in held[:1500]],
        "longer": long + [row["text"] for row in documented(10**9, skip=len(others()) - 300)],
    }


def way(name: str) -> Recipe:
    """The recipe of a way."""
    kind, changes = WAYS[name]
    made = recipe(SIZES["quarter"], 0, 1.0)
    made["corpus"] = {**made["corpus"], "path": str(corpus(kind))}
    for section, values in changes.items():
        made[section] = {**made[section], **values} if isinstance(values, dict) else values
    del made["output"]
    made["cache"] = str(WORK / EXPERIMENT)
    return Recipe.build({**made, "output": str(WORK / EXPERIMENT / f"{name.replace(' ', '-')}-{digest(made)}")})


def measured(made: Recipe) -> dict[str, Any]:
    """What a trained student resembles, and finds."""
    folder = student_of(made).parent
    record = Record.load(folder)
    student, found = CachedEncoder(load_teacher(model=folder / "student", dtype=DTYPE)), {}
    for name, texts in measured_texts().items():
        found[name] = agreement(teacher()(texts), student(texts), shared_space=True)
    pairs = docstring_pairs(limit=DEMO)[TESTS:]
    task = RetrievalTask.from_pairs("pairs", [p["summary"] for p in pairs], [p["description"] for p in pairs])
    scores = {name: task.score(model).value for name, model in (("teacher", teacher()), ("student", student))}
    return {
        "agreement": found,
        "retrieval": scores,
        "training": record["cost"].model_dump(exclude={"items"}),
    }


@functools.cache
def teacher() -> CachedEncoder:
    return CachedEncoder(load_teacher(model=demo_teacher(), dtype=DTYPE))


def main() -> None:
    parser = arguments(__file__, device=False)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    options = parser.parse_args()
    results = Results(EXPERIMENT)
    if finished(options, results, write_page):
        return
    for name in options.ways:
        made = way(name)
        results.run(f"{name}-0", functools.partial(measured, made), recipe=settings_of(made))
        print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
