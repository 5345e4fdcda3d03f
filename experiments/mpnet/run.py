"""all-mpnet-base-v2, the ladder: students of 22.7, 11 and 5.5 M parameters and a table; README.md explains it."""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.harness.records import WORK, digest
from experiments.harness.script import Results, arguments, finished, settings_of
from experiments.languages.run import unit
from experiments.mpnet import texts
from experiments.mpnet.table import write_page
from experiments.quarter.run import beside_teacher, kept_judgement
from experiments.quarter.shapes import PIECES, SIZES
from safetensors.torch import load_file
from torch import nn

from distilvec.corpus import Corpus
from distilvec.flow.demo import demo_teacher
from distilvec.flow.fit import interpolated
from distilvec.flow.prepare import open_corpus
from distilvec.flow.run import train
from distilvec.flow.teach import Taught, teach_one
from distilvec.judging import CachedEncoder, Judgement, RidgeMapped, agreement
from distilvec.modules.blocks import parameters
from distilvec.modules.projection import flattened, ridge_map
from distilvec.recipe import Recipe
from distilvec.students import PassCache, load_student, ship, shrink
from distilvec.teachers import load_teacher
from distilvec.training import bfloat16_pays

EXPERIMENT = texts.EXPERIMENT
MODEL, NAME = "all-mpnet-base-v2", "mpnet"
DTYPE = "bfloat16" if bfloat16_pays() else "float32"
#: Texts of a probe and of a whole run.
PROBE, WHOLE = 1_500, 12_000
#: Untrained shapes for each size. Those without "mpnet" are cut out of all-MiniLM-L6-v2.
SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "11": {
        "6 layers, 26,000 x 128, inner 800": {"layers": 6, "vocabulary": 26_000, "embedding": 128, "inner": 800},
        "5 layers, 28,000 x 128, inner 1,100": {"layers": 5, "vocabulary": 28_000, "embedding": 128, "inner": 1_100},
        "4 layers, 30,000 x 128, inner 1,536": {"layers": 4, "vocabulary": 30_000, "embedding": 128},
        "mpnet, 1 layer, 5,000": {"layers": [1], "vocabulary": 5_000},
        "mpnet, 2 layers, 5,000, inner 384": {"layers": [1, 12], "vocabulary": 5_000, "inner": 384},
    },
    "5.5": {
        "4 layers, 20,000 x 80, inner 528": SIZES["quarter"],
        "4 layers, 26,000 x 80, inner 372": PIECES["quarter, 26,000 pieces"],
    },
}
#: Shape of each size: guessed until `--shapes` was run, then the one that is nearest to the teacher before training.
CHOSEN: dict[str, str] = {"11": "5 layers, 28,000 x 128, inner 1,100", "5.5": "4 layers, 26,000 x 80, inner 372"}
#: Probes with all-MiniLM-L6-v2 as the start: what differs from the first.
PROBES: dict[str, dict[str, Any]] = {
    "in the teacher's space": {"space": "teacher"},
    "own space": {},
    "own space, remember 1": {"remember": 1.0},
    "own space, rate 3e-5": {"lr": 3e-5},
    "relational": {"method": {"name": "relational"}},
}
#: What the probes chose.
BEST: dict[str, Any] = PROBES["own space"]


def recipe(
    models: Path,
    student: dict[str, Any],
    count: int,
    seed: int,
    *,
    lr: float = 1e-4,
    epochs: float = 1.0,
    space: str = "own",
    remember: float = 0.0,
    method: Any = None,
) -> dict[str, Any]:
    """A run; its folder is named after all that it is made of."""
    made: dict[str, Any] = {
        "corpus": {"path": str(texts.corpus(count)), "domain": "field", "holdout": 0.01},
        "teachers": [{"name": NAME, "model": str(models / MODEL), "dtype": DTYPE}],
        "student": {**student, "space": space, **({"remember": remember} if remember else {})},
        "method": method or {"name": "cosine"},
        "optimizer": {"lr": lr},
        "training": {
            "epochs": epochs,
            "batch_size": 32,
            "seed": seed,
            "lr_scheduler_type": "linear",
            "save_every": 100,
            "bf16": bfloat16_pays(),
        },
        "judging": {"tasks": [], "agreement": False, "speed": False},
        "cache": str(WORK / EXPERIMENT),
    }
    return {**made, "output": str(WORK / EXPERIMENT / f"run-{digest(made)}")}


def start(**more: Any) -> dict[str, Any]:
    """all-MiniLM-L6-v2 as the start, whole, or cut to a shape."""
    return {"model": demo_teacher(), "max_length": 256, **more}


