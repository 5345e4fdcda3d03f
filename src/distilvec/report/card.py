"""The model card in the student's folder: where it comes from, what it keeps, what binds it, how to load it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from distilvec.errors import EnvironmentProblem
from distilvec.files import write_text
from distilvec.report.facts import (
    Fact,
    corpus_facts,
    forbids_commercial_use,
    student_facts,
    teacher_facts,
    teacher_title,
)
from distilvec.report.grid import escape_markdown
from distilvec.report.markdown import fact_table
from distilvec.report.record import Record
from distilvec.report.sentences import verdict
from distilvec.report.table import main_grid, task_grid
from distilvec.report.writing import writing_grid

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
        old = file.read_text(encoding="utf-8") if file.exists() else _front_matter(record)
    except OSError as error:
        raise EnvironmentProblem(f"the model card cannot be read ({error.strerror})", where=str(file)) from error
    section = f"{BEGIN}\n{model_card(record)}{END}\n"
    before, found, rest = old.partition(BEGIN)
    after = rest.partition(END)[2].lstrip("\n") if found else ""
    write_text(file, f"{before.rstrip()}\n\n{section}{after}")
    return file


_EMBEDDER = {
    "library_name": "sentence-transformers",
    "pipeline_tag": "sentence-similarity",
    "tags": ["sentence-transformers", "feature-extraction", "sentence-similarity", "distilvec"],
}
_WRITER = {
    "library_name": "transformers",
    "pipeline_tag": "text-generation",
    "tags": ["text-generation", "distilvec"],
}


def _front_matter(record: Record) -> str:
    """What hubs read. The licence is only given where one teacher states one; without a teacher, that of the model that
    was trained.
    """
    data: dict[str, Any] = dict(_WRITER if record.student is not None and record.student.writes else _EMBEDDER)
    if record.student is not None and record.student.base:
        data["base_model"] = record.student.base
    licences = {teacher.licence for teacher in record.teachers}
    if not record.teachers and record.student is not None:
        licences = {record.student.licence}
    if len(licences) == 1 and None not in licences:
        data["license"] = licences.pop()
    return f"---\n{yaml.safe_dump(data, sort_keys=False, allow_unicode=True)}---\n\n# {escape_markdown(record.title)}\n"


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
    separator = str(task.get("separator") or "\n") if isinstance(task, dict) else "\n"
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
    """What the teachers' licences mean for whoever uses the student."""
    lines = []
    for teacher in record.teachers:
        name, licence = escape_markdown(teacher.name), escape_markdown(teacher.licence or "")
        if forbids_commercial_use(teacher.licence):
            lines.append(
                f"> **Warning:** the teacher {name} is licensed as {licence}, which forbids commercial use. "
                "A student made from its vectors may be bound by that."
            )
        elif not licence:
            lines.append(
                f"> The licence of the teacher {name} is not known. Find out before you publish or sell this student."
            )
    return lines
