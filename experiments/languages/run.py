"""Small students of multilingual-e5-small; README.md explains what is trained, chosen and judged."""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.harness.records import WORK
from experiments.harness.script import Results, arguments, finished, settings_of
from experiments.languages import texts
from experiments.languages.table import write_page
from scipy.stats import spearmanr

from distilvec.flow.run import train
from distilvec.judging import CachedEncoder
from distilvec.modules.blocks import parameters
from distilvec.recipe import Recipe
from distilvec.students import PassCache, load_student, shrink
from distilvec.students.vocabulary import prune_tokenizer
from distilvec.teachers import load_teacher
from distilvec.training import bfloat16_pays

EXPERIMENT = texts.EXPERIMENT
MODEL, NAME, PROMPT = "multilingual-e5-small", "e5", "query: "
DTYPE = "bfloat16" if bfloat16_pays() else "float32"
#: Size -> languages, and the shape.
SIZES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "ten": (texts.LANGUAGES, {"layers": 10, "vocabulary": 64_000, "embedding": 64, "inner": 192}),
    "ten, first trial's shape": (
        texts.LANGUAGES,
        {"layers": 4, "vocabulary": 40_000, "embedding": 96, "inner": 768},
    ),
    "two": (texts.TWO, {"layers": 6, "vocabulary": 24_000, "embedding": 64, "inner": 176}),
}
#: Shapes of about 12 M parameters (the first has 8.6 M), compared before training.
STARTS: dict[str, dict[str, Any]] = {
    "4 layers, 40,000 x 96, inner 768": {"layers": 4, "vocabulary": 40_000, "embedding": 96, "inner": 768},
    "8 layers, 64,000 x 64, inner 384": {"layers": 8, "vocabulary": 64_000, "embedding": 64, "inner": 384},
    "6 layers, 64,000 x 96, inner 384": {"layers": 6, "vocabulary": 64_000, "embedding": 96, "inner": 384},
    "6 layers, 50,000 x 128, inner 320": {"layers": 6, "vocabulary": 50_000, "embedding": 128, "inner": 320},
    "10 layers, 64,000 x 64, inner 192": {"layers": 10, "vocabulary": 64_000, "embedding": 64, "inner": 192},
    "8 layers, 84,000 x 48, inner 384": {"layers": 8, "vocabulary": 84_000, "embedding": 48, "inner": 384},
}
#: Texts that the untrained shapes are fitted to, and languages and news sentences that they are compared on.
FITTED, SEEN, FEW = 60_000, ("de", "en", "pl", "ru", "zh"), 150
#: Numbers of pieces whose tokenisation is compared.
VOCABULARIES = (32_000, 40_000, 64_000, 80_000)
#: Probes: what differs from the ten's run. Each reads so many texts.
PROBES: dict[str, dict[str, Any]] = {
    "translations": {},
    "own language": {"translations": False},
    "AdamW": {"optimizer": {"lr": 1e-3, "muon": False}},
    "rate 1e-3": {"optimizer": {"lr": 1e-3, "muon": True}},
    "rate 4e-3": {"optimizer": {"lr": 4e-3, "muon": True}},
}
PROBE_STEPS, BATCH = 120, 128