def cut(size: str) -> dict[str, Any]:
    return {"shrink": {"of": demo_teacher(), "positions": 256, **SHAPES[size][CHOSEN[size]]}, "dropout": 0.0}


def taught(made: Recipe) -> tuple[Corpus, Taught, float]:
    """The corpus, the teacher with its vectors of it in the store, and the minutes that this took now."""
    begun, corpus = time.perf_counter(), open_corpus(made)
    teacher = teach_one(made.teachers[0], corpus, made.place / "stores")
    return corpus, teacher, (time.perf_counter() - begun) / 60


def trained(made: Recipe) -> tuple[Path, dict[str, Any]]:
    """The student's folder, and what it cost; it is made, or gone on with, if it is not whole."""
    folder = Path(made.output) / "student"
    corpus, _, teaching = taught(made)
    begun, used = time.perf_counter(), time.process_time()
    if not (folder / "modules.json").exists():
        train(made, resume=True)
    return folder, {
        **size_of(folder),
        "texts": len(corpus),
        "epochs": made.training.epochs,
        "seed": made.training.seed,
        "teaching_minutes": teaching,
        "minutes": (time.perf_counter() - begun) / 60,
        "processor_minutes": (time.process_time() - used) / 60,
    }


def size_of(folder: Path) -> dict[str, Any]:
    """Parameters, and those that a text uses: all but the word table."""
    model = load_student(folder)
    table = max((each.numel() for name, each in model.named_parameters() if "embedding" in name), default=0)
    return {"parameters": parameters(model), "active": parameters(model) - table}


@functools.cache
def reference(models: Path) -> dict[str, np.ndarray]:
    """The teacher's vectors of the held-out texts, by field."""
    file = WORK / EXPERIMENT / "held-out.npz"
    if not file.exists():
        model = encoder(models / MODEL)
        np.savez(file, **{field: unit(model(each)) for field, each in texts.held_out().items()})
    return dict(np.load(file))


def encoder(model: Path | str) -> CachedEncoder:
    return CachedEncoder(load_teacher(model=str(model), dtype=DTYPE))


def likeness(encode: Callable[[list[str]], Any], models: Path) -> dict[str, Any]:
    """Return the share of the teacher's ten nearest texts found, by field, with means over all and unseen ones."""
    found: dict[str, Any] = {"of_ten": {}, "order": {}}
    for field, each in texts.held_out().items():
        alike = agreement(reference(models)[field], np.asarray(encode(each)))
        found["of_ten"][field], found["order"][field] = alike["neighbours"], alike["similarity_spearman"]
    for mean, among in (("mean", texts.HELD_OUT), ("unseen", texts.UNSEEN)):
        found[mean] = {kind: float(np.mean([found[kind][field] for field in among])) for kind in ("of_ten", "order")}
    return found


def search(model: Path | str) -> dict[str, Any]:
    """Mean reciprocal rank (of ten) of the rest of a held-out text, searched by its first sentence; by field."""
    read, found = encoder(model), {}
    for field, pairs in texts.searches().items():
        asked, told = (unit(np.asarray(read(list(side)))) for side in zip(*pairs, strict=True))
        cosines = asked @ told.T
        above = (cosines > np.diag(cosines)[:, None]).sum(axis=1)
        found[field] = float(np.where(above < 10, 1 / (above + 1), 0).mean())
    return {"search": {**found, "mean": float(np.mean(list(found.values())))}}


def own_search(made: Recipe) -> dict[str, Any]:
    """Search with the trained student as it was shipped."""
    return search(Path(made.output) / "student")


def variant_search(made: Recipe, variant: str) -> dict[str, Any]:
    """Search with the trained student, shipped otherwise."""
    return search(shipped_as(made, variant))


#: What is made of a trained student without further training -> the power of the singular values of the map that it is
#: put behind, or the share of its weights beside those of all-MiniLM-L6-v2.
MAPS = {"behind its map": 1.0, "behind its map, flattened": 0.25}
SHARES = {"interpolated": 0.5}


def shipped_as(made: Recipe, variant: str) -> Path:
    """A variant of the trained student; its map into the teacher's space is that of the last checkpoint."""
    run = Path(made.output)
    folder = run.with_name(f"{run.name}-{variant}")
    if (folder / "modules.json").exists():
        return folder
    student = load_student(run / "student")
    if variant in SHARES:
        ship(interpolated(load_student(demo_teacher()), student, SHARES[variant]), folder)
        return folder
    last = max((run / "checkpoints").glob("checkpoint-*"), key=lambda each: int(each.name.rpartition("-")[2]))
    weight = load_file(last / "model.safetensors")["method.heads.0.weight"]
    learnt = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    learnt.weight.data = flattened(weight, MAPS[variant])
    ship(student, folder, teacher_map=learnt)
    return folder


