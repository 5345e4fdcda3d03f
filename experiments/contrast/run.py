"""Distillation with a contrastive loss on pairs beside it; README.md explains it."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import numpy as np
from experiments.contrast.table import CUTS, EXPERIMENT, ROWS, write_page
from experiments.harness.records import WORK, digest
from experiments.harness.script import Results, arguments, finished, settings_of
from experiments.harness.texts import shared_rows, write_rows
from experiments.mpnet import run as mpnet
from experiments.mpnet import texts
from experiments.quarter import texts as quarter

from distilvec.corpus.docstrings import docstring_pairs
from distilvec.flow.demo import demo_teacher
from distilvec.flow.fit import interpolated
from distilvec.flow.prepare import open_corpus
from distilvec.judging.compression import CompressedEncoder, Form, calibrated
from distilvec.recipe import Recipe
from distilvec.recipe.defaults import DEFAULTS
from distilvec.students import load_student, ship
from distilvec.training import bfloat16_pays

SPREADING = "experiments.contrast.spreading:Spreading"
#: Row -> losses beside each other. The weights of distillation and ranking are those of jina-embeddings-v5.
METHODS: dict[str, list[dict[str, Any]]] = {
    "cosine": [{"name": "cosine"}],
    "mnrl": [{"name": "mnrl"}],
    "cosine + mnrl": [{"name": "cosine", "weight": 2.0}, {"name": "mnrl"}],
    "cosine + guided mnrl": [{"name": "cosine", "weight": 2.0}, {"name": "mnrl", "teacher_margin": 0.0}],
    "cosine + mnrl + spreading": [{"name": "cosine", "weight": 2.0}, {"name": "mnrl"}, {"name": SPREADING}],
    "cut": [{"name": "auto"}],
    "cut + mnrl": [{"name": "auto"}, {"name": "mnrl", "weight": 0.5}],
}
assert tuple(METHODS) == ROWS
RATES = (3e-5, 1e-4, 3e-4)
#: Pairs of the corpus: shared ones, and summaries of docstrings with what follows them.
SHARED, DOCSTRINGS = 4_500, 1_500
#: What a search keeps of a vector of 384 numbers.
FORMS = {"int8": Form(384, "int8"), "binary": Form(384, "binary"), "128 numbers": Form(128)}


def corpus() -> Path:
    """Pairs of which no text is judged or chosen by."""
    file = WORK / EXPERIMENT / "pairs.jsonl"
    if not file.exists():
        told = docstring_pairs(limit=quarter.DEMO)
        kept_out = {text for pair in quarter.drawn() for text in pair.values()}
        kept_out |= {text for pair in told[: texts.TESTS] for text in (pair["summary"], pair["description"])}
        held = [text for each in texts.held_out().values() for text in each]
        kept_out |= set(held)
        found = [(row["anchor"], row["positive"]) for row in shared_rows("pairs")]
        own = [(pair["summary"], pair["description"]) for pair in told[texts.TESTS :]]
        # A held-out docstring is a summary, a description, or both.
        own = [pair for pair in own if " ".join(pair) not in kept_out]
        chosen = [
            pair
            for several, count in ((found, SHARED), (own, DOCSTRINGS))
            for pair in random.Random(0).sample([each for each in several if not kept_out & set(each)], count)
        ]
        random.Random(0).shuffle(chosen)
        write_rows(file, ({"anchor": anchor, "positive": positive} for anchor, positive in chosen))
    return file


def recipe(models: Path, row: str, seed: int, lr: float) -> Recipe:
    """A training; its folder is named after all that it is made of."""
    made: dict[str, Any] = {
        "corpus": {"path": str(corpus()), "text": ["anchor", "positive"], "holdout": 0.02},
        "method": METHODS[row],
        **(_cut(seed) if row in CUTS else _taught_by_mpnet(models, row, seed, lr)),
        "judging": {"tasks": [], "agreement": False, "speed": False},
        "cache": str(WORK / EXPERIMENT),
    }
    return Recipe.build({**made, "output": str(WORK / EXPERIMENT / f"run-{digest(made)}")})


def _taught_by_mpnet(models: Path, row: str, seed: int, lr: float) -> dict[str, Any]:
    """The sections of all-MiniLM-L6-v2 with mpnet as the teacher."""
    return {
        "teachers": [{"name": mpnet.NAME, "model": str(models / mpnet.MODEL), "dtype": mpnet.DTYPE}],
        "student": {"model": demo_teacher(), "max_length": 256, "space": "own"},
        "optimizer": {"lr": lr},
        "training": {
            "epochs": 1,
            "batch_size": 64,
            "seed": seed,
            "lr_scheduler_type": "linear",
            "save_every": 100,
            "bf16": bfloat16_pays(),
            # A batch of 64 pairs of long texts takes 12 GB otherwise; it changes no loss.
            **({} if row == "cosine" else {"mini_batch_size": 32}),
        },
    }


def _cut(seed: int) -> dict[str, Any]:
    """The sections of a quarter of all-MiniLM-L6-v2 with the whole as the teacher, and this student's defaults."""
    return {
        "teachers": [{"name": "minilm", "model": demo_teacher()}],
        "training": {"seed": seed, "save_every": 200},
    }


