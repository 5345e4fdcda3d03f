"""Sharpness-aware steps under TALAS's objective: scores, and the largest Hessian eigenvalue (Tables 4 and 9)."""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from experiments.harness.rates import best_rate
from experiments.harness.records import WORK, Results
from experiments.harness.script import arguments, finished
from experiments.sharpness.table import EXPERIMENT, ITERATIONS, OPTIMIZERS, write_page
from experiments.talas.run import GRID, SETTINGS
from experiments.talas.run import Bench as TalasBench
from torch import Tensor

from distilvec.corpus.batch import Batch
from distilvec.methods import parts
from distilvec.optim import largest_curvature
from distilvec.students import StudentTap
from distilvec.teachers.signals import TeacherSignals
from distilvec.training import Collator, TokenizedCorpus

#: Optimizer -> radii, first the one at which the rate is chosen.
RADII: dict[str, tuple[float, ...]] = {
    "sam": (0.02, 0.01, 0.05),
    "disam": (0.02, 0.01, 0.05),
    "asam": (0.5, 0.05, 0.1, 1.0),
}
#: Tried where the largest is best.
LARGER = {"sam": 0.1, "disam": 0.1, "asam": 2.0}
ITEMS, TOKENS, BATCH, POINTS = 128, 24, 32, 5
#: Batches of the objective, and their items: as many as there are held-out texts of so few tokens.
LOSS_BATCHES, LOSS_ITEMS = 8, 62
HOLDOUT = 0.05
#: Residual over eigenvalue at which Lanczos stops; the eigenvalue itself is then far closer.
TOLERANCE = 1e-2
VIEW_SEEDS = (101, 202)


def row_name(optimizer: str, rho: float | None) -> str:
    return optimizer if rho is None else f"{optimizer} {rho:g}"


ROWS: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {"adamw": ("talas", {}, None)} | {
    row_name(kind, rho): ("talas", {}, {"kind": kind, "rho": rho})
    for kind, radii in RADII.items()
    for rho in (*radii, LARGER[kind])
}


class Objective:
    """TALAS's whole loss on fixed batches, the same number at the same weights.

    Args:
        collator: corpus rows -> tensors.
        rows: corpus rows that the eigenvalue is of.
        batches: corpus rows of each batch that the objective is taken on.
        held_out: the same, of held-out rows.
    """

    def __init__(
        self,
        collator: Collator,
        rows: np.ndarray,
        batches: list[np.ndarray],
        held_out: list[np.ndarray],
        device: torch.device,
    ) -> None:
        self.device = device
        (self.batch,), self.batches, self.held_out = (
            [collator([int(row) for row in rows]) for rows in each] for each in ([rows], batches, held_out)
        )

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

    def found(self, student: Any, method: Any, iterations: int = ITERATIONS) -> dict[str, float]:
        """The largest eigenvalue, and the loss on training and on held-out texts."""
        curvature = largest_curvature(
            lambda: self(student, method, self.batch),
            student.parameters(),
            iterations=iterations,
            tolerance=TOLERANCE,
        )
        with torch.no_grad():
            losses, held_out = (
                float(np.mean([float(self(student, method, batch)) for batch in batches]))
                for batches in (self.batches, self.held_out)
            )
        return {
            "curvature": curvature.value,
            "converged": float(curvature.converged),
            "loss": losses,
            "held_out": held_out,
        }


def fixed_batches(
    rows: np.ndarray, tokens: TokenizedCorpus, count: int, items: int, longest: int = TOKENS
) -> list[np.ndarray]:
    """Corpus rows of `count` batches of so many items: seeded, distinct, of at most so many tokens."""
    short = rows[tokens.lengths[rows] <= longest]
    chosen = np.random.default_rng(7).permutation(short)[: count * items]
    assert len(chosen) == count * items, f"{len(chosen)} texts of at most {longest} tokens"
    return np.split(chosen, count)


