"""Largest Hessian eigenvalue of TALAS's objective along training, for AdamW, SAM and ASAM (the paper's Table 4).

    python experiments/sharpness.py
    python experiments/sharpness.py --rows asam --seeds 3 --device cuda
    python experiments/sharpness.py --table

Student `student-bpe`, teacher all-MiniLM-L6-v2, corpus of TALAS's protocol, all rows with one learning rate and the
same batches. At the start and at every half epoch the largest eigenvalue of the whole objective's Hessian is taken
over the encoder's parameters, in eval mode, on fixed batches of 256 texts (of at most 24 tokens: an average text has
19, and padding would be most of the work). SimCSE's two views, which would coincide in eval mode, are two passes with
dropout masks frozen by a seed each. At most 20 Lanczos steps. A row is kept when it is done, so the script goes on
where it stopped. On one core a Lanczos step takes some 13 s and a row about half an hour.
`--quick` is a few steps on a few texts, for tests.
"""

from __future__ import annotations

import argparse
import functools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import WORK, Results, arguments, finished, shared
from layout import cell, head, line
from records import Rows, seeds
from torch import Tensor

from distilvec.corpus import Corpus, read_corpus
from distilvec.corpus.batch import Batch
from distilvec.flow.demo import demo_teacher
from distilvec.flow.start import make_student
from distilvec.flow.teach import teach_one
from distilvec.flow.train import store_lookup
from distilvec.methods import parts
from distilvec.methods.table import build_method
from distilvec.optim import largest_curvature
from distilvec.recipe import OptimizerSection, StudentSection, TeacherSection, TrainingSection
from distilvec.students import StudentTap
from distilvec.teachers.signals import TeacherSignals
from distilvec.training import Collator, StoreSource, TokenizedCorpus, bfloat16_pays, fit

EXPERIMENT = "sharpness"
ROWS: dict[str, dict[str, Any] | None] = {"adamw": None, "sam": {"kind": "sam"}, "asam": {"kind": "asam"}}
#: Table 4: largest eigenvalue after 1, 3, 5, 10 and 30 epochs.
PAPER = {"adamw": (30.24, 21.48, 19.66, 18.66, 17.41), "asam": (14.89, 12.94, 11.59, 10.85, 9.93)}
ITEMS, TOKENS, BATCH = 256, 24, 32
#: Residual over eigenvalue at which Lanczos stops; the eigenvalue itself is then far closer.
TOLERANCE = 1e-2
VIEW_SEEDS = (101, 202)


