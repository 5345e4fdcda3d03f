"""Several methods in one table: means and deviations over seeds, and whether differences are more than chance."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from distilvec.errors import DistilvecError
from distilvec.judging.bootstrap import paired_bootstrap
from distilvec.judging.scores import grouped
from distilvec.report.grid import Cell, Grid
from distilvec.report.ranks import AverageRanks, make_ranking
from distilvec.report.rows import (
    GROUP_NAMES,
    GROUPS,
    ModelRow,
    ScoreDifference,
    entries_of,
    is_its_own_answer,
    shown_groups,
)
from distilvec.words import ABSENT, points, signed

if TYPE_CHECKING:
    from distilvec.judging import Score


@dataclass(frozen=True)
class Entry:
    """A method's value in one column: mean over seeds, how many, and each.

    The sample deviation is None for one seed, and where a value is no number.
    """

    value: float
    deviation: float | None
    seeds: int
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class CompareTable:
    """Methods (rows) against tasks and averages (columns).

    Attributes:
        entries: method -> column -> entry; columns are task names and `GROUPS`; a task that is named like an
            average of several is "NAME (task)".
        differences: method -> column -> how much better than the reference, with the paired 95 % interval over
            the test items and, where there are several, the seeds; only where per-item results were kept.
        reference: the row that the others are compared with.
        ranking: average ranks of the methods over the tasks; None with fewer than three of them or five tasks.
    """

    entries: dict[str, dict[str, Entry]]
    differences: dict[str, dict[str, ScoreDifference]]
    reference: str
    ranking: AverageRanks | None = None

    def grid(self) -> Grid:
        """Averages first, then the average rank, then tasks, then the difference to the reference."""
        columns = list(dict.fromkeys(name for entries in self.entries.values() for name in entries))
        groups = [name for name in GROUPS if name in columns]
        tasks = [name for name in columns if name not in GROUPS]
        rows = []
        for method, entries in self.entries.items():
            means, each = ([_cell(entries.get(name)) for name in names] for names in (groups, tasks))
            place = self.ranking.average.get(method) if self.ranking else None
            rank = [Cell("" if place is None else f"{place:.2f}")] if self.ranking else []
            against = [self._against(method, name) for name in self._main(groups)]
            rows.append([Cell(method), *means, *rank, *each, *against])
        header = [GROUP_NAMES[name] for name in groups] + ["rank"] * bool(self.ranking) + tasks
        more = [f"{GROUP_NAMES[name]} − {self.reference}" for name in self._main(groups)]
        return Grid(["method", *header, *more], rows, self.statements())

    def statements(self) -> list[str]:
        """One sentence per method and average; a winner is named only where the interval supports it."""
        lines = [
            each.statement()
            for compared in self.differences.values()
            for name, each in compared.items()
            if name in ("all", "retrieval")
        ]
        if len(lines) > 1:
            lines.append(
                f"{len(lines)} differences to {self.reference} are given, each with its own 95 % interval: if nothing "
                "differs, one in twenty still leaves out zero."
            )
        return [*lines, self.ranking.statement()] if self.ranking else lines

    def csv(self) -> str:
        """A line per method and column: means, deviations and differences as fractions."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["method", "column", "mean", "deviation", "seeds", "difference", "low", "high"])
        for method, entries in self.entries.items():
            for column, entry in entries.items():
                gap = self.differences.get(method, {}).get(column)
                against = [gap.value, gap.low, gap.high] if gap else ["", "", ""]
                writer.writerow([method, column, entry.value, entry.deviation, entry.seeds, *against])
        return out.getvalue()

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = TypeAdapter(CompareTable).dump_python(self, mode="json")
        return values

    def _main(self, groups: Sequence[str]) -> list[str]:
        known = {name for compared in self.differences.values() for name in compared}
        return [name for name in ("all", "retrieval") if name in groups and name in known]

    def _against(self, method: str, name: str) -> Cell:
        gap = self.differences.get(method, {}).get(name)
        if gap is None:
            return Cell("reference" if method == self.reference else ABSENT)
        return Cell(signed(gap.value), f"{signed(gap.low)} to {signed(gap.high)}")


