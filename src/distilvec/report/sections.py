"""The sections of the page, in the order they are read."""

from __future__ import annotations

from html import escape
from typing import Any

from distilvec import words
from distilvec.report import sentences
from distilvec.report.facts import (
    Fact,
    agreement_facts,
    corpus_facts,
    cost_facts,
    recipe_text,
    scorer_facts,
    scorer_title,
    student_facts,
    teacher_facts,
    teacher_title,
)
from distilvec.report.grid import Cell, Grid
from distilvec.report.markup import bullets, card_row, fact_table, figure, table
from distilvec.report.mixtures import mixture_grid
from distilvec.report.plots import PANELS, panel_curves, point_colours
from distilvec.report.record import Record
from distilvec.report.record_parts import ScoreDifference, SpaceMap, TeacherFacts, clip
from distilvec.report.sentences import about
from distilvec.report.table import hardest_grid, main_grid, supervised_grid, task_grid, teacher_grid
from distilvec.report.writing import answers_grid, writing_grid


def sections(record: Record, drawn: dict[str, str]) -> list[tuple[str, str, str]]:
    return [
        ("scores", "What the student keeps", _scores(record, drawn)),
        ("agreement", "How far it agrees with the teacher", _agreement(record, drawn)),
        ("writing", "What they write", _writing(record)),
        ("compressed", "Compressed", _compressed(record)),
        ("training", "How training went", _training(record, drawn)),
        ("mixtures", "Inside the mixtures of experts", _mixtures(record)),
        ("cost", "What it cost", fact_table(cost_facts(record))),
        ("data", "What went in", _data(record)),
        ("models", "Teacher and student", _models(record)),
        ("again", "Running it again", _again(record)),
    ]


def _scores(record: Record, drawn: dict[str, str]) -> str:
    if not record.models:
        return ""
    text = (
        '<p class="lead">Scores are times 100; the small numbers are 95 % intervals from drawing the test items anew. '
        "“Kept” is the score in percent of the teacher's. Retrieval is never part of the average.</p>"
        + table(main_grid(record), "wide", [row.role for row in record.models])
    )
    if record.comparisons:
        items = "".join(
            f'<li><span class="{_tone(record, comparison)}">{escape(sentences.statement(comparison))}</span></li>'
            for comparison in record.comparisons
        )
        text += f'<h3>What the intervals support</h3><ul class="plain">{items}</ul>'
    if record.supervised:
        text += f"<h3>The supervised task, on its test file</h3>{table(supervised_grid(record), 'wide')}"
    if record.tasks():
        text += "<h3>Task by task</h3>"
        caption = (
            "Every task, every model. Two models whose intervals overlap may still differ: see the paired comparisons."
        )
        text += figure(drawn, "scores", caption)
        text += f"<details><summary>The same in numbers</summary>{table(task_grid(record), 'wide')}</details>"
    return text


def _tone(record: Record, comparison: ScoreDifference) -> str:
    """Better and worse are coloured against baselines only: to be worse than the teacher is what one expects."""
    teacher = record.model("teacher")
    return "" if teacher is not None and teacher.name in (comparison.a, comparison.b) else comparison.verdict


def _agreement(record: Record, drawn: dict[str, str]) -> str:
    text = ""
    facts = agreement_facts(record.agreement, record.items)
    if facts:
        items = record.agreement.get("items")
        on = (
            f" Measured on {items:,} held-out {record.items}, which are not trained on."
            if isinstance(items, int)
            else ""
        )
        if len(record.teachers) > 1:
            on += (
                f" The teacher here and below is the first, {escape(record.teachers[0].name)}, unless another is named."
            )
        text += f'<p class="lead">How much of the teacher\'s view of the {record.items} the student shares.{on}</p>'
        text += fact_table(facts)
    reproduced = teacher_grid(record)
    if reproduced.rows:
        text += f"<h3>Each teacher, on held-out {record.items}</h3>" + table(reproduced, "wide")
    if record.hardest:
        lead = f"Held-out {record.items} whose nearest neighbours among the others are not those that the teacher sees."
        text += f"<h3>Where they differ most</h3><p>{lead}</p>{table(hardest_grid(record), 'texts')}"
    if record.collapse:
        text += "<h3>Is the space in use?</h3>" + about(record.items, _collapse(record.collapse))
    if record.spaces is not None and record.spaces.texts:
        text += "<h3>Both spaces</h3>" + _map(record.spaces, record.items)
    if "layers" in drawn:
        text += "<h3>Layer by layer</h3>"
        text += figure(drawn, "layers", "1 = the two layers tell texts apart in the same way, 0 = in unrelated ways.")
    if record.alignment and "alignment" in drawn:
        tokenizers = f"the student's tokenizer and {record.alignment.name}'s"
        text += "<h3>Token by token</h3>"
        text += figure(drawn, "alignment", f"A held-out text as {tokenizers} cut it; blue pairs are compared.")
    if "tokens" in drawn:
        text += "<h3>How tokens relate</h3>"
        text += figure(drawn, "tokens", "The last block's map of the same text: teacher, student before and after.")
    return text


def _writing(record: Record) -> str:
    if not record.writing:
        return ""
    grid = writing_grid(record.writing)
    text = table(grid, "wide") + bullets(grid.notes, "plain")
    if record.written:
        text += f"<h3>A few answers</h3>{table(answers_grid(record.written), 'texts')}"
    return text


