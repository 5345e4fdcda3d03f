"""The model card in the student's folder: where it comes from, what it keeps, what binds it, how to load it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from distilvec.files import write_text
from distilvec.report.facts import (
    Fact,
    corpus_facts,
    forbids_commercial_use,
    scorer_facts,
    scorer_title,
    student_facts,
    teacher_facts,
    teacher_title,
)
from distilvec.report.front_matter import front_matter
from distilvec.report.grid import escape_markdown
from distilvec.report.markdown import fact_table
from distilvec.report.record import Record
from distilvec.report.sentences import verdict
from distilvec.report.table import main_grid, task_grid
from distilvec.report.writing import writing_grid
from distilvec.system_errors import system_problem

BEGIN, END = "<!-- distilvec:begin -->", "<!-- distilvec:end -->"


def model_card(record: Record) -> str:
    """The section that goes into the student's README.md."""
    parts = [f"## {escape_markdown(record.title)}", escape_markdown(verdict(record))]
    parts += [f"> **Alarm:** {escape_markdown(alarm)}" for alarm in record.alarms]
    parts += ["### Use", _use(record), *_licences(record)]
    if record.models:
        parts += [
            "### Scores",
            main_grid(record).markdown(),
            "Scores are times 100, with 95 % intervals over the test items.",
        ]
    if record.tasks():
        parts.append(task_grid(record).markdown())
    if record.writing:
        parts.append(writing_grid(record.writing).markdown())
    if record.student is not None:
        parts += ["### Provenance", fact_table(student_facts(record.student))]
    for teacher in record.teachers:
        parts += [f"### {escape_markdown(teacher_title(teacher))}", fact_table(teacher_facts(teacher))]
    for scorer in record.scorers:
        parts += [f"### {escape_markdown(scorer_title(scorer))}", fact_table(scorer_facts(scorer))]
    if record.corpus is not None:
        parts += ["### Training data", fact_table(corpus_facts(record.corpus))]
    method = record.recipe.get("method")
    made = [Fact("method", str(method.get("name", "")))] if isinstance(method, dict) else []
    made += [Fact("seed", str(record.seed))] if record.seed is not None else []
    made += [Fact(name, version) for name, version in record.versions.items()]
    if made:
        parts += ["### Made with", fact_table(made)]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_card(record: Record, folder: str | Path) -> Path:
    """Put the section into the folder's README.md: what else stands there stays, an older section is replaced.

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


_EXAMPLES = {
    "texts": 'vectors = model.encode(["a text", "another one"])',
    "images": 'vectors = model.encode(["a.jpg", "b.png"])  # paths or PIL images',
    "molecules": 'vectors = model.encode(["CCO", "c1ccccc1"])  # SMILES; needs rdkit and torch-geometric',
}


def _use(record: Record) -> str:
    if record.student is not None and record.student.writes:
        return _writing_use(record)
    remote = record.student is not None and record.student.remote_code
    code = ", trust_remote_code=True" if remote else ""
    lines = [
        "```python",
        "from sentence_transformers import SentenceTransformer",
        "",
        f'model = SentenceTransformer("path/to/this/folder"{code})',
        _EXAMPLES[record.items],
        "```",
    ]
    if remote:
        lines += ["", "The folder carries code of its own; `distilvec.load` opens it without `trust_remote_code`."]
    if record.recipe.get("task"):
        lines += [
            "",
            f"{'An embedder' if remote else 'A plain sentence-transformers model'}; its task head and label names are "
            "in `task/`. `distilvec.load` opens both: `model.predict(inputs)` gives labels or scores.",
        ]
    if record.student is not None and record.student.space == "teacher":
        lines += [
            "",
            "Its vectors lie in the teacher's space: its queries can be used on an index of the teacher's vectors.",
        ]
    return "\n".join(lines)


def _writing_use(record: Record) -> str:
    """How to write with a causal language model."""
    task = record.recipe.get("task")
    chosen = task.get("separator") if isinstance(task, dict) else None
    separator = "\n" if chosen is None else str(chosen)
    lines = [
        "```python",
        "from transformers import pipeline",
        "",
        'write = pipeline("text-generation", model="path/to/this/folder")',
        f'prompt = "your prompt" + {separator!r}  # what stands between prompt and answer in its training',
        'print(write(prompt, max_new_tokens=64, return_full_text=False)[0]["generated_text"])',
        "```",
    ]
    return "\n".join(lines)


def _licences(record: Record) -> Sequence[str]:
    """What the teachers' and scorers' licences mean for whoever uses the student."""
    lines = []
    given = [("teacher", "vectors", each.name, each.licence) for each in record.teachers]
    given += [("scorer", "scores", each.name, each.licence) for each in record.scorers]
    for kind, lessons, name, licence in given:
        who = f"the {kind} {escape_markdown(name)}"
        if licence and forbids_commercial_use(licence):
            lines.append(
                f"> **Warning:** {who} is licensed as {escape_markdown(licence)}, which forbids commercial use. "
                f"A student made from its {lessons} may be bound by that."
            )
        elif not licence:
            lines.append(f"> The licence of {who} is not known. Find out before you publish or sell this student.")
    own = None if record.student is None else record.student.licence
    if own and forbids_commercial_use(own):
        lines.append(
            f"> **Warning:** the model that this student was trained from is licensed as {escape_markdown(own)}, which "
            "forbids commercial use."
        )
    elif record.student is not None and record.student.derived and not own:
        lines.append(
            "> The licence of the model that this student was trained from is not known. Find out before you publish "
            "or sell this student."
        )
    return lines
