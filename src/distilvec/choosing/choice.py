"""The table of candidates, and which of them is the smallest that is predicted to keep enough."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from distilvec.choosing.measuring import GROUPS, Measured
from distilvec.choosing.prediction import (
    KINDS,
    RUNS,
    Kind,
    Prediction,
    covered,
    kind_of,
    like,
    predict,
    residuals,
    shares,
    worst,
)
from distilvec.report.grid import Cell, Grid, escape_markdown
from distilvec.showing import Shown
from distilvec.words import ABSENT

NAMES = {"all": "tasks", "retrieval": "retrieval", "agreement": "agreement"}


@dataclass(repr=False)
class Choice(Shown):
    """All candidates with what was measured, and the one that is named.

    Attributes:
        keep: share of the teacher that is to be kept, in (0, 1].
        rows: the candidates, from few parameters to many.
        read: texts that the training will read, repetitions counted.
        tasks: names of the tasks; without them, agreement decides.
        probe_steps: steps of the short training of each; 0 = none.
        notes: candidates that could not be made.
    """

    keep: float
    teacher: Measured
    rows: list[Measured]
    texts: int
    read: int
    tasks: list[str] = field(default_factory=list)
    probe_steps: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def measures(self) -> list[str]:
        """The scores that have to be kept, each for itself; agreement if there are no tasks."""
        groups = [group for group in GROUPS if any(group in row.kept.get("free", {}) for row in self.rows)]
        return groups or ["agreement"]

    @property
    def by_tasks(self) -> bool:
        return self.measures != ["agreement"]

    def start(self, row: Measured, measure: str) -> float:
        """Return what a candidate keeps without training: as it is or behind the ridge map, whichever is more."""
        return max(row.kept[way][measure] for way in ("untrained", "free") if measure in row.kept.get(way, {}))

    def prediction(self, row: Measured) -> Prediction:
        """Return what it will keep once it is trained: of tasks and of retrieval, the one that promises less."""
        probe = row.kept.get("probe", {})
        predictions = [predict(self.start(row, each), self.read, _kind(row), probe.get(each)) for each in self.measures]
        return worst(predictions)

    @property
    def chosen(self) -> Measured | None:
        """The smallest whose prediction reaches `keep`; None where none does."""
        return next((row for row in self.rows if self.prediction(row).middle >= self.keep), None)

    @property
    def best(self) -> Measured:
        """The chosen one, or the most promising where none reaches `keep`."""
        return self.chosen or max(self.rows, key=lambda row: self.prediction(row).middle)

    def verdict(self) -> str:
        row, goal = self.best, f"{100 * self.keep:g} %"
        what = "the teacher on the tasks" if self.by_tasks else "the teacher (mean cosine on held-out texts)"
        if self.chosen is None:
            return (
                f"No candidate is predicted to keep {goal} of {what}; the most promising, {row.name}, is predicted to "
                f"keep {self.prediction(row)}."
            )
        sure = next((each for each in self.rows if self.prediction(each).low >= self.keep), None)
        safer = "no candidate reaches it at the low end of its interval"
        if sure is row:
            safer = "it does so even at the low end of its interval"
        elif sure is not None:
            safer = f"the smallest that does so even at the low end of its interval is {sure.name}"
        return f"Smallest candidate predicted to keep {goal} of {what}: {row.name}, {self.prediction(row)}; {safer}."

    def how(self) -> list[str]:
        misses = [abs(miss) for miss in residuals().values()]
        behind = f"the untrained candidate with a linear map to the teacher's vectors, fitted to {self.texts:,} texts"
        own, start = f"agreement: mean cosine of {behind}, with the teacher on held-out texts.", "agreement"
        if self.by_tasks:
            own = f"free: {behind}. agreement: its mean cosine with the teacher on held-out texts. untrained: no map."
            start = "the larger of free and untrained"
        lines = [
            own,
            f"predicted: {start}, plus the share of the remaining gap that training closed in our experiments: "
            f"{self._closed()}. There, such predictions missed by {median(misses):.1f} points (median), "
            f"{max(misses):.1f} at most; with other teachers and tasks, expect more.",
        ]
        if not covered(self.read):
            lines.append(
                f"This training reads {self.read:,} texts, our shortest experiment read "
                f"{min(run.read for run in RUNS):,}: the prediction does not cover it. Measure with --probe-steps 200."
            )
        if self.probe_steps:
            lines.append(f"probe: after {self.probe_steps} steps with cosine; a whole training should reach more.")
        if not self.by_tasks:
            lines.append(
                "Without tasks only agreement is predicted. Scores on tasks fall much more slowly; a task of kind "
                "neighbours needs no labels."
            )
        return [*lines, *self.notes]

    def _closed(self) -> str:
        """Return what trainings of this length closed, for each kind of candidate that there is."""
        parts = []
        for kind in [kind for kind in KINDS if any(_kind(row) == kind for row in self.rows)]:
            low, middle, high = (f"{100 * share:.0f}" for share in shares(self.read, kind))
            parts.append(f"{kind} {middle} % ({low} to {high}; {len(like(self.read, kind))} runs)")
        return ", ".join(parts)

    def grid(self) -> Grid:
        ways = [way for way in ("untrained", "free", "probe") if any(way in row.kept for row in self.rows)]
        shown = self.measures if self.by_tasks else (["agreement"] if self.probe_steps else [])
        header = ["student", "parameters", "on disk", "texts/s", "p50 / p95 ms", "agreement"]
        header += [f"{NAMES[each]} %: {' / '.join(self._ways(each, ways))}" for each in shown]
        rows = []
        for row in [self.teacher, *self.rows]:
            cells = [*row.cells(), ABSENT if row.agreement is None else f"{row.agreement:.3f}"]
            cells += ["" if row is self.teacher else _kept(row, each, self._ways(each, ways)) for each in shown]
            rows.append([Cell(text) for text in [*cells, "" if row is self.teacher else str(self.prediction(row))]])
        return Grid([*header, "predicted"], rows, [])

    def _ways(self, measure: str, ways: list[str]) -> list[str]:
        return [way for way in ways if any(measure in row.kept.get(way, {}) for row in self.rows)]

    def text(self) -> str:
        return "\n".join([self.grid().text(), "", self.verdict(), *self.how()])

    def _named(self) -> str:
        return self.best.name

    def _repr_markdown_(self) -> str:
        return "\n\n".join([self.grid().markdown(), *map(escape_markdown, [self.verdict(), *self.how()])])

    def to_dict(self) -> dict[str, Any]:
        candidates = [asdict(row) | {"predicted": asdict(self.prediction(row))} for row in self.rows]
        return asdict(self) | {"rows": candidates, "chosen": self.best.name, "verdict": self.verdict()}


def _kind(row: Measured) -> Kind:
    return kind_of(row.section or {})


def _kept(row: Measured, measure: str, ways: list[str]) -> str:
    return " / ".join(f"{100 * row.kept[way][measure]:.1f}" for way in ways)