def _compressed(record: Record) -> str:
    if record.compression is None:
        return ""
    grid = record.compression.grid()
    return table(grid, "wide") + bullets(grid.notes, "plain")


def _mixtures(record: Record) -> str:
    if not record.mixtures:
        return ""
    grid = mixture_grid(record.mixtures)
    return table(grid, "wide") + bullets(grid.notes, "plain")


def _collapse(collapse: dict[str, dict[str, Any]]) -> str:
    """A small table of the signs of collapse, one row per model."""
    columns = {
        "mean_cosine": "mean cosine of two texts",
        "effective_rank": "effective rank",
        "rank_share": "of the possible",
        "hubness": "hubness",
    }
    rows = []
    for name, signs in collapse.items():
        cells = [signs.get(key) for key in columns]
        shown = [words.share(v) if k == "rank_share" else words.number(v) for k, v in zip(columns, cells, strict=True)]
        rows.append([Cell(name), *map(Cell, shown)])
    grid = Grid(["model", *columns.values()], rows, [])
    return (
        '<p class="lead">A space has collapsed when all texts are alike (mean cosine near 1) or few directions carry '
        "everything (low effective rank). Hubness: above 10, a few texts are near everything.</p>" + table(grid, "")
    )


def _map(spaces: SpaceMap, items: str) -> str:
    how = f" ({escape(spaces.projection)})" if spaces.projection else ""
    names = list(dict.fromkeys(spaces.groups or []))
    colours = dict(zip(spaces.groups or [], point_colours(spaces), strict=False)) if spaces.groups else {}
    legend = ""
    if 0 < len(names) <= 8:
        entries = (
            f'<span><i class="dot" style="background:{colours[n]}"></i>{escape(clip(n, 40))}</span>' for n in names
        )
        legend = f'<div class="legend">{"".join(entries)}</div>'
    told = "its group" if legend else "its place in the teacher's space, left to right"
    return (
        f'<figure><div id="map"></div>{legend}<p id="map-text"></p>'
        "<noscript><p>The map needs JavaScript; it is also in figures/map.svg.</p></noscript>"
        f"<figcaption>{len(spaces.texts)} {items} in the plane{how}. Point at one to see where the other space has it. "
        + about(items, f"A text's colour is {told}, in both maps. ")
        + "A plane shows only part of a space with hundreds of dimensions.</figcaption></figure>"
    )


def _training(record: Record, drawn: dict[str, str]) -> str:
    left_out = len(panel_curves(record)) - PANELS
    caption = (
        "Every term of the loss before its weight; the strong line is a running mean. "
        "Held-out measures (orange) are on what is not trained on."
        + (f" {left_out:,} more are in run.jsonl." if left_out > 0 else "")
    )
    text = figure(drawn, "training", caption)
    if "gate" in drawn:
        text += "<h3>Which experts the gate uses</h3>" + figure(drawn, "gate", "Mean over the texts of a batch.")
    if "experts" in drawn:
        text += "<h3>What the experts say</h3>"
        text += figure(drawn, "experts", "What each expert makes of held-out texts, on the two main axes of all of it.")
    return text


def _data(record: Record) -> str:
    if record.corpus is None:
        return ""
    cards = [fact_table(corpus_facts(record.corpus))]
    beside = ""
    if record.corpus.rejected:
        rejected = sorted(record.corpus.rejected.items(), key=lambda pair: -pair[1])
        beside += "<h3>Rejected rows</h3>" + fact_table([Fact(reason, f"{count:,}") for reason, count in rejected])
        beside += '<p class="small">Each is in rejected.jsonl with its line and reason.</p>'
    shared = {task: count for task, count in record.corpus.overlap.items() if count}
    if shared:
        beside += (
            "<h3>Training texts that are also evaluation texts</h3>"
            '<p class="small">Scores on these tasks may flatter every model that was trained here.</p>'
            + fact_table([Fact(task, f"{count:,}") for task, count in shared.items()])
        )
    return card_row([*cards, *([beside] if beside else [])])


def _models(record: Record) -> str:
    cards = [_teacher(teacher) for teacher in record.teachers]
    cards += [f"<h3>{escape(scorer_title(each))}</h3>{fact_table(scorer_facts(each))}" for each in record.scorers]
    if record.student is not None:
        cards.append(f"<h3>Student</h3>{fact_table(student_facts(record.student))}")
    return card_row(cards)


def _teacher(teacher: TeacherFacts) -> str:
    text = f"<h3>{escape(teacher_title(teacher))}</h3>{fact_table(teacher_facts(teacher))}"
    if teacher.warnings:
        text += f'<div class="alarms"><strong>Warnings</strong>{bullets(teacher.warnings, "")}</div>'
    if teacher.examples:
        shown = "".join(f'<pre class="example">{escape(clip(each, 600))}</pre>' for each in teacher.examples[:3])
        text += f"<details><summary>What the teacher really reads</summary>{shown}</details>"
    return text


def _again(record: Record) -> str:
    text = ""
    if record.recipe:
        shown = escape(recipe_text(record.recipe))
        text += f"<details><summary>The resolved recipe (also in recipe.yaml)</summary><pre>{shown}</pre></details>"
    facts = [Fact(name, version) for name, version in record.versions.items()]
    facts += [Fact("git", record.git)] if record.git else []
    if facts:
        text += f"<details><summary>Versions</summary>{fact_table(facts)}</details>"
    return text + (bullets(record.notes, "plain") if record.notes else "")