def recipe(
    models: Path,
    size: str,
    seed: int,
    *,
    epochs: float | None = None,
    steps: int | None = None,
    translations: bool = True,
    optimizer: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The run of a size; its folder is named after all that it is made of."""
    languages, shape = SIZES[size]
    path = texts.corpus(languages, translations=translations)
    made: dict[str, Any] = {
        "corpus": {"path": str(path), "domain": "language", "teacher_text": "read", "holdout": 0.01},
        "teachers": [{"name": NAME, "model": str(models / MODEL), "dtype": DTYPE, "prompt": PROMPT}],
        "student": {"shrink": {"of": NAME, "positions": 128, **shape}, "max_length": 128, "dropout": 0.0},
        "method": [{"name": "cosine", "map": False}, {"name": "token_states", "weight": 1.0}],
        "optimizer": optimizer or {"lr": 2e-3, "muon": True},
        "training": {
            **({"max_steps": steps} if steps else {"epochs": epochs}),
            "batch_size": BATCH,
            "seed": seed,
            "adam_beta2": 0.98,
            "lr_scheduler_type": "linear",
            "warmup_steps": 0.02,
            "save_every": 100,
            "bf16": bfloat16_pays(),
        },
        "judging": {"tasks": [], "agreement": True, "speed": False},
        "cache": str(WORK / EXPERIMENT),
    }
    digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:12]
    return {**made, "output": str(WORK / EXPERIMENT / f"run-{digest}")}


def trained(made: Recipe) -> dict[str, Any]:
    """What a run cost; it is made, or gone on with, where it is not whole."""
    folder = Path(made.output) / "student"
    if not (folder / "modules.json").exists():
        train(made, resume=True)
    last = (Path(made.output) / "run.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    return {
        "parameters": parameters(load_student(folder)),
        "shape": made.student.shrink.model_dump(exclude_none=True) if made.student and made.student.shrink else {},
        "minutes": json.loads(last)["train_runtime"] / 60,  # of all calls, where it was resumed
        "texts": sum(1 for _ in Path(str(made.corpus.path)).open(encoding="utf-8")) if made.corpus else 0,
    }


def encoder(model: Path) -> CachedEncoder:
    """A model that reads with the prompt; a student of ours has it as its default."""
    prompt = PROMPT if model.name == MODEL else None
    return CachedEncoder(load_teacher(model=str(model), dtype=DTYPE, prompt=prompt))


def unit(vectors: Any) -> np.ndarray:
    found = np.asarray(vectors, dtype=np.float32)
    return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)


def found_share(model: CachedEncoder, foreign: list[str], english: list[str]) -> float:
    """Share of the sentences whose nearest English one is their own translation."""
    cosines = unit(model(foreign)) @ unit(model(english)).T
    return float((cosines.argmax(1) == np.arange(len(foreign))).mean())


def choice(model: Path, teacher: Path, languages: tuple[str, ...]) -> dict[str, Any]:
    """What students are chosen by: news sentences whose translation is found, and the cosine with the teacher."""
    news = {language: lines for language, lines in texts.news().items() if language in languages}
    student, reference = encoder(model), teacher_on_news(teacher)
    found: dict[str, Any] = {"news": {}, "cosine": {}}
    for language, lines in news.items():
        found["cosine"][language] = float((unit(student(lines)) * reference[language]).sum(1).mean())
        if language != texts.ENGLISH:
            found["news"][language] = found_share(student, lines, news[texts.ENGLISH])
    return found


@functools.cache
def teacher_on_news(teacher: Path) -> dict[str, np.ndarray]:
    file = WORK / EXPERIMENT / "news.npz"
    if not file.exists():
        model = encoder(teacher)
        np.savez(file, **{language: unit(model(lines)) for language, lines in texts.news().items()})
    return dict(np.load(file))


def judged(model: Path, languages: tuple[str, ...]) -> dict[str, Any]:
    """Language -> Spearman's correlation on STS-B, and accuracy on Tatoeba, in [0, 1]."""
    read = encoder(model)
    found: dict[str, Any] = {"stsb": {}, "tatoeba": {}}
    for language, pairs in texts.stsb().items():
        if language in languages:
            left, right = (unit(read([pair[side] for pair in pairs])) for side in (0, 1))
            found["stsb"][language] = float(spearmanr((left * right).sum(1), [pair[2] for pair in pairs]).statistic)
    for language, pairs in texts.tatoeba().items():
        if language in languages:
            found["tatoeba"][language] = found_share(read, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
    return found


def vocabulary_row(models: Path, vocabulary: int, pooled: bool) -> dict[str, Any]:
    """What so many pieces keep, counted by language or over all texts together."""
    rows = [json.loads(line) for line in texts.corpus().read_text(encoding="utf-8").splitlines()]
    numbers = None if pooled else [texts.LANGUAGES.index(row["language"]) for row in rows]
    whole = load_student(models / MODEL).tokenizer
    pruned = prune_tokenizer(whole, [row["text"] for row in rows], vocabulary, domains=numbers)
    return {"cut": cuts(pruned.tokenizer, whole, texts.LANGUAGES)}


def cuts(ours: Any, theirs: Any, languages: tuple[str, ...]) -> dict[str, Any]:
    """Language -> share of its news and of STS-B's validation sentences with exactly the teacher's pieces."""
    sources = {"news": texts.news()}
    sources["stsb"] = {language: [p[0] for p in pairs] for language, pairs in texts.stsb("validation", 500).items()}
    found: dict[str, Any] = {}
    for name, of in sources.items():
        found[name] = {}
        for language in languages:
            lines = of.get(language, [])
            same = [ours.tokenize(line) == theirs.tokenize(line) for line in lines]
            if lines:
                found[name][language] = float(np.mean(same))
    return found


def teacher_row(models: Path) -> dict[str, Any]:
    """The teacher on all."""
    languages = texts.LANGUAGES
    return {
        "parameters": parameters(load_student(models / MODEL)),
        "news": choice(models / MODEL, models / MODEL, languages)["news"],
        **judged(models / MODEL, languages),
    }


@functools.cache
def source(models: Path) -> tuple[Any, list[str], list[int], PassCache]:
    """The teacher as a model to cut, texts with the numbers of their languages, and what is kept between cuts."""
    model = load_student(models / MODEL)
    model.prompts, model.default_prompt_name, model.max_seq_length = {"query": PROMPT}, "query", 128
    rows = [json.loads(line) for line in texts.corpus().read_text(encoding="utf-8").splitlines()]
    chosen = [rows[row] for row in np.random.default_rng(0).permutation(len(rows))[:FITTED]]
    numbers = [texts.LANGUAGES.index(row["language"]) for row in chosen]
    return model, [row["text"] for row in chosen], numbers, PassCache()


def start_row(models: Path, shape: dict[str, Any], pooled: bool) -> dict[str, Any]:
    """An untrained shape on a few news sentences; `pooled`: its pieces are counted over all languages together."""
    model, fitted, numbers, seen = source(models)
    student, report = shrink(
        model, positions=128, texts=fitted, domains=None if pooled else numbers, seen=seen, **shape
    )
    found: dict[str, Any] = {"parameters": report.parameters_after, "news": {}, "cosine": {}}
    news = {language: texts.news()[language][:FEW] for language in SEEN}
    vectors = {language: unit(encoded(student.eval(), lines)) for language, lines in news.items()}
    reference = seen.get("news", lambda: {name: unit(encoded(model.eval(), lines)) for name, lines in news.items()})
    for language, rows in vectors.items():
        found["cosine"][language] = float((rows * reference[language]).sum(1).mean())
        if language != texts.ENGLISH:
            nearest = (rows @ vectors[texts.ENGLISH].T).argmax(1)
            found["news"][language] = float((nearest == np.arange(FEW)).mean())
    return found


def encoded(model: Any, lines: list[str]) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bfloat16_pays()):
        return model.encode(lines, convert_to_numpy=True)


def probe_row(made: Recipe, models: Path, size: str) -> dict[str, Any]:
    """A short training, and what a choice is made by."""
    about = trained(made)
    folder = Path(made.output) / "student"
    return {**about, **choice(folder, models / MODEL, SIZES[size][0])}


def student_row(made: Recipe, models: Path, size: str) -> dict[str, Any]:
    """A trained student on all."""
    about = trained(made)
    folder, languages = Path(made.output) / "student", SIZES[size][0]
    return {
        **about,
        **choice(folder, models / MODEL, languages),
        **judged(folder, languages),
        "cut": cuts(*(load_student(each).tokenizer for each in (folder, models / MODEL)), languages),
    }


def main() -> None:
    parser = arguments(__file__, device=False)
    parser.add_argument("--models", type=Path, help="folder of multilingual-e5-small")
    parser.add_argument("--teacher", action="store_true", help="judge the teacher")
    parser.add_argument("--probes", nargs="*", choices=list(PROBES), help="short trainings; none named: all")
    parser.add_argument("--vocabularies", action="store_true", help="word pieces kept, without training")
    parser.add_argument("--starts", action="store_true", help="shapes before training")
    parser.add_argument("--sizes", nargs="*", choices=list(SIZES), default=[])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--epochs", type=float, default=1.0)
    options: argparse.Namespace = parser.parse_args()
    results = Results(EXPERIMENT)
    if finished(options, results, write_page):
        return
    if options.models is None:
        raise SystemExit("--models names the folder of multilingual-e5-small; see the header of this script.")
    if options.teacher:
        results.run("teacher-0", functools.partial(teacher_row, options.models), model=MODEL)
    for size in VOCABULARIES if options.vocabularies else ():
        for pooled in (False, True):
            row = functools.partial(vocabulary_row, options.models, size, pooled)
            name = f"vocabulary/{size:,}{', pooled' * pooled}-0"
            results.run(name, row, vocabulary=size, pooled=pooled)
    for name, shape in STARTS.items() if options.starts else ():
        for pooled in (False, True) if name == next(iter(STARTS)) else (False,):
            row = functools.partial(start_row, options.models, shape, pooled)
            results.run(f"start/{name}{', pooled' * pooled}-0", row, shape=shape, pooled=pooled)
    for name in (options.probes or PROBES) if options.probes is not None else ():
        made = Recipe.build(recipe(options.models, "ten", 0, steps=PROBE_STEPS, **PROBES[name]))
        row = functools.partial(probe_row, made, options.models, "ten")
        results.run(f"probe/{name}-0", row, recipe=settings_of(made))
    for seed in options.seeds:
        for size in options.sizes:
            made = Recipe.build(recipe(options.models, size, seed, epochs=options.epochs))
            row = functools.partial(student_row, made, options.models, size)
            results.run(f"{size}-{seed}", row, recipe=settings_of(made))
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
