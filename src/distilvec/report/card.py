"""The model card in the student's folder: where it comes from, what it keeps, what binds it, how to load it."""

from __future__ import annotations

from pathlib import Path

from distilvec.files import write_text
from distilvec.kinds.base import find_kind
from distilvec.report.blocks import Block, Heading, Table, Text
from distilvec.report.front_matter import front_matter
from distilvec.report.grid import escape_markdown
from distilvec.report.record import Record
from distilvec.report.render import template
from distilvec.report.render.markdown import blocks_markdown
from distilvec.report.sections.corpus import CorpusFacts
from distilvec.report.sections.lineage import Lineage, forbids_commercial_use, title
from distilvec.report.sections.rerun import Rerun
from distilvec.report.sections.scores import Scores
from distilvec.report.summary import summary
from distilvec.system_errors import system_problem

BEGIN, END = "<!-- distilvec:begin -->", "<!-- distilvec:end -->"


def model_card(record: Record) -> str:
    """The part of the student's README.md that is ours."""
    lineage, rerun = record.find(Lineage) or Lineage(), record.find(Rerun) or Rerun()
    student, task = lineage.student, rerun.recipe.get("task")
    separator = task.get("separator") if isinstance(task, dict) else None
    models = [(f"the teacher {each.card.name}", each.card.licence, "vectors") for each in lineage.teachers]
    models += [(f"the scorer {each.card.name}", each.card.licence, "scores") for each in lineage.scorers]
    if student.derived or student.licence:
        models.append(("the model that this student was trained from", student.licence, ""))
    return template("card.md.j2").render(
        head="\n\n".join([f"## {escape_markdown(record.title)}", *blocks_markdown(summary(record))]),
        student=student,
        task=task,
        separator=repr("\n" if separator is None else separator),
        example=find_kind(record.items.removesuffix("s")).example,
        licences=[each for each in models if not each[1] or forbids_commercial_use(each[1])],
        numbers="\n\n".join(blocks_markdown(_numbers(record, lineage))),
    )


def _numbers(record: Record, lineage: Lineage) -> list[Block]:
    blocks: list[Block] = []
    scores, writing, corpus = record.find(Scores), record["writing"], record.find(CorpusFacts)
    if scores is not None and scores.models:
        note = Text("Scores are times 100, with 95 % intervals over the test items.")
        blocks += [Heading("Scores"), Table(scores.main_grid()), note]
        blocks += [Table(scores.task_grid())] if scores.tasks() else []
    blocks += [] if writing is None else [writing.table()]
    blocks += [Heading("Provenance"), lineage.student.facts()]
    for teacher in lineage.teachers:
        blocks += [Heading(title("Teacher", teacher)), teacher.facts()]
    for scorer in lineage.scorers:
        blocks += [Heading(title("Scorer", scorer)), scorer.facts()]
    blocks += [] if corpus is None else [Heading("Training data"), corpus.facts()]
    return [*blocks, Heading("Made with"), (record.find(Rerun) or Rerun()).made_with()]


def write_card(record: Record, folder: str | Path) -> Path:
    """Put our part into the folder's README.md: an older one is replaced, everything else stays.

    Raises:
        EnvironmentProblem: the file cannot be written.
    """
    file = Path(folder) / "README.md"
    try:
        old = (
            file.read_text(encoding="utf-8")
            if file.exists()
            else f"{front_matter(record)}\n# {escape_markdown(record.title)}\n"
        )
    except OSError as error:
        raise system_problem(error, "the model card cannot be read", file) from error
    section = f"{BEGIN}\n{model_card(record)}{END}\n"
    before, found, rest = old.partition(BEGIN)
    after = rest.partition(END)[2].lstrip("\n") if found else ""
    write_text(file, f"{before.rstrip()}\n\n{section}{after}")
    return file
