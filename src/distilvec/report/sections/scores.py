"""Scores of teacher, untrained student, free baseline and student, their differences, sizes and speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from distilvec.judging import FREE, TRAINED, UNTRAINED
from distilvec.judging.scores import SEARCHES, can_be_kept
from distilvec.judging.shared import SharedNeighbours
from distilvec.report.grid import Cell, Grid
from distilvec.report.plots import INK, MUTED, ROLE_COLOURS, ROLE_MARKERS, canvas, label
from distilvec.report.rows import (
    GROUP_NAMES,
    NEIGHBOURS,
    ModelRow,
    Role,
    ScoreDifference,
    ScoreEntry,
    entries_of,
    is_its_own_answer,
    score_cell,
    shown_groups,
)
from distilvec.report.sections.agreement import by_chance
from distilvec.report.sections.base import Block, Bullets, Data, Heading, Outcome, Picture, Table, Text, clip
from distilvec.report.surroundings import folder_bytes, unused_pooler
from distilvec.words import ABSENT, millions, number, percent, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from distilvec.judging import Judgement

#: Tasks of the figure, at most.
TASKS = 60
#: Characters of a model's name in a legend, and of all that stand next to each other in it.
NAME, LEGEND_WIDTH = 30, 84


class Scores(Data):
    """The judged models and their paired differences.

    `compared_on` is the number of held-out items that neighbours were looked for among.
    """

    models: list[ModelRow] = Field([])
    comparisons: list[ScoreDifference] = Field([])
    compared_on: int | None = None

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        """One row per model, and the student against each other model."""
        verdict, judged = outcome.verdict, outcome.verdict.judged
        compared = comparisons(judged, TRAINED, [name for name in judged.scores if name != TRAINED]) if judged else []
        compared += _neighbours(verdict.neighbours)
        return cls(models=_rows(outcome), comparisons=compared, compared_on=verdict.agreement.get("items"))

    def model(self, role: Role) -> ModelRow | None:
        return next((row for row in self.models if row.role == role), None)

    def tasks(self) -> list[str]:
        """All tasks: in-domain, out-of-domain, others, retrieval last; otherwise in the order they came."""
        first: dict[str, ScoreEntry] = {}
        for row in self.models:
            first |= {task: score for task, score in row.scores.items() if task not in first}
        rank = {"in": 0, "out": 1}
        return sorted(first, key=lambda t: 3 if first[t].kind in SEARCHES else rank.get(first[t].domain or "", 2))

    def retention(self, row: ModelRow, name: str) -> float | None:
        """A task's or group's score in percent of the teacher's; None if that may be next to nothing."""
        teacher = self.model("teacher")
        own, other = ({**each.scores, **each.averages}.get(name) if each else None for each in (row, teacher))
        if own is None or other is None or not math.isfinite(own.value):
            return None
        return 100 * own.value / other.value if can_be_kept(other.value, other.low) else None

    def is_the_measure(self, group: str) -> bool:
        """Tell whether the teacher has 100 on a group by definition: then the score is its own percentage."""
        teacher = self.model("teacher")
        return teacher is not None and is_its_own_answer(teacher.scores, group)

    def blocks(self) -> list[Block]:
        if not self.models:
            return []
        teachers = {row.name for row in self.models if row.role == "teacher"}
        roles = [row.role for row in self.models]
        found: list[Block] = [Text(self._lead(), "lead"), Table(self.main_grid(), roles=roles, brief=True)]
        if self.comparisons:
            # Better and worse are coloured against baselines only: a student is expected to be worse than its teacher.
            tones = ["" if teachers & {each.a, each.b} else each.verdict for each in self.comparisons]
            said = [each.statement() for each in self.comparisons]
            found += [Heading("What the intervals support"), Bullets(said, tones, brief=True)]
        if self.tasks():
            caption = "Models whose intervals overlap may still differ: see the paired comparisons."
            found += [Heading("Task by task"), Picture("scores", caption, self.figure)]
            found.append(Table(self.task_grid(), folded="The same in numbers"))
        return found

    def _lead(self) -> str:
        groups = shown_groups(self.models)
        text = "Scores are times 100, with 95 % intervals from resampling the test items."
        if self._kept_columns(groups):
            text += " “Kept” is the score in percent of the teacher's."
        if {"all", "retrieval"} <= set(groups):
            text += " Retrieval is not part of the average."
        if NEIGHBOURS in groups:
            text += (
                f" Neighbours: the share of the teacher's ten nearest among the held-out {self.items} that the model "
                f"finds{by_chance(self.compared_on, '; ')}."
            )
        return text

    def main_grid(self) -> Grid:
        """One row per model: averages (retrieval apart), what was kept, size and speed."""
        groups = shown_groups(self.models)
        kept = self._kept_columns(groups)
        columns = [("model", [Cell(row.name) for row in self.models])]
        for group in groups:
            columns.append((GROUP_NAMES[group], [score_cell(row.averages.get(group)) for row in self.models]))
            if group in kept:
                columns.append((kept[group], [Cell(percent(self.retention(row, group))) for row in self.models]))
        sizes = {
            "parameters": [millions(row.parameters) for row in self.models],
            "on disk": [size(row.size_bytes) for row in self.models],
            f"{self.items}/s": [number(row.texts_per_second) for row in self.models],
            "p50 / p95 ms": [row.latency for row in self.models],
        }
        columns += [(name, [*map(Cell, shown)]) for name, shown in sizes.items() if any(s != ABSENT for s in shown)]
        names, cells = zip(*columns, strict=True)
        return Grid(list(names), [list(row) for row in zip(*cells, strict=True)], [])

    def _kept_columns(self, groups: Sequence[str]) -> dict[str, str]:
        """Group -> its column of what was kept, without groups on which the score is that percentage itself."""
        if self.model("teacher") is None:
            return {}
        wanted = [group for group in groups if group in ("all", "retrieval") and not self.is_the_measure(group)]
        return {each: "kept" if each == wanted[0] else f"{GROUP_NAMES[each]} kept" for each in wanted}

    def task_grid(self) -> Grid:
        rows = []
        for task in self.tasks():
            entries = [row.scores.get(task) for row in self.models]
            known = next(score for score in entries if score is not None)
            what = ", ".join(part for part in (known.metric_name, GROUP_NAMES.get(known.domain or "", "")) if part)
            rows.append([Cell(task, what), *map(score_cell, entries)])
        return Grid(["task", *(row.name for row in self.models)], rows, [])

    def figure(self) -> Figure:
        """Every task's scores of all models as dots with intervals; retrieval stands apart."""
        tasks, models = self.tasks()[:TASKS], self.models
        step = 0.16 * len(models) + 0.34
        beside = _side_by_side(models)
        figure = canvas(9.2, 0.8 + 0.2 * math.ceil(len(models) / beside) + step * 0.62 * len(tasks))
        axes = figure.add_subplot()
        for position, row in enumerate(models):
            _dots(axes, row, tasks, (position - (len(models) - 1) / 2) * 0.62 / max(len(models), 1))
        axes.set_yticks(range(len(tasks)), [label(task, 34) for task in tasks])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.set_ylim(len(tasks) - 0.5, -0.5)
        axes.grid(axis="x")
        axes.set_xlabel("score × 100, with 95 % interval over the test items")
        known = [next(row.scores[task] for row in models if task in row.scores) for task in tasks]
        names = [
            GROUP_NAMES["retrieval"] if score.kind in SEARCHES else GROUP_NAMES.get(score.domain or "", "")
            for score in known
        ]
        for line, name in enumerate(names):
            if line == 0 or name != names[line - 1]:
                _divide(axes, line - 0.5, name)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=beside, handletextpad=0.3, columnspacing=1.4)
        return figure


