"""Queries with the documents that a student is to rank."""

from __future__ import annotations

from typing import Any

from distilvec.kinds.text import Text
from distilvec.late import Late

_RUNNING, _STUDENTS = "distilvec.kinds.ranking.running", "distilvec.kinds.ranking.students"


class Ranking(Text):
    """Pairs or triplets of a query with its documents, for a student that is a cross-encoder."""

    row = "cross-encoder"
    sample = 64  # nothing starts from the student's numbers
    embeds = neighbours = False
    ranks = True
    tuned_by = "the order of held-out queries' documents"

    start = Late(f"{_STUDENTS}:ranking_start")
    tasks = Late(f"{_RUNNING}:ranking_tasks")
    student_items = Late("distilvec.kinds.ranking.token_ids:pair_items")
    metrics = Late(f"{_RUNNING}:no_metrics")
    quality = Late(f"{_RUNNING}:quality")
    ship = Late(f"{_STUDENTS}:ship_student")
    open_shipped = Late(f"{_STUDENTS}:open_shipped")
    judge = Late(f"{_RUNNING}:judge_ranking")

    def check_recipe(self, recipe: Any, command: str) -> None:
        from distilvec.kinds.ranking.running import check_ranking

        check_ranking(recipe, command)