def variant_row(made: Recipe, models: Path, variant: str) -> dict[str, Any]:
    """The trained student, shipped otherwise, on all."""
    folder, seen = shipped_as(made, variant), set(open_corpus(made).texts())
    about = {**size_of(folder), "texts": len(seen), "epochs": made.training.epochs}
    return {**about, **likeness(encoder(folder), models), **judged(models, folder.name, folder, seen)}


def start_row(models: Path) -> dict[str, Any]:
    """all-MiniLM-L6-v2 as it is on what choices are made by."""
    return {**size_of(Path(demo_teacher())), **likeness(encoder(demo_teacher()), models)}


def mapped_row(made: Recipe, models: Path) -> dict[str, Any]:
    """all-MiniLM-L6-v2 with the linear map that fits a corpus best: training in the teacher's space starts so."""
    corpus, teacher, _ = taught(made)
    lines, student = corpus.texts(corpus.train_rows), encoder(demo_teacher())
    vectors = [torch.from_numpy(np.asarray(read(lines))) for read in (student, teacher.encoder(corpus))]
    mapped = RidgeMapped(student, ridge_map(*vectors).numpy().T)
    return {**size_of(Path(demo_teacher())), "texts": len(corpus), **likeness(mapped, models)}


def probe_row(made: Recipe, models: Path) -> dict[str, Any]:
    """A training, and what a choice is made by."""
    folder, about = trained(made)
    return {**about, **likeness(encoder(folder), models)}


@functools.cache
def source(models: Path | None) -> tuple[Any, list[str], PassCache]:
    """A model to cut, texts that its cuts are fitted to, and what is kept between them."""
    model = load_student(models / MODEL if models else demo_teacher())
    model.max_seq_length = 256
    fields = texts.fields()
    few = [text for field, share in texts.FIELDS.items() for text in fields[field][texts.HELD :][: 4 * share]]
    return model, few, PassCache()


def shape_row(models: Path, shape: dict[str, Any], own: bool) -> dict[str, Any]:
    """An untrained shape, cut out of the teacher (`own`) or of all-MiniLM-L6-v2."""
    model, fitted, seen = source(models if own else None)
    narrow = {} if own else {"positions": 256}
    student, report = shrink(model, texts=fitted, seen=seen, **narrow, **shape)
    student.eval()
    return {"parameters": report.parameters_after, **likeness(student.encode, models)}


def judged(models: Path, name: str, model: Path | str, corpus: set[str]) -> dict[str, Any]:
    """A model beside the teacher and all-MiniLM-L6-v2 on all groups of tasks.

    Args:
        name: of its kept judgements.
        corpus: what it was trained on.
    """
    found = {}
    for group, tasks in texts.parts().items():
        both = Judgement({})
        for role, key, each in (
            ("teacher", "teacher", models / MODEL),
            ("minilm", "minilm", demo_teacher()),
            ("student", name, model),
        ):
            file = WORK / EXPERIMENT / "judged" / f"{key}-{group}.json"
            scores = kept_judgement(file, key, each, tasks).scores
            both.scores[role] = scores[key]
        found[group] = beside_teacher(both, group, tasks, corpus)
        average = "retrieval" if group == "retrieval" else "all"
        gap = both.difference("student", "minilm", average)
        found[group]["above_minilm"] = {"value": gap.value, "interval": gap.interval}
    return found


def minilm_row(models: Path) -> dict[str, Any]:
    """all-MiniLM-L6-v2 as it is, beside the teacher."""
    about = {**size_of(Path(demo_teacher())), "teacher": size_of(models / MODEL)}
    return {**about, **likeness(encoder(demo_teacher()), models), **judged(models, "minilm", demo_teacher(), set())}


def student_row(made: Recipe, models: Path) -> dict[str, Any]:
    """A trained student on all."""
    folder, about = trained(made)
    seen = set(open_corpus(made).texts())
    return {**about, **likeness(encoder(folder), models), **judged(models, Path(made.output).name, folder, seen)}


def model2vec_row(models: Path, numbers: int) -> dict[str, Any]:
    """Make and judge model2vec's own table of the teacher."""
    from model2vec.distill import distill

    folder = WORK / EXPERIMENT / f"model2vec-{numbers}"
    begun = time.perf_counter()
    if not folder.exists():
        distill(str(models / MODEL), pca_dims=numbers).save_pretrained(folder)
    about = {"minutes": (time.perf_counter() - begun) / 60, **size_of(folder)}
    return {**about, **likeness(encoder(folder), models), **judged(models, folder.name, folder, set())}