def comparisons(judged: Judgement, student: str, others: Sequence[str]) -> list[ScoreDifference]:
    """Compare the student with each other model, on the average and on retrieval, with paired intervals.

    Nothing is compared with a model that has 100 by definition.
    """
    differences = []
    for other in others:
        entries = entries_of(judged.scores[other])
        for group in ("all", "retrieval"):
            both = group in judged.averages(student) and group in judged.averages(other)
            if both and not is_its_own_answer(entries, group) and judged.paired(student, other, group):
                gap = judged.difference(student, other, group)
                differences.append(ScoreDifference.of(student, other, group, gap))
    return differences


def _neighbours(found: Mapping[str, SharedNeighbours]) -> list[ScoreDifference]:
    """Compare the student with untrained student and free baseline, on the teacher's nearest neighbours."""
    others = [name for name in found if name != TRAINED]
    return [ScoreDifference.of(TRAINED, other, NEIGHBOURS, found[TRAINED].minus(found[other])) for other in others]


def _rows(outcome: Outcome) -> list[ModelRow]:
    """Teachers, scorers that were judged, untrained student, free baseline, student, further models, BM25.

    Before training there is no map into the teacher's space and no expert head: then the student is smaller, and is not
    timed. Otherwise it is the same network as the trained one, and the free baseline adds one small product to it.
    """
    from distilvec.students import describe_student

    verdict, judged = outcome.verdict, outcome.verdict.judged
    before, after = describe_student(outcome.untrained), describe_student(outcome.shipped)
    own = {"parameters": after["parameters"], "size_bytes": folder_bytes(outcome.folder / "student")}
    more = before["parameters"] - after["parameters"]
    speed = verdict.speed.get(TRAINED, {})
    timed = {} if more else speed
    cards = [each.teacher.card for each in outcome.taught]
    poolers = {each.teacher.card.name: unused_pooler(each.teacher.model) for each in outcome.taught}
    scorers = [each.scorer.card for each in outcome.scored if judged and each.scorer.card.name in judged.scores]
    rows = []
    for card in (*cards, *scorers):
        parameters = None if card.parameters is None else card.parameters - poolers.get(card.name, 0)
        sizes = {"parameters": parameters, "size_bytes": card.size_bytes}
        rows.append(_row(card.name, "teacher", judged, verdict.speed.get(card.name, {}), sizes))
    rows.append(_row(UNTRAINED, "untrained", judged, timed, _larger(own, more)))
    if cards and (FREE in verdict.neighbours or (judged is not None and FREE in judged.scores)):
        extra = before["width"] * cards[0].width
        rows.append(_row(FREE, "free", judged, timed, _larger(own, more + extra)))
    rows.append(_row(TRAINED, "student", judged, speed, own))
    if verdict.neighbours:
        found = {
            name: ScoreEntry(metric=NEIGHBOURS, value=each.value, low=each.interval[0], high=each.interval[1])
            for name, each in verdict.neighbours.items()
        }
        found[cards[0].name] = ScoreEntry(metric=NEIGHBOURS, value=1.0)  # by definition
        for row in rows:
            if row.name in found:
                row.averages = {NEIGHBOURS: found[row.name]}
    further = [name for name in (judged.scores if judged else ()) if name not in {FREE, *(row.name for row in rows)}]
    rows += [_row(name, "other", judged, {}, {}) for name in further]
    words = _bm25(judged)
    return [*rows, words] if words else rows