class Objective:
    """TALAS's whole loss on fixed batches, the same number at the same weights.

    Args:
        collator: corpus rows -> tensors.
        batches: corpus rows of each fixed batch.
    """

    def __init__(self, collator: Collator, batches: list[np.ndarray], device: torch.device) -> None:
        self.device = device
        self.batches = [collator([int(row) for row in rows]) for rows in batches]

    def __call__(self, student: Any, method: Any, batch: dict[str, Any]) -> Tensor:
        """[] the loss; student and method are in eval mode before and after."""
        tap = StudentTap(student)
        features = {name: value.to(self.device) for name, value in batch["features"].items()}
        signals = [TeacherSignals(**{k: v.to(self.device) for k, v in t.items()}) for t in batch["teachers"]]
        keys = batch["keys"].to(self.device)
        items = Batch(keys, Batch.equal_items(keys))
        seen = tap(features, views=1, layers=True)
        assert seen.layers is not None
        views = [self._view(student, tap, features, seed) for seed in VIEW_SEEDS]
        # Without dropout both views of the anchors and of the layers' relations are one.
        twice = replace(
            seen,
            embedding=seen.embedding.expand(2, -1, -1),
            layers=seen.layers.expand(2, -1, -1, -1),
        )
        terms = method(twice, signals, items)
        contrast = parts.simcse(replace(seen, embedding=torch.cat(views)), items, method.options.temperature, 1.0)
        loss = method.options.simcse_weight * contrast.values.mean()
        for name, term in terms.items():
            if name != "simcse":
                loss = loss + term.weight * term.values.float().mean()
        return loss

    def _view(self, student: Any, tap: StudentTap, features: dict[str, Tensor], seed: int) -> Tensor:
        """[1, B, d] with dropout masks that depend on the seed alone."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            student.train()
            try:
                return tap(features, views=1).embedding
            finally:
                student.eval()

    def curvature(self, student: Any, method: Any, iterations: int) -> dict[str, float]:
        """Means over the fixed batches of the largest eigenvalue and of the loss."""
        found = [
            largest_curvature(
                lambda batch=batch: self(student, method, batch),  # type: ignore[misc]
                student.parameters(),
                iterations=iterations,
                tolerance=TOLERANCE,
            )
            for batch in self.batches
        ]
        with torch.no_grad():
            losses = [float(self(student, method, batch)) for batch in self.batches]
        return {
            "curvature": float(np.mean([each.value for each in found])),
            "converged": float(np.mean([each.converged for each in found])),
            "loss": float(np.mean(losses)),
        }


def fixed_batches(corpus: Corpus, tokens: TokenizedCorpus, count: int, items: int) -> list[np.ndarray]:
    """Corpus rows of `count` batches: seeded, distinct, of at most `TOKENS` tokens."""
    rows = np.asarray(corpus.train_rows)
    short = rows[tokens.lengths[rows] <= TOKENS]
    chosen = np.random.default_rng(7).permutation(short)[: count * items]
    return np.array_split(chosen, count)


def observer(
    objective: Objective, results: Results, seed: int, iterations: int
) -> Callable[[Any, Any], dict[str, float]]:
    """(student, method) -> curvature; the first call of a row is the start, which all rows share and one takes."""
    calls = iter(range(10**6))

    def observe(student: Any, method: Any) -> dict[str, float]:
        if next(calls):
            return objective.curvature(student, method, iterations)
        make = functools.partial(objective.curvature, student, method, iterations)
        kept = results.run(f"start-{seed}", make, seed=seed)
        return {key: kept[key] for key in ("curvature", "converged", "loss")}

    return observe


def row(name: str, seed: int, options: argparse.Namespace, results: Results) -> dict[str, Any]:
    """Train one row, with the curvature taken on the way."""
    data = shared() / "data" / "talas_corpus.jsonl.gz"
    place = WORK / ("sharpness-quick" if options.quick else "talas")
    limit = 240 if options.quick else None
    corpus = read_corpus(data, place / "corpus", domain="domain", holdout=0.0, limit=limit)
    dtype = "bfloat16" if bfloat16_pays() else "float32"
    taught = teach_one(TeacherSection(name="minilm", model=demo_teacher(), dtype=dtype), corpus, place / "stores")
    section = StudentSection(model=str(shared() / "models" / "student-bpe"), max_length=128)
    student = make_student(section, [], corpus, seed)
    tokens = TokenizedCorpus.build(student, corpus.texts, len(corpus), place / "bpe" / "tokens")
    source = StoreSource(taught.store, corpus)
    device = torch.device("cuda" if options.device != "cpu" and torch.cuda.is_available() else "cpu")
    items = 16 if options.quick else ITEMS
    objective = Objective(
        Collator(corpus, tokens, [source]), fixed_batches(corpus, tokens, options.batches, items), device
    )
    every = 4 if options.quick else len(corpus.train_rows) // BATCH // 2
    out = WORK / "sharpness" / f"{name}-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    placement = {"use_cpu": True} if device.type == "cpu" else {}
    fitted = fit(
        student,
        build_method("talas", {}),
        [taught.info],
        corpus,
        [source],
        training=TrainingSection(
            epochs=1 if options.quick else options.epochs,
            batch_size=BATCH,
            seed=seed,
            evaluate_every=every,
            eval_on_start=True,
            save_every=10**6,
            bf16=bfloat16_pays(),
            **placement,
        ),
        optimizer=OptimizerSection(lr=options.lr, heads_lr=options.lr, sharpness=ROWS[name]),
        folder=out,
        cache=place / "bpe",
        evaluate=observer(objective, results, seed, 6 if options.quick else options.iterations),
        lookup=store_lookup([taught.store]),
    )
    shutil.rmtree(out, ignore_errors=True)
    settings = {"lr": options.lr, "batches": options.batches, "items": items}
    return {"row": name, "seed": seed, **settings, "points": points(fitted.log, len(corpus.train_rows))}


def points(log: list[dict[str, Any]], texts: int) -> list[dict[str, float]]:
    """What was taken along the way, by epoch.

    Half epochs do not always end on a whole step: of two points that round to one epoch the later is kept.
    """
    found = {}
    for entry in log:
        if "eval_curvature" in entry:
            epoch = round(entry["step"] * BATCH / texts, 1)
            taken = {key: entry[f"eval_{key}"] for key in ("curvature", "converged", "loss")}
            found[epoch] = {"step": entry["step"], "epoch": epoch, **taken}
    return list(found.values())


def write_page(rows: Rows, folder: Path) -> str:
    """The Markdown table of everything that is there, also written to `table.md`."""
    found = {name: list(seeds(rows, name).values()) for name in ROWS}
    epochs = sorted({point["epoch"] for runs in found.values() for run in runs for point in run["points"]})
    lines = [HEADER, *head("optimiser", "seeds", *(f"epoch {epoch:g}" for epoch in epochs))]
    for name, runs in found.items():
        if runs:
            points = [point for run in runs for point in run["points"]]
            cells = [cell([p["curvature"] for p in points if p["epoch"] == epoch], 1) for epoch in epochs]
            lines.append(line(name, len(runs), *cells))
    lines += ["", "The paper's (MiniLM, other settings), epochs 1/3/5/10/30: "]
    lines[-1] += "; ".join(f"{name} {'/'.join(f'{value:g}' for value in values)}" for name, values in PAPER.items())
    page = "\n".join(lines) + ".\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(page)
    return page


HEADER = """# Sharpness along training

Largest eigenvalue of the Hessian of TALAS's whole objective, over the encoder's parameters (mean over fixed batches;
± is the standard deviation over seeds). Made by `python experiments/sharpness.py`; its header says how.
"""


def main() -> None:
    parser = arguments(__doc__, quick="a few steps on a few texts, kept apart")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--iterations", type=int, default=20, help="Lanczos steps at most")
    parser.add_argument("--batches", type=int, default=1, help="fixed batches of 256 texts")
    options = parser.parse_args()
    settings = {name: getattr(options, name) for name in ("epochs", "lr", "iterations", "batches", "quick")}
    results = Results(EXPERIMENT, {**settings, "items": ITEMS, "tokens": TOKENS, "bf16": bfloat16_pays()})
    if finished(options, results, write_page):
        return
    for seed in range(options.seeds):
        for name in options.rows:
            make = functools.partial(row, name, seed, options, results)
            results.run(f"{name}-{seed}", make, sharpness=ROWS[name], seed=seed)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
