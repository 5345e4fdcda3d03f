"""Prompts with the answers that a student is to write."""

from __future__ import annotations

from typing import Any

from distilvec.kinds.text import Text
from distilvec.late import Late

_RUNNING, _STUDENTS = "distilvec.kinds.writing.running", "distilvec.kinds.writing.students"


class Writing(Text):
    """Pairs of a prompt and its answer, for a student that is a causal language model."""

    row = "writer"
    sample = 1024  # an answer's vector is nobody's embedding
    embeds = neighbours = False
    writes = True
    tuned_by = "the likelihood of held-out answers"

    teacher = Late("distilvec.teachers.writing:WritingTeacher")
    start = Late(f"{_STUDENTS}:writing_start")
    check_files = Late(f"{_RUNNING}:check_files")
    task_metrics = Late(f"{_RUNNING}:metric_names")
    tasks = Late(f"{_RUNNING}:writing_tasks")
    student_items = Late("distilvec.kinds.writing.token_ids:written_items")
    metrics = Late(f"{_RUNNING}:writing_metrics")
    quality = Late(f"{_RUNNING}:quality")
    ship = Late(f"{_STUDENTS}:ship_student")
    open_shipped = Late(f"{_STUDENTS}:open_shipped")
    judge = Late(f"{_RUNNING}:judge_writing")

    def check_recipe(self, recipe: Any, command: str) -> None:
        from distilvec.kinds.writing.running import check_writing

        check_writing(recipe, command)