def _larger(sizes: Mapping[str, int], parameters: int) -> dict[str, int]:
    """The sizes of a model with more parameters, in float32."""
    return {"parameters": sizes["parameters"] + parameters, "size_bytes": sizes["size_bytes"] + 4 * parameters}


def _row(
    name: str, role: Role, judged: Judgement | None, speed: Mapping[str, Any], sizes: Mapping[str, int | None]
) -> ModelRow:
    scores = {} if judged is None else judged.scores.get(name, {})
    timed = {key: speed.get(key) for key in ("texts_per_second", "latency_p50_ms", "latency_p95_ms")}
    return ModelRow(name=name, role=role, scores=entries_of(scores), **timed, **sizes)


def _bm25(judged: Judgement | None) -> ModelRow | None:
    """BM25 on the retrieval tasks; None without any, if it is not installed, or if it is not measured on all of them
    (MTEB's): averages over different tasks cannot be compared.
    """
    student = judged.scores[TRAINED] if judged else {}
    scores = {
        task: ScoreEntry(metric=score.metric, value=score.details["bm25"][score.metric], kind=score.kind)
        for task, score in student.items()
        if score.details.get("bm25")
    }
    if not scores or len(scores) < sum(score.kind in SEARCHES for score in student.values()):
        return None
    return ModelRow(name="BM25", role="other", scores=scores)


def _side_by_side(models: Sequence[ModelRow]) -> int:
    """Return how many names of a legend stand next to each other without being wider than a figure."""
    widths = [len(clip(row.name, NAME)) + 4 for row in models]  # with the mark and the gap
    return len(models) if sum(widths) <= LEGEND_WIDTH else max(1, LEGEND_WIDTH // max(widths))


def _dots(axes: Axes, row: ModelRow, tasks: list[str], offset: float) -> None:
    scores = [(place, row.scores[task]) for place, task in enumerate(tasks) if task in row.scores]
    scores = [(place, score) for place, score in scores if math.isfinite(score.value)]
    heights = [place + offset for place, _ in scores]
    colour = ROLE_COLOURS[row.role]
    for height, (_, score) in zip(heights, scores, strict=True):
        if score.low is not None and score.high is not None:
            axes.plot([100 * score.low, 100 * score.high], [height, height], color=colour, linewidth=1.6)
    axes.plot(
        [100 * score.value for _, score in scores],
        heights,
        linestyle="none",
        color=colour,
        marker=ROLE_MARKERS[row.role],
        markersize=5.5,
        label=label(row.name, NAME),
    )


def _divide(axes: Axes, height: float, name: str) -> None:
    """A line above a group of tasks, with the group's name next to it."""
    if height > 0:
        axes.axhline(height, color=MUTED, linewidth=0.8)
    place: Any = {"xycoords": ("axes fraction", "data"), "xytext": (6, -1), "textcoords": "offset points"}
    axes.annotate(name, (1, height), ha="left", va="top", fontsize=8, color=MUTED, **place)