def compare_table(
    results: Mapping[str, Sequence[Mapping[str, Score]]], reference: str, beside: Collection[str] = ()
) -> CompareTable:
    """Compare methods that were trained on the same data with the same steps and seeds.

    Args:
        results: method -> for every seed (at least one), task -> score. All methods have the same tasks.
        reference: one of them, that the others are compared with.
        beside: rows that do not compete, as the teacher: they have no rank.

    Raises:
        DistilvecError: methods with different tasks.
    """
    tasks = list(results[reference][0])
    for method, seeds in results.items():
        for scores in seeds:
            if set(scores) != set(tasks):
                raise DistilvecError(
                    f"{method} was judged on {', '.join(sorted(scores))}, {reference} on {', '.join(sorted(tasks))}",
                    remedy="Judge all methods on the same tasks.",
                )
    rows = {
        method: [ModelRow(name=method, scores=entries_of(scores)) for scores in seeds]
        for method, seeds in results.items()
    }
    groups = shown_groups([row for seeds in rows.values() for row in seeds])
    columns = _columns(results[reference][0], groups)
    entries = {
        method: {
            **{columns[task]: _entry([row.scores[task].value for row in seeds]) for task in tasks},
            **{group: _entry([row.averages[group].value for row in seeds]) for group in groups},
        }
        for method, seeds in rows.items()
    }
    others = [method for method in results if method != reference]
    differences = {method: _differences(method, reference, results, groups, columns) for method in others}
    ranked = [method for method in results if method not in beside]
    means = {method: {task: entries[method][columns[task]].value for task in tasks} for method in ranked}
    return CompareTable(entries, differences, reference, make_ranking(means))


def _columns(scores: Mapping[str, Score], groups: Sequence[str]) -> dict[str, str]:
    """Task -> its column: another than an average of its name has, where that is of more tasks."""
    alone = {task for task in scores if task in groups and _members(scores, task) == [task]}
    return {task: f"{task} (task)" if task in GROUPS and task not in alone else task for task in scores}


def _entry(values: Sequence[float]) -> Entry:
    known = len(values) > 1 and all(map(math.isfinite, values))
    return Entry(mean(values), stdev(values) if known else None, len(values), tuple(values))


def _differences(
    method: str,
    reference: str,
    results: Mapping[str, Sequence[Mapping[str, Score]]],
    groups: Sequence[str],
    columns: Mapping[str, str],
) -> dict[str, ScoreDifference]:
    """Seed i against seed i; if the numbers of seeds differ, every seed against every seed, drawn apart.

    A row that has 100 by definition is not compared there.
    """
    own, other = results[method], results[reference]
    entries = entries_of(own[0])
    alike = len(own) == len(other)
    pairs = list(zip(own, other, strict=True)) if alike else [(a, b) for a in own for b in other]
    members = {group: list(_members(other[0], group)) for group in groups}
    differences = {}
    for name, tasks in {**{columns[task]: [task] for task in other[0]}, **members}.items():
        scores = [(a[task], b[task]) for a, b in pairs for task in tasks]
        if is_its_own_answer({task: entries[task] for task in tasks}, "retrieval"):
            continue
        if all(score.pairable for pair in scores for score in pair):
            if alike:
                runs = [[mean(a[task].value - b[task].value for task in tasks) for a, b in pairs]]
            else:
                sides = ((1, own), (-1, other))
                runs = [[sign * mean(seed[task].value for task in tasks) for seed in side] for sign, side in sides]
            gap = paired_bootstrap([a for a, _ in scores], [b for _, b in scores], runs=runs)
            differences[name] = ScoreDifference.of(method, reference, name, gap)
    return differences


def _members(scores: Mapping[str, Score], group: str) -> list[str]:
    return [task for task, score in scores.items() if group in grouped([score])]


def _cell(entry: Entry | None) -> Cell:
    if entry is None:
        return Cell(ABSENT)
    spread = "" if entry.deviation is None else f" ± {points(entry.deviation)}"
    return Cell(points(entry.value) + spread)
