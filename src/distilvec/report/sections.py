"""The sections of a report, in the order they are read; `html` and `markdown` dress them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from distilvec import words
from distilvec.report import sentences
from distilvec.report.blocks import (
    Block,
    Bullets,
    Cards,
    Facts,
    Heading,
    Listing,
    Map,
    Picture,
    Section,
    Table,
    Text,
)
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
from distilvec.report.mixtures import mixture_grid
from distilvec.report.plots import PANELS, panel_curves
from distilvec.report.record import Record
from distilvec.report.record_parts import NEIGHBOURS, ScoreDifference, TeacherFacts, clip
from distilvec.report.sentences import about
from distilvec.report.table import hardest_grid, main_grid, slices_grid, supervised_grid, task_grid, teacher_grid
from distilvec.report.writing import answers_grid, writing_grid


def sections(record: Record, drawn: Collection[str]) -> list[Section]:
    """Those that have something to say.

    Args:
        drawn: names of the figures that there are.
    """
    found = [
        Section("scores", "What the student keeps", _scores(record, drawn)),
        Section("agreement", "How far it agrees with the teacher", _agreement(record, drawn)),
        Section("writing", "What they write", _writing(record)),
        Section("compressed", "Compressed", [Table(record.compression.grid())] if record.compression else []),
        Section("training", "How training went", _training(record, drawn)),
        Section(
            "mixtures",
            "Inside the mixtures of experts",
            [Table(mixture_grid(record.mixtures))] if record.mixtures else [],
        ),
        Section("cost", "What it cost", _facts(cost_facts(record))),
        Section("data", "What went in", _data(record)),
        Section("models", "Teacher and student", _models(record)),
        Section("again", "Running it again", _again(record)),
    ]
    return [section for section in found if section.blocks]


def _facts(facts: list[Fact]) -> list[Block]:
    return [Facts(facts)] if facts else []


def _pictures(drawn: Collection[str], *pictures: tuple[str, str, str]) -> list[Block]:
    """Those of (name, heading or "", caption) that are drawn, below their headings."""
    blocks: list[Block] = []
    for name, heading, caption in pictures:
        if name in drawn:
            blocks += [*([Heading(heading)] if heading else []), Picture(name, caption)]
    return blocks


def _scores(record: Record, drawn: Collection[str]) -> list[Block]:
    if not record.models:
        return []
    blocks: list[Block] = [
        Text(
            "Scores are times 100, with 95 % intervals from drawing the test items anew. “Kept” is the score in "
            "percent of the teacher's. Retrieval is never part of the average." + _about_neighbours(record),
            "lead",
        ),
        Table(replace(main_grid(record), notes=[]), roles=[row.role for row in record.models]),
    ]
    if record.comparisons:
        said = [sentences.statement(each) for each in record.comparisons]
        tones = [_tone(record, each) for each in record.comparisons]
        blocks += [Heading("What the intervals support"), Bullets(said, tones)]
    if record.supervised:
        blocks += [Heading("The supervised task, on its test file"), Table(supervised_grid(record))]
    if record.tasks():
        caption = (
            "Every task, every model. Two models whose intervals overlap may still differ: see the paired comparisons."
        )
        blocks += [Heading("Task by task"), *_pictures(drawn, ("scores", "", caption))]
        blocks.append(Table(task_grid(record), folded="The same in numbers" if "scores" in drawn else ""))
    return blocks


def _about_neighbours(record: Record) -> str:
    if not any(NEIGHBOURS in row.averages for row in record.models):
        return ""
    chance = f"; {told}" if (told := sentences.by_chance(record.agreement)) else ""
    of = f"the teacher's ten nearest among the held-out {record.items}"
    return f" Neighbours: how many of {of} the model finds too{chance}."


def _tone(record: Record, comparison: ScoreDifference) -> str:
    """Better and worse are coloured against baselines only: to be worse than the teacher is what one expects."""
    teachers = {row.name for row in record.models if row.role == "teacher"}
    return "" if teachers & {comparison.a, comparison.b} else comparison.verdict


def _agreement(record: Record, drawn: Collection[str]) -> list[Block]:
    blocks: list[Block] = []
    facts = agreement_facts(record.agreement, record.items)
    if facts:
        text = f"How much of the teacher's view of the {record.items} the student shares."
        if isinstance(items := record.agreement.get("items"), int):
            text += f" Measured on {items:,} held-out {record.items}, which are not trained on."
        if len(record.teachers) > 1:
            text += f" The teacher here and below is the first, {record.teachers[0].name}, unless another is named."
        blocks += [Text(text, "lead"), Facts(facts)]
    reproduced = teacher_grid(record)
    if reproduced.rows:
        blocks += [Heading(f"Each teacher, on held-out {record.items}"), Table(reproduced)]
    if record.slices:
        none = "" if any(each.behind for each in record.slices) else " None is below the others by more than chance."
        lead = f"How many of the teacher's nearest neighbours it finds, by kind of held-out {record.items}.{none}"
        blocks += [Heading(about(record.items, "Which texts it knows less well")), Text(lead)]
        blocks.append(Table(slices_grid(record)))
        if remedies := sentences.slice_remedies(record):
            blocks.append(Bullets(remedies))
    if record.hardest:
        lead = f"Held-out {record.items} whose nearest neighbours among the others are not those that the teacher sees."
        blocks += [Heading("Where they differ most"), Text(lead), Table(hardest_grid(record), "texts hardest")]
    if record.collapse:
        blocks += [Heading("Is the space in use?"), *_collapse(record.collapse, record.items)]
    if record.spaces is not None and record.spaces.texts:
        blocks += [Heading("Both spaces"), Map(record.spaces, record.items)]
    tokenizers = f"the student's tokenizer and {record.alignment.name}'s" if record.alignment else "both tokenizers"
    return blocks + _pictures(
        drawn,
        ("layers", "Layer by layer", "1 = the two layers tell texts apart in the same way, 0 = in unrelated ways."),
        ("alignment", "Token by token", f"One text as {tokenizers} cut it; blue pairs are compared."),
        ("tokens", "How tokens relate", "The last block's map of the same text: teacher, student before and after."),
    )


def _collapse(collapse: dict[str, dict[str, Any]], items: str) -> list[Block]:
    """A small table of the signs of collapse, one row per model."""
    columns = {
        "mean_cosine": about(items, "mean cosine of two texts"),
        "effective_rank": "effective rank",
        "rank_share": "of the possible",
        "hubness": "hubness",
    }
    rows = []
    for name, signs in collapse.items():
        cells = [signs.get(key) for key in columns]
        shown = [words.share(v) if k == "rank_share" else words.number(v) for k, v in zip(columns, cells, strict=True)]
        rows.append([Cell(name), *map(Cell, shown)])
    text = (
        "A space has collapsed when all texts are alike (mean cosine near 1) or few directions carry everything (low "
        "effective rank). Hubness: above 10, a few texts are near everything."
    )
    return [Text(about(items, text), "lead"), Table(Grid(["model", *columns.values()], rows, []), "")]


def _writing(record: Record) -> list[Block]:
    if not record.writing:
        return []
    blocks: list[Block] = [Table(writing_grid(record.writing))]
    if record.written:
        blocks += [Heading("A few answers"), Table(answers_grid(record.written), "texts")]
    return blocks


def _training(record: Record, drawn: Collection[str]) -> list[Block]:
    left_out = len(panel_curves(record)) - PANELS
    caption = (
        "Every term of the loss before its weight; the strong line is a running mean. "
        "Held-out measures (orange) are on what is not trained on."
        + (f" {left_out:,} more are in run.jsonl." if left_out > 0 else "")
    )
    experts = "What each expert makes of held-out texts, on the two main axes of all of it."
    return _pictures(
        drawn,
        ("training", "", caption),
        ("gate", "Which experts the gate uses", "Mean over the texts of a batch."),
        ("experts", "What the experts say", experts),
    )


def _data(record: Record) -> list[Block]:
    if record.corpus is None:
        return []
    beside: list[Block] = []
    if record.corpus.rejected:
        rejected = sorted(record.corpus.rejected.items(), key=lambda pair: -pair[1])
        beside += [Heading("Rejected rows"), Facts([Fact(reason, f"{count:,}") for reason, count in rejected])]
        beside.append(Text("Each is in rejected.jsonl with its line and reason.", "small"))
    shared = {task: count for task, count in record.corpus.overlap.items() if count}
    if shared:
        beside += [
            Heading("Training texts that are also evaluation texts"),
            Text("Scores on these tasks may flatter every model that was trained here.", "small"),
            Facts([Fact(task, f"{count:,}") for task, count in shared.items()]),
        ]
    cards: list[list[Block]] = [_facts(corpus_facts(record.corpus)), beside]
    return [Cards([card for card in cards if card])]


def _models(record: Record) -> list[Block]:
    cards = [_teacher(teacher) for teacher in record.teachers]
    cards += [[Heading(scorer_title(each)), Facts(scorer_facts(each))] for each in record.scorers]
    if record.student is not None:
        cards.append([Heading("Student"), Facts(student_facts(record.student))])
    return [Cards(cards)] if cards else []


def _teacher(teacher: TeacherFacts) -> list[Block]:
    blocks: list[Block] = [Heading(teacher_title(teacher)), Facts(teacher_facts(teacher))]
    if teacher.warnings:
        blocks.append(Bullets(teacher.warnings, warning="Warnings"))
    if teacher.examples:
        blocks.append(Listing("What the teacher really reads", [clip(each, 600) for each in teacher.examples[:3]]))
    return blocks


def _again(record: Record) -> list[Block]:
    blocks: list[Block] = []
    if record.recipe:
        blocks.append(Listing("The resolved recipe (also in recipe.yaml)", [recipe_text(record.recipe)]))
    facts = [Fact(name, version) for name, version in record.versions.items()]
    facts += [Fact("git", record.git)] if record.git else []
    if facts:
        rows = [[Cell(fact.name), Cell(fact.value)] for fact in facts]
        blocks.append(Table(Grid(["package", "version"], rows, []), "facts", folded="Versions"))
    return blocks + ([Bullets(record.notes)] if record.notes else [])
