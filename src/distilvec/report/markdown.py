"""report.md: the same report as the page, for terminals, repositories and mail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from distilvec.report.facts import (
    Fact,
    agreement_facts,
    corpus_facts,
    cost_facts,
    scorer_facts,
    scorer_title,
    student_facts,
    teacher_facts,
    teacher_title,
)
from distilvec.report.grid import escape_markdown
from distilvec.report.mixtures import mixture_grid
from distilvec.report.record import Record
from distilvec.report.sentences import verdict
from distilvec.report.table import hardest_grid, main_grid, supervised_grid, task_grid, teacher_grid
from distilvec.report.writing import answers_grid, writing_grid

CAPTIONS = {
    "scores": "Scores with 95 % intervals",
    "training": "Loss terms and held-out measures",
    "map": "Both spaces in the plane",
    "layers": "Similarity layer by layer",
    "alignment": "Tokens of a held-out text, aligned",
    "tokens": "How tokens relate: teacher, student before and after",
    "gate": "Weights of the gate",
    "experts": "What each expert makes of held-out texts",
}


def render_markdown(record: Record, figures: Sequence[Path] = ()) -> str:
    """The report as markdown; figures are linked as files beside it."""
    parts = [f"# {escape_markdown(record.title)}", escape_markdown(verdict(record))]
    parts += [f"> **Alarm:** {escape_markdown(alarm)}" for alarm in record.alarms]
    pictures = {file.stem: f"![{CAPTIONS.get(file.stem, file.stem)}](figures/{file.name})" for file in figures}
    if record.models:
        parts += ["## What the student keeps", main_grid(record).markdown()]
        parts += ["Scores are times 100, with 95 % intervals over the test items."]
    if record.supervised:
        parts += ["### The supervised task, on its test file", supervised_grid(record).markdown()]
    if record.tasks():
        parts += ["### Task by task", task_grid(record).markdown(), *_pictures(pictures, "scores")]
    agreement = [
        fact_table(agreement_facts(record.agreement, record.items)),
        *_pictures(pictures, "map", "layers", "alignment", "tokens"),
    ]
    if record.hardest:
        agreement += [f"### The {record.items} on which they differ most", hardest_grid(record).markdown()]
    reproduced = teacher_grid(record)
    if reproduced.rows:
        agreement += [f"### Each teacher, on held-out {record.items}", reproduced.markdown()]
    sections = [
        ("## How far it agrees with the teacher", agreement),
        ("## What they write", _writing(record)),
        ("## Compressed", [record.compression.grid().markdown()] if record.compression else []),
        ("## How training went", _pictures(pictures, "training", "gate", "experts")),
        ("## Inside the mixtures of experts", [mixture_grid(record.mixtures).markdown()] if record.mixtures else []),
        ("## What it cost", [fact_table(cost_facts(record))]),
        ("## What went in", [fact_table(corpus_facts(record.corpus)), _rejected(record)] if record.corpus else []),
        *(
            (f"## {escape_markdown(teacher_title(t))}", [fact_table(teacher_facts(t)), _list(t.warnings)])
            for t in record.teachers
        ),
        *((f"## {escape_markdown(scorer_title(s))}", [fact_table(scorer_facts(s))]) for s in record.scorers),
        ("## Student", [fact_table(student_facts(record.student))] if record.student else []),
        ("## Versions", [fact_table([Fact(name, version) for name, version in record.versions.items()])]),
        ("## Notes", [_list(record.notes)]),
    ]
    for title, body in sections:
        filled = [part for part in body if part]
        parts += [title, *filled] if filled else []
    return "\n\n".join(parts) + "\n"


def fact_table(facts: Sequence[Fact]) -> str:
    """Facts as a pipe table; empty for none."""
    if not facts:
        return ""
    explained = any(fact.meaning for fact in facts)
    lines = ["| | | |\n| --- | --- | --- |" if explained else "| | |\n| --- | --- |"]
    for fact in facts:
        cells = [fact.name, fact.value, *([fact.meaning] if explained else [])]
        lines.append("| " + " | ".join(escape_markdown(cell) for cell in cells) + " |")
    return "\n".join(lines)


def _writing(record: Record) -> list[str]:
    if not record.writing:
        return []
    grid = writing_grid(record.writing)
    answers = ["### A few answers", answers_grid(record.written).markdown()] if record.written else []
    return [grid.markdown(), *answers]


def _rejected(record: Record) -> str:
    rejected = record.corpus.rejected if record.corpus else {}
    return _list([f"rejected, {reason}: {count:,}" for reason, count in rejected.items()])


def _list(items: Sequence[str]) -> str:
    return "\n".join(f"- {escape_markdown(item)}" for item in items)


def _pictures(pictures: dict[str, str], *names: str) -> list[str]:
    return [pictures[name] for name in names if name in pictures]
