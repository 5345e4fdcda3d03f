"""Rows with a learning rate of their own: the best of a few, and of more where the best would be at an end."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from experiments.harness.records import Results, Rows, below, digest
from experiments.harness.script import arguments, settings_of
from experiments.harness.tables import head, line
from experiments.harness.verdicts import Differences, judge

from distilvec.recipe import Recipe
from distilvec.report import Record

GRID = (1e-4, 3e-4, 1e-3)
#: Beyond either end, where the best is there.
LOWER, HIGHER = (1e-4, 3e-5, 1e-5), (3e-3, 1e-2, 3e-2)


def best_rate(
    score: Callable[[float], float],
    grid: tuple[float, ...],
    *,
    extended: bool = True,
    lower: tuple[float, ...] = LOWER,
    higher: tuple[float, ...] = HIGHER,
) -> float:
    """The rate with the largest score.

    Args:
        score: of a rate, on validation data.
        extended: try further ones for as long as the best is the smallest or the largest.
        lower, higher: those, nearest first.
    """
    scores = {lr: score(lr) for lr in grid}
    for further, end in ((lower, min), (higher, max)) if extended else ():
        for lr in (each for each in further if each not in scores):
            if max(scores, key=scores.__getitem__) != end(scores):
                break
            scores[lr] = score(lr)
    return max(scores, key=scores.__getitem__)


def at_an_end(validation: Mapping[float, float]) -> bool:
    """Whether the best of several rates was the smallest or the largest, or there was one: a better may lie outside.

    Args:
        validation: rate -> score; of equals the smaller rate is the best.
    """
    if not validation:
        return False
    best = max(sorted(validation), key=validation.__getitem__)
    return best in (min(validation), max(validation))


def tuned(rows: Rows, row: str, folder: str = "tuning/") -> dict[float, float]:
    """Rate -> validation score of a row, of the names that begin with a folder."""
    return {
        run["lr"]: run["validation"] for name, run in rows.items() if name.startswith(folder) and run.get("row") == row
    }


def shown(lr: float, validation: Mapping[float, float]) -> str:
    """A rate as tables have it: with a mark where it was the smallest or the largest of those tried."""
    return f"{lr:g}{' (end)' if lr in validation and at_an_end(validation) else ''}"


#: What the mark says, for the head of a page.
ENDS = '"(end)": the rate was the smallest or the largest of those tried, so that a better one may lie outside.'


def withdrawn(rows: Mapping[str, tuple[float, float, str]]) -> list[str]:
    """A table of the rows that ended below the student before training; nothing where there is none.

    Args:
        rows: row -> what it reached, what the student had before (averages in percent without overlap), its rate.
    """
    if not rows:
        return []
    lines = ["", "Withdrawn until tuned, as they ended below the untrained student:", ""]
    lines += head("withdrawn", "ended at", "untrained", "lr")
    return lines + [line(row, f"{reached:.2f}", f"{start:.2f}", lr) for row, (reached, start, lr) in rows.items()]


def fell(reached: float, start: float) -> bool:
    """Whether a row ended below the student that it began from: it has diverged, and is withdrawn until it is tuned."""
    return reached < start


def recipe_in(folder: Path, made: dict[str, Any]) -> Recipe:
    """The recipe of these sections; its output lies in the folder and is named after all that it is made of."""
    return Recipe.build({**made, "output": str(folder / f"run-{digest(made)}")})


@dataclass(frozen=True)
class Row:
    """A method with its options.

    Attributes:
        only: the teachers that teach, with a plus between them; all where None.
        like: the row whose rate it takes.
    """

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    only: str | None = None
    like: str | None = None

    def taught_by(self, teacher: str) -> bool:
        return self.only is None or teacher in self.only.split("+")


class RatedRows:
    """Rows of an experiment, each trained at its own rate.

    Args:
        recipe: the run of a row at a rate, with a seed.
        validated: a row at a rate on validation data, at full length with seed 0; "validation" is what counts.
        judged: the row's result at a rate, with a seed.
        like: the row whose rate a row takes.
        grid: rates that every row is tried at.
    """

    def __init__(
        self,
        results: Results,
        *,
        recipe: Callable[[str, float, int], Recipe],
        validated: Callable[[str, float], dict[str, Any]],
        judged: Callable[[str, float, int], dict[str, Any]],
        like: Callable[[str], str],
        grid: tuple[float, ...] = GRID,
    ) -> None:
        self.grid = grid
        self.results, self.recipe, self.validated, self.judged, self.like = results, recipe, validated, judged, like

    def rate(self, name: str) -> float:
        """The best rate of a row, or of that which it is like."""
        return best_rate(functools.partial(self.score, self.like(name)), self.grid)

    def score(self, name: str, lr: float) -> float:
        """What a row reaches at a rate, on validation data."""
        make = functools.partial(self.validated, name, lr)
        found = self.results.run(f"tuning/{name}, {lr:g}-0", make, recipe=settings_of(self.recipe(name, lr, 0)))
        return float(found["validation"])

    def run(self, name: str, seed: int) -> None:
        """Train and judge a row."""
        lr = self.rate(name)
        make = functools.partial(self.judged, name, lr, seed)
        self.results.run(f"{name}-{seed}", make, recipe=settings_of(self.recipe(name, lr, seed)))


def make_rows(
    rated: RatedRows, names: Sequence[str], seeds: Sequence[int], page: Callable[[Rows, Path], str], *, tune: bool
) -> None:
    """Make rows one after the other, and the page anew after each.

    Args:
        tune: only the rates.
    """
    results = rated.results
    for seed in seeds:
        for name in names:
            if tune:
                print(name, rated.rate(name))
            else:
                rated.run(name, seed)
            page(results.rows(), results.home)
    print(page(results.rows(), results.home))


def beside(
    make: Callable[[], RatedRows],
    names: Sequence[str],
    seeds: Sequence[int],
    *,
    tune: bool,
    processes: int,
    before: Sequence[Callable[[], Any]] = (),
) -> None:
    """Make rows in processes beside each other, which an accelerator has room for: of each row the rates, then the
    seeds. What is made is read by whoever asks for the rows afterwards.

    Args:
        make: gives the rows; known by its name, as all that goes to another process.
        tune: only the rates.
        processes: how many there are.
        before: what is done first.
    """
    like = make().like
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:

        def done(*tasks: Callable[[], Any]) -> None:
            for each in [pool.submit(task) for task in tasks]:
                each.result()

        def row(first: str) -> None:
            done(*(functools.partial(_at_rate, make, first, lr) for lr in make().grid))
            done(functools.partial(_at_best, make, first))
            if not tune:
                alike = [name for name in names if like(name) == first]
                done(*(functools.partial(_with_seed, make, name, seed) for name in alike for seed in seeds))

        done(*before)
        with ThreadPoolExecutor(len(names)) as rows:
            list(rows.map(row, dict.fromkeys(map(like, names))))


def _at_rate(make: Callable[[], RatedRows], name: str, lr: float) -> None:
    make().score(name, lr)


def _at_best(make: Callable[[], RatedRows], name: str) -> None:
    make().rate(name)


def _with_seed(make: Callable[[], RatedRows], name: str, seed: int) -> None:
    make().run(name, seed)


def rates_table(rows: Rows) -> list[str]:
    """Row by rate: validation in percent."""
    tuning = below(rows, "tuning")
    rates = sorted({found["lr"] for found in tuning.values()})
    by_row: dict[str, dict[float, float]] = {}
    for found in tuning.values():
        by_row.setdefault(found["row"], {})[found["lr"]] = found["validation"]
    lines = head("row", *(f"{rate:g}" for rate in rates))
    for row, values in by_row.items():
        lines.append(line(row, *(f"{100 * values[rate]:.2f}" if rate in values else "" for rate in rates)))
    return lines


def rated_arguments(script: str, rows: str | None) -> argparse.ArgumentParser:
    """What scripts with rated rows take.

    Args:
        rows: default of --rows.
    """
    parser = arguments(script, device=False)
    parser.add_argument("--tune", action="store_true", help="only choose rates")
    parser.add_argument("--beside", type=int, default=1, help="trainings beside each other")
    parser.add_argument("--rows", default=rows, help="names, separated by semicolons")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    return parser


def told(student: Path, name: str, lr: float, seed: int) -> dict[str, Any]:
    """What the report of a trained student says of its training, and of its teachers on held-out items."""
    record = Record.load(student.parent)
    cost = record["cost"]
    assert cost is not None
    return {
        "row": name,
        "lr": lr,
        "seed": seed,
        "steps": cost.steps,
        "training_seconds": cost.training_seconds,
        "held_out": record["reproduced"].terms,
    }


def differences_table(found: Iterable[tuple[tuple[str, ...], Differences]]) -> list[str]:
    """Lines of what is compared, the difference in points with its interval, and over what."""
    lines = []
    for names, differences in found:
        judged = judge("better", differences)
        if judged.value is not None:
            between = f"{judged.interval[0]:+.2f} to {judged.interval[1]:+.2f}" if judged.interval else ""
            lines.append(line(*names, f"{judged.value:+.2f}", between, judged.basis))
    return lines