def table_recipe(models: Path, count: int, seed: int, epochs: float) -> dict[str, Any]:
    """The run of a table of word vectors."""
    student = {"static": {"of": NAME, "dimensions": 256}, "max_length": 256}
    made = recipe(models, student, count, seed, lr=3e-3, epochs=epochs)
    made["optimizer"]["heads_lr"] = 3e-3
    return {**made, "output": str(WORK / EXPERIMENT / f"run-{digest(made)}")}


def run_variants(row: Callable[..., None], made: Recipe, models: Path, name: str, about: dict[str, Any]) -> None:
    """A trained student and its variants, beside teacher and start, by searches; the variants on all."""
    for title, model in (("teacher", models / MODEL), ("all-MiniLM-L6-v2", demo_teacher())):
        row(f"search/{title}-0", search, model, model=title)
    row(f"search/{name}", own_search, made, **about)
    for variant in (*MAPS, *SHARES):
        row(f"search/{name}, {variant}", variant_search, made, variant, **about)
        row(f"{name}, {variant}", variant_row, made, models, variant, parts=texts.PART, **about)


def run(results: Results, options: argparse.Namespace) -> None:
    models: Path = options.models

    def row(name: str, make: Callable[..., dict[str, Any]], *given: Any, **about: Any) -> None:
        results.run(name, functools.partial(make, *given), **about)
        write_page(results.rows(), results.home)

    def built(*given: Any, **how: Any) -> tuple[Recipe, dict[str, Any]]:
        made = Recipe.build(recipe(models, *given, **how))
        return made, {"recipe": settings_of(made)}

    if options.probes:
        row("probe/all-MiniLM-L6-v2 before training-0", start_row, models, model="all-MiniLM-L6-v2")
        made, about = built(start(), PROBE, 0)
        row("probe/all-MiniLM-L6-v2 with a linear map-0", mapped_row, made, models, **about)
        for name, how in PROBES.items():
            made, about = built(start(), PROBE, 0, **how)
            row(f"probe/{name}-0", probe_row, made, models, **about)
    if options.shapes:
        for size, shapes in SHAPES.items():
            for name, shape in shapes.items():
                row(f"shape/{size}, {name}-0", shape_row, models, shape, name.startswith("mpnet"), shape=shape)
    if options.judge:
        row("all-MiniLM-L6-v2-0", minilm_row, models, model="all-MiniLM-L6-v2", parts=texts.PART)
    for seed in options.seeds:
        for size in options.sizes:
            if size == "table":
                made = Recipe.build(table_recipe(models, options.texts, seed, options.epochs))
                about = {"recipe": settings_of(made)}
            elif size == "22.7":
                made, about = built(start(), options.texts, seed, epochs=options.epochs, **BEST)
            else:
                how = {**BEST, "lr": 1e-3}
                made, about = built(cut(size), options.texts, seed, epochs=options.epochs, **how)
            row(f"trained/{size}-{seed}", probe_row, made, models, **about)
            if options.judge:
                row(f"{size}-{seed}", student_row, made, models, parts=texts.PART, **about)
            if options.variants:
                run_variants(row, made, models, f"{size}-{seed}", about)
    if options.rivals:
        row("model2vec-0", model2vec_row, models, 256, numbers=256, parts=texts.PART, version=version("model2vec"))


def main() -> None:
    parser = arguments(__file__, device=False)
    parser.add_argument("--models", type=Path, help=f"folder of {MODEL}")
    parser.add_argument("--probes", action="store_true", help="short trainings of the largest student, compared")
    parser.add_argument("--shapes", action="store_true", help="shapes of the smaller ones, before training")
    parser.add_argument(
        "--judge", action="store_true", help="teacher, all-MiniLM-L6-v2 and trained students on all sets"
    )
    parser.add_argument("--sizes", nargs="*", choices=["22.7", *SHAPES, "table"], default=[])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--texts", type=int, default=WHOLE)
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--variants", action="store_true", help="trained students, shipped in several ways")
    parser.add_argument("--rivals", action="store_true", help="model2vec's table of the teacher")
    options = parser.parse_args()
    results = Results(EXPERIMENT)
    if finished(options, results, write_page):
        return
    if options.models is None:
        raise SystemExit(f"--models names the folder of {MODEL}; see the README.md beside this script.")
    run(results, options)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
