"""The report in brief: on the terminal, and as the table of `Run.report`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distilvec.errors import printable
from distilvec.report.blocks import Block, Bullets, Chapter, Table, Warnings
from distilvec.report.grid import Cell, Grid
from distilvec.report.record import Record
from distilvec.report.render.markdown import blocks_markdown
from distilvec.report.rows import GROUP_NAMES, ModelRow, entries_of, score_cell, shown_groups
from distilvec.report.sections.scores import Scores
from distilvec.words import points

if TYPE_CHECKING:
    from rich.console import Console

    from distilvec.judging import Judgement


def brief(chapter: Chapter) -> list[Table | Bullets]:
    """The blocks of a chapter that say the most."""
    return [block for block in chapter.blocks if isinstance(block, Table | Bullets) and block.brief]


def brief_markdown(record: Record, alarms: bool = False) -> str:
    """The report in brief as Markdown, perhaps with the alarms."""
    blocks: list[Block] = [block for chapter in record.chapters() for block in brief(chapter)]
    blocks += [Warnings("Alarm", record.alarms)] if alarms else []
    return "\n\n".join(blocks_markdown(blocks))


def brief_text(record: Record) -> str:
    """The main table as plain text, and the alarms."""
    table = (record.find(Scores) or Scores()).main_grid().text()
    return printable("\n".join([table, *(f"Alarm: {alarm}" for alarm in record.alarms)]))


def show_table(record: Record) -> None:
    """Print the report in brief, and the alarms; a sentence that is an alarm stands only there."""
    console = _console()
    for number, chapter in enumerate(record.chapters()):
        for block in brief(chapter):
            if isinstance(block, Table):
                title = block.title or (chapter.title if number else record.title)
                console.print(*block.grid.fitting(console.width, title), sep="\n")
            else:
                for item in (item for item in block.items if item not in record.alarms):
                    console.print(printable(item), markup=False, highlight=False)
    for alarm in record.alarms:
        console.print(printable(f"Alarm: {alarm}"), style="bold red", markup=False, highlight=False)


def show_scores(judged: Judgement) -> None:
    """Print the scores of each model, with intervals and averages."""
    console = _console()
    console.print(*scores_grid(judged).fitting(console.width), sep="\n")


def scores_grid(judged: Judgement) -> Grid:
    rows = [ModelRow(name=name, scores=entries_of(scores)) for name, scores in judged.scores.items()]
    grid = Scores(models=rows).task_grid()
    for group in shown_groups(rows):
        made = [row.averages.get(group) for row in rows]
        name = GROUP_NAMES[group] if group in ("all", "retrieval") else f"{GROUP_NAMES[group]} average"
        if len(grid.rows) > 1 or len(shown_groups(rows)) > 1:
            grid.rows.append([Cell(name), *(Cell(score_cell(score).text) for score in made)])
    grid.rows.extend(_benchmark_rows(judged))
    return grid


def _benchmark_rows(judged: Judgement) -> list[list[Cell]]:
    """The two means of each benchmark that was run as a whole, as its leaderboard has them."""
    from distilvec.judging.benchmarks import benchmark_means

    means = [benchmark_means(list(scores.values())) for scores in judged.scores.values()]
    rows = []
    for name in dict.fromkeys(name for each in means for name in each):
        have = [each.get(name) for each in means]
        first = next(each for each in have if each is not None)
        over = ((f"{name}, mean of {first[1]} tasks", 0), (f"{name}, mean of {first[3]} types of task", 2))
        rows += [
            [Cell(words), *(Cell(points(each[place] if each else None)) for each in have)] for words, place in over
        ]
    return rows


def _console() -> Console:
    from rich.console import Console

    # A pipe or a file gets the whole table: nothing is cut at 80 columns if it is not shown in columns.
    console = Console()
    return console if console.is_terminal else Console(width=160)
