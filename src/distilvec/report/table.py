"""The table a person reads: one row per model, for the terminal, for markdown and for the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from distilvec.errors import printable
from distilvec.report.grid import Cell, Grid
from distilvec.report.record import Record
from distilvec.report.record_parts import ModelRow, ScoreEntry, clip
from distilvec.report.sentences import GROUP_NAMES, latency, metric, span, statement
from distilvec.words import ABSENT, millions, number, percent, points, share, size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from distilvec.judging import Judgement, Score


#: Characters of a text in a table.
LONGEST = 120


def main_grid(record: Record) -> Grid:
    """One row per model: averages (retrieval its own), what was kept, size and speed.

    No row is marked as best: the notes say which differences the intervals support.
    """
    groups = shown_groups(record.models)
    columns: list[tuple[str, Callable[[ModelRow], Cell]]] = [("model", lambda row: Cell(row.name))]
    for group in groups:
        columns.append((GROUP_NAMES[group], _score_of(group)))
        if group in ("all", "retrieval") and record.model("teacher") is not None:
            name = "kept" if group == "all" or "all" not in groups else f"{GROUP_NAMES[group]} kept"
            columns.append((name, _kept(record, group)))
    sizes: list[tuple[str, Callable[[ModelRow], Cell]]] = [
        ("parameters", lambda row: Cell(millions(row.parameters))),
        ("on disk", lambda row: Cell(size(row.size_bytes))),
        (f"{record.items}/s", lambda row: Cell(number(row.texts_per_second))),
        ("p50 / p95 ms", lambda row: Cell(latency(row))),
    ]
    columns += [column for column in sizes if any(column[1](row).text != ABSENT for row in record.models)]
    rows = [[make(row) for _, make in columns] for row in record.models]
    return Grid([name for name, _ in columns], rows, [statement(comparison) for comparison in record.comparisons])


def task_grid(record: Record) -> Grid:
    """One row per task, one column per model."""
    rows = []
    for task in record.tasks():
        entries = [row.scores.get(task) for row in record.models]
        known = next(score for score in entries if score is not None)
        facts = ", ".join(part for part in (metric(known), GROUP_NAMES.get(known.domain or "", "")) if part)
        rows.append(
            [Cell(task, facts), *(Cell(points(score.value if score else None), span(score)) for score in entries)]
        )
    return Grid(["task", *(row.name for row in record.models)], rows, [])


def supervised_grid(record: Record) -> Grid:
    """One row per model, one column per metric of the supervised task; points of a hundred."""
    metrics = list(dict.fromkeys(name for scores in record.supervised.values() for name in scores))
    rows = [
        [Cell(model), *(Cell(points(scores.get(name))) for name in metrics)]
        for model, scores in record.supervised.items()
    ]
    return Grid(["model", *(name.replace("_", " ") for name in metrics)], rows, [])


def teacher_grid(record: Record) -> Grid:
    """How well each teacher is reproduced on held-out items: one row per teacher, one column per term of its own."""
    columns = {
        "explained": "variance explained",
        "calibration": "calibration (1 is right)",
        "nll": "nll per coordinate",
        "squared_error": "squared error",
        "cosine": "cosine distance",
    }
    names = [teacher.name for teacher in record.teachers]

    def value(term: str, name: str) -> float | None:
        # The likelihood itself, where the loss is a weighted one.
        terms = ("plain_nll", "nll") if term == "nll" else (term,)
        values = (record.held_out.get(each if len(names) == 1 else f"{each}:{name}") for each in terms)
        return next((one for one in values if one is not None), None)

    shown = [term for term in columns if any(value(term, name) is not None for name in names)]
    if "explained" not in shown:
        return Grid([], [], [])
    rows = [[Cell(name), *(Cell(number(value(term, name))) for term in shown)] for name in names]
    return Grid(["teacher", *(columns[term] for term in shown)], rows, [])


def slices_grid(record: Record) -> Grid:
    """How much of the teacher's neighbourhoods the student shares, by kind of held-out item."""
    rows = [
        [
            Cell(clip(f"{record.items} {each.name}", LONGEST)),
            Cell(share(each.share)),
            Cell(share(each.neighbours)),
            Cell(f"{share(each.low)} to {share(each.high)}"),
            Cell(share(each.others)),
            Cell("below the others" if each.behind else ""),
        ]
        for each in record.slices
    ]
    return Grid([record.items, "share", "nearest neighbours found", "95 %", "by all others", ""], rows, [])