def tuning_run(models: Path, row: str, lr: float, seed: int = 0) -> dict[str, Any]:
    """A training and what rates are chosen by."""
    made = recipe(models, row, seed, lr)
    folder, about = mpnet.trained(made)
    return {"row": row, "lr": lr, **about, **mpnet.likeness(mpnet.encoder(folder), models), **mpnet.search(folder)}


def judged_run(models: Path, row: str, lr: float, seed: int) -> dict[str, Any]:
    """A training on all, and its searches with smaller vectors."""
    made = recipe(models, row, seed, lr)
    folder, cost = mpnet.trained(made)
    seen = set(open_corpus(made).texts())
    return {
        **tuning_run(models, row, lr, seed),
        **cost,
        **mpnet.judged(models, Path(made.output).name, folder, seen),
        "forms": smaller(folder),
    }


def interpolated_run(models: Path, row: str, lr: float, seed: int) -> dict[str, Any]:
    """The same student half way between its weights before and after training, on all."""
    made = recipe(models, row, seed, lr)
    trained, _ = mpnet.trained(made)
    folder = trained.parent / "interpolated"
    if not (folder / "modules.json").exists():
        ship(interpolated(load_student(demo_teacher()), load_student(trained), 0.5), folder)
    about = {"row": f"{row}, interpolated", "lr": lr, **mpnet.likeness(mpnet.encoder(folder), models)}
    name, seen = f"{trained.parent.name}-interpolated", set(open_corpus(made).texts())
    return {**about, **mpnet.search(folder), **mpnet.judged(models, name, folder, seen), "forms": smaller(folder)}


def start_run(models: Path) -> dict[str, Any]:
    """all-MiniLM-L6-v2 as it is."""
    start = demo_teacher()
    about = {"row": "all-MiniLM-L6-v2", **mpnet.likeness(mpnet.encoder(start), models), **mpnet.search(start)}
    return {**about, **mpnet.judged(models, "minilm", start, set()), "forms": smaller(start)}


def smaller(model: Path | str) -> dict[str, float]:
    """nDCG@10 over the three searches with vectors as an index may keep them."""
    encode = mpnet.encoder(model)
    seen = encode([text for each in texts.held_out().values() for text in each])
    found = {}
    for name, form in {"float32": Form(seen.shape[1]), **FORMS}.items():
        small = CompressedEncoder(encode, form, calibrated(seen, form.width))
        found[name] = float(np.mean([task.score(small).value for task in texts.parts()["retrieval"]]))
    return found


def chosen_rate(results: Results, models: Path, row: str) -> float:
    """The rate with the best mean of what is found of the teacher's neighbours and of searches without labels."""

    def quality(lr: float) -> float:
        make = functools.partial(tuning_run, models, row, lr)
        found = results.run(f"tuning/{row}-{lr:g}", make, recipe=settings_of(recipe(models, row, 0, lr)))
        return float(found["mean"]["of_ten"] + found["search"]["mean"]) / 2

    return max(RATES, key=quality)


def main() -> None:
    parser = arguments(__file__, device=False)
    parser.add_argument("--models", type=Path, help=f"the folder that holds {mpnet.MODEL}")
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    results = Results(EXPERIMENT)
    if finished(options, results, write_page):
        return
    if options.models is None:
        raise SystemExit(f"--models names the folder of {mpnet.MODEL}; see the README.md beside this script.")
    results.run("all-MiniLM-L6-v2-0", functools.partial(start_run, options.models), parts=texts.PART)
    for seed in range(options.seeds):
        for row in options.rows:
            lr = DEFAULTS["cut"].lr if row in CUTS else chosen_rate(results, options.models, row)
            make = functools.partial(judged_run, options.models, row, lr, seed)
            about = settings_of(recipe(options.models, row, seed, lr))
            results.run(f"{row}-{seed}", make, parts=texts.PART, recipe=about)
            if row in CUTS:
                continue
            make = functools.partial(interpolated_run, options.models, row, lr, seed)
            results.run(f"{row}, interpolated-{seed}", make, parts=texts.PART, recipe=about)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