class Bench(TalasBench):
    """TALAS's comparison with a part of its corpus held out.

    Args:
        quick: a few steps on a few texts, kept apart.
    """

    rows, like, holdout = ROWS, {}, HOLDOUT

    def __init__(self, epochs: float, results: Results, quick: bool, device: str | None) -> None:
        self.quick, self.device, self.work = quick, device, results.work
        self.limit = 240 if quick else None
        super().__init__("bpe" if quick else "embedder", results)
        self.whole = epochs

    def chosen(self, optimizer: str) -> tuple[float | None, float]:
        """Radius and rate; DISAM has those of SAM."""
        optimizer = "sam" if optimizer == "disam" else optimizer
        if self.quick:
            return RADII.get(optimizer, (None,))[0], GRID[-1]
        radii = RADII.get(optimizer, (None,))
        lr = self.rate(optimizer)
        reached = {rho: self.tuned(row_name(optimizer, rho), lr, self.device) for rho in radii}
        best = max(reached, key=reached.__getitem__)
        if best is not None and best == max(radii):
            reached[LARGER[optimizer]] = self.tuned(row_name(optimizer, LARGER[optimizer]), lr, self.device)
        return max(reached, key=reached.__getitem__), lr

    def rate(self, optimizer: str) -> float:
        """The best at the first radius."""
        first = row_name(optimizer, RADII.get(optimizer, (None,))[0])
        return best_rate(lambda rate: self.tuned(first, rate, self.device), GRID)

    def optimized(self, optimizer: str, seed: int) -> None:
        """A row: trained, looked at on the way, judged."""
        rho, lr = self.chosen(optimizer)
        row = row_name(optimizer, rho)
        make = functools.partial(self.looked_at, row, rho, lr, seed)
        about = self.options(row, lr, self.whole, seed)
        self.results.run(f"{self.whole:g}/{optimizer}-{seed}", make, **about, items=ITEMS, points=POINTS)

    def looked_at(self, row: str, rho: float | None, lr: float, seed: int) -> dict[str, Any]:
        steps = 4 * POINTS if self.quick else round(self.whole * len(self.corpus.train_rows) / BATCH)
        every = steps // POINTS
        observe = Observer(self, seed)
        student, fitted = self.train(
            row,
            lr,
            steps * BATCH / len(self.corpus.train_rows),
            seed,
            self.device,
            evaluate=observe,
            evaluate_every=every,
            eval_on_start=True,
        )
        scores = {} if self.quick else self.score({"student": self.encoder(student)})["student"]
        seen = points(fitted.log, len(self.corpus.train_rows))
        about = {"row": row, "rho": rho, "lr": lr, "seed": seed, "steps": fitted.steps}
        return {**about, "training_seconds": round(fitted.seconds - observe.seconds, 1), "points": seen, **scores}

    def objective(self, student: Any) -> Objective:
        tokens = TokenizedCorpus.build(student, self.corpus.texts, len(self.corpus), self.work / self.name / "tokens")
        items, *each = (8, 1, 2, 256) if self.quick else (ITEMS, LOSS_BATCHES, LOSS_ITEMS)
        train_rows, holdout_rows = np.asarray(self.corpus.train_rows), np.asarray(self.corpus.holdout_rows)
        (rows,) = fixed_batches(train_rows, tokens, 1, items)
        batches, held_out = (fixed_batches(rows, tokens, *each) for rows in (train_rows, holdout_rows))
        collator = Collator(self.corpus, tokens, [self.source])
        return Objective(collator, rows, batches, held_out, next(student.parameters()).device)


class Observer:
    """What is seen of a training on its way: first of the start, which all rows of a seed share and one looks at.

    Attributes:
        seconds: that looking took.
    """

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench, self.seed, self.seconds = bench, seed, 0.0
        self.objective: Objective | None = None

    def __call__(self, student: Any, method: Any) -> dict[str, float]:
        began = time.perf_counter()
        found = self._found(student, method)
        self.seconds += time.perf_counter() - began
        return found

    def _found(self, student: Any, method: Any) -> dict[str, float]:
        first = self.objective is None
        self.objective = self.objective or self.bench.objective(student)
        make = functools.partial(self.objective.found, student, method, 6 if self.bench.quick else ITERATIONS)
        if not first:
            return make()
        about = {"student": self.bench.section.model_dump(), "seed": self.seed}
        about |= {"items": ITEMS, "tokens": TOKENS, "losses": [LOSS_BATCHES, LOSS_ITEMS], "iterations": ITERATIONS}
        kept = self.bench.results.run(f"start-{self.seed}", make, **about)
        return {key: kept[key] for key in ("curvature", "converged", "loss", "held_out")}


def points(log: list[dict[str, Any]], texts: int) -> list[dict[str, float]]:
    """What was taken along the way, by epoch; of two points that round to one epoch the later is kept."""
    found = {}
    for entry in log:
        if "eval_curvature" in entry:
            taken = {key: entry[f"eval_{key}"] for key in ("curvature", "converged", "loss", "held_out")}
            epoch = round(entry["step"] * BATCH / texts, 1)
            found[epoch] = {"step": entry["step"], "epoch": epoch, **taken}
    return list(found.values())


def main() -> None:
    parser = arguments(__file__, quick="a few steps on a few texts, kept apart")
    parser.add_argument("--rows", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--epochs", type=float, default=5.0)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tune", action="store_true", help="only rates and radii")
    options = parser.parse_args()
    work = WORK / f"{EXPERIMENT}{'-quick' if options.quick else ''}"
    results = Results(EXPERIMENT, {**SETTINGS, "quick": options.quick, "holdout": HOLDOUT}, work=work)
    if finished(options, results, write_page):
        return
    bench = Bench(options.epochs, results, options.quick, options.device)
    for seed in options.seeds:
        for name in options.rows:
            if options.tune:
                print(name, *bench.chosen(name), flush=True)
            else:
                bench.optimized(name, seed)
    print(write_page(results.rows(), results.home))


if __name__ == "__main__":
    main()