def hardest_grid(record: Record) -> Grid:
    """The held-out items on which student and teacher disagree most."""
    rows = [
        [
            Cell(clip(item.text, LONGEST)),
            Cell(share(item.overlap)),
            Cell(clip(item.teacher, LONGEST)),
            Cell(clip(item.student, LONGEST)),
        ]
        for item in record.hardest
    ]
    header = [record.items.removesuffix("s"), "shared neighbours", "nearest to the teacher", "nearest to the student"]
    return Grid(header, rows, [])


def terminal_table(record: Record) -> Table:
    """The main table for the terminal, with what the intervals support below it."""
    return main_grid(record).rich(title=record.title)


def markdown_table(record: Record) -> str:
    """The same as a pipe table."""
    return main_grid(record).markdown()


def show_table(record: Record) -> None:
    """Print the main table and the alarms."""
    console = _console()
    console.print(terminal_table(record))
    if record.supervised:
        console.print(supervised_grid(record).rich(title="The supervised task, on its test file"))
    reproduced = teacher_grid(record)
    if reproduced.rows:
        console.print(reproduced.rich(title=f"Each teacher, on held-out {record.items}"))
    if record.writing:
        from distilvec.report.writing import writing_grid

        console.print(writing_grid(record.writing).rich(title="What they write"))
    if record.compression is not None:
        console.print(record.compression.grid().rich(title="Compressed"))
    for alarm in record.alarms:
        console.print(printable(f"Alarm: {alarm}"), style="bold red", markup=False, highlight=False)


def show_scores(scores: Judgement | Mapping[str, Score] | Sequence[Score]) -> None:
    """Print the scores of one model (or of each model of a judgement), with intervals and averages."""
    _console().print(scores_grid(scores).rich())


def scores_grid(scores: Judgement | Mapping[str, Score] | Sequence[Score]) -> Grid:
    """The table behind `show_scores`."""
    if hasattr(scores, "scores"):
        models = {name: list(by_task.values()) for name, by_task in scores.scores.items()}
    else:
        models = {"score": list(scores.values()) if isinstance(scores, Mapping) else list(scores)}
    rows = [ModelRow(name=name, scores={score.task: entry_of(score) for score in own}) for name, own in models.items()]
    grid = task_grid(Record(title="scores", models=rows))
    for group in shown_groups(rows):
        made = [row.averages.get(group) for row in rows]
        name = GROUP_NAMES[group] if group in ("all", "retrieval") else f"{GROUP_NAMES[group]} average"
        if len(grid.rows) > 1 or len(shown_groups(rows)) > 1:
            grid.rows.append([Cell(name), *(Cell(points(score.value if score else None)) for score in made)])
    grid.rows.extend(_benchmark_rows(models))
    return grid


def _benchmark_rows(models: Mapping[str, list[Score]]) -> list[list[Cell]]:
    """The two means of each benchmark that was run as a whole, as its leaderboard has them."""
    from distilvec.judging.benchmarks import benchmark_means

    means = [benchmark_means(scores) for scores in models.values()]
    rows = []
    for name in dict.fromkeys(name for each in means for name in each):
        have = [each.get(name) for each in means]
        first = next(each for each in have if each is not None)
        over = ((f"{name}, mean of {first[1]} tasks", 0), (f"{name}, mean of {first[3]} types of task", 2))
        rows += [
            [Cell(words), *(Cell(points(each[place] if each else None)) for each in have)] for words, place in over
        ]
    return rows


def entry_of(score: Score) -> ScoreEntry:
    """A score of `judging` as the record keeps it."""
    low, high = score.interval if score.interval else (None, None)
    return ScoreEntry(
        metric=score.metric,
        value=score.value,
        low=low,
        high=high,
        kind=score.kind,
        domain=score.domain,
        dataset=score.details.get("dataset"),
        items=score.items,
    )


def shown_groups(models: Sequence[ModelRow]) -> list[str]:
    """The averages worth a column: in- and out-of-domain only where there are both."""
    present = {name for row in models for name in row.averages}
    both = {"in", "out"} <= present
    return [name for name in GROUP_NAMES if name in present and (both or name not in ("in", "out"))]


def _score_of(group: str) -> Callable[[ModelRow], Cell]:
    def make(row: ModelRow) -> Cell:
        score = row.averages.get(group)
        return Cell(points(score.value if score else None), span(score))

    return make


def _kept(record: Record, group: str) -> Callable[[ModelRow], Cell]:
    return lambda row: Cell(percent(record.retention(row, group)))


def _console() -> Console:
    from rich.console import Console

    # A pipe or a file gets the whole table: nothing is cut at 80 columns where nobody looks at columns.
    console = Console()
    return console if console.is_terminal else Console(width=160)
