"""What a question compares: the scores of its rows by seed and set, their rates, and where they began.

Each `table.py` whose rows stand in the claims has `setting(student, results)` for its students, and `measured(results,
first, second, student)` where its figure is no difference of scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from experiments.harness.rates import at_an_end, fell, tuned
from experiments.harness.records import Rows, pairs_of_seeds
from experiments.harness.verdicts import OPEN, UNTESTED, Differences, Finding, figure, judge, untested

#: Seed -> set -> score in points; the seed is None for models that are not trained here.
Scores = Mapping[int | None, Mapping[str, float]]
#: What to know about a row, and of which row.
Note = tuple[str, str]
#: Of a comparison over fewer sets than this, sets on which options were chosen stay in it.
ENOUGH = 3
UNTRAINED = "untrained student"
#: Of experiments in which nothing is tuned.
ONE_RATE = [("one rate for all rows", "")]
END = "rate at the end of the grid"


@dataclass(frozen=True)
class Setting:
    """One student of one experiment.

    Attributes:
        scores: of a row.
        notes: what to know about a row, such as that its best rate was an end of the grid.
        start: of a row, that of the student before training; "" where there is none to compare with.
        like: the row whose rate a row takes.
        resolve: the row behind a name such as "best single"; None where rows are missing.
        chosen: the sets on whose validation data options of a row were chosen.
        stuck: the sets on which a row answers the same to everything.
        whole: the scores that a row is held against its start by, where they are not those that are compared.
        unfit: why no comparison in this setting has a verdict.
        parts: groups of sets that one metric judges, by name.
    """

    scores: Callable[[str], Scores]
    notes: Callable[[str], list[Note]]
    start: Callable[[str], str] = lambda row: ""
    like: Callable[[str], str] = str
    resolve: Callable[[str], str | None] = str
    chosen: Callable[[str], tuple[str, ...]] = lambda row: ()
    stuck: Callable[[str], set[str]] = lambda row: set()
    whole: Callable[[str], Scores] | None = None
    unfit: str = ""
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def fallen(self, row: str) -> str:
        """Why a row is withdrawn: it, or the row whose rate it takes, ended below the student before training."""
        scores, begun = self.whole or self.scores, self.start(row)
        if not begun or begun == row:
            return ""
        start = _mean(scores(begun))
        for each in dict.fromkeys((row, self.like(row))):
            reached = _mean(scores(each))
            if fell(reached, start):
                found = f"`{each}` ended at {reached:.2f}, the untrained student has {start:.2f}"
                return found if each == row else f"{found}, and `{row}` has its rate"
        return ""


def compare(setting: Setting, first: str, second: str, part: str = "", kind: str = "") -> Finding:
    """The paired difference of two rows over sets and seeds, in points. Columns of one molecule file are one set."""
    found = setting.resolve(second)
    if found is None:
        return untested(f"not every row behind the {second} is there")
    rows = {row: setting.scores(row) for row in (first, found)}
    missing = [row for row, scores in rows.items() if not scores]
    if missing:
        return untested(f"no run of {' and of '.join(missing)}")
    fallen = dict.fromkeys(reason for row in rows if (reason := setting.fallen(row)))
    if fallen:
        return untested(f"withdrawn: {'; '.join(fallen)}")
    differences = differences_of(*rows.values(), setting.parts[part] if part else ())
    if not differences:
        return untested(f"no run of {first} and {found} on one set")
    stuck = {row: setting.stuck(row) & differences.keys() for row in rows}
    left = {name: each for name, each in differences.items() if not any(name in sets for sets in stuck.values())}
    told = [*([found] if found != second else []), *([part] if part else []), *grouped(map(setting.notes, rows))]
    judged = judge(kind, left, "; ".join(told))
    judged = _without(judged, kind, left, {name for row in rows for name in setting.chosen(row)} & left.keys())
    why = [f"{row} did not train on {listed(sets)}" for row, sets in stuck.items() if sets]
    why += [setting.unfit] if setting.unfit else []
    return judged.not_tested("; ".join(why)) if why else judged


def _without(judged: Finding, kind: str, differences: Differences, chosen: set[str]) -> Finding:
    """A verdict has to stand without the sets on which options of a row were chosen, too, where enough are left."""
    rest = {name: each for name, each in differences.items() if name not in chosen}
    if not chosen or len(rest) < ENOUGH:
        return replace(judged, basis=f"{judged.basis}; options chosen on {listed(chosen)}") if chosen else judged
    other = judge(kind, rest)
    note = f"without {listed(chosen)}, on which options were chosen, {figure(other.value, other.interval)}"
    stands = judged.verdict in (other.verdict, UNTESTED)
    return replace(judged, basis=f"{judged.basis}; {note}", verdict=judged.verdict if stands else OPEN)


def differences_of(first: Scores, second: Scores, part: tuple[str, ...] = ()) -> Differences:
    """Set -> seed -> points; what is not trained here stands next to every seed."""
    made: dict[str, dict[int | None, float]] = {}
    for one, other in pairs_of_seeds(first, second):
        each: dict[str, list[float]] = {}
        for task in first[one].keys() & second[other].keys():
            if not part or task.startswith(part):
                each.setdefault(task.partition(" ")[0], []).append(first[one][task] - second[other][task])
        for name, gaps in sorted(each.items()):
            made.setdefault(name, {})[one if one is not None else other] = float(np.mean(gaps))
    return made


def grouped(notes: Iterable[list[Note]]) -> list[str]:
    """The notes of several rows, each kind once."""
    found: dict[str, list[str]] = {}
    for what, row in (note for each in notes for note in each):
        if row not in found.setdefault(what, []):
            found[what].append(row)
    return [f"{what}: {', '.join(rows)}" if any(rows) else what for what, rows in found.items()]


def end_note(rows: Rows, row: str, folder: str = "tuning") -> list[Note]:
    """Whether the best rate of a row of `tuning` was an end of the grid."""
    return [(END, row)] if at_an_end(tuned(rows, row, folder)) else []


def varied(row: str) -> str:
    """The row that rows of one teacher vary: "cosine, ours" of "cosine, ours, from minilm"."""
    return row.partition(" from ")[0].rstrip(",")


def clean(runs: Mapping) -> Scores:
    """Main metrics without the test rows that share a text with the training corpus."""
    return points({seed: run["clean"] for seed, run in runs.items()})


def points(scores: Mapping) -> Scores:
    return {seed: {name: 100 * value for name, value in run.items()} for seed, run in scores.items()}


def listed(names: Iterable[str]) -> str:
    *most, last = sorted(names)
    return f"{', '.join(most)} and {last}" if most else last


def _mean(scores: Scores) -> float:
    """Over the seeds, of the means over the sets; of nothing not a number."""
    return float(np.mean([np.mean(list(each.values())) for each in scores.values()])) if scores else float("nan")
