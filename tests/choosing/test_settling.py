"""A chosen student on resume: taken from the plan, or refused if it was not chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.jobs import tiny_recipe

from distilvec.choosing import settle_student
from distilvec.errors import DistilvecError
from distilvec.flow.output import output_folder


def test_resuming_with_a_student_that_was_not_chosen_is_refused(
    tmp_path: Path, tiny_bert: Path, sentences: list[str]
) -> None:
    named = tiny_recipe(tmp_path, tiny_bert, sentences[:60], student={"shrink": {"of": "tiny", "layers": 1}})
    output_folder(named, resume=False)
    auto = tiny_recipe(tmp_path, tiny_bert, sentences[:60], student={"auto": {"parameters": "20M"}})
    with pytest.raises(DistilvecError, match=r"recipe\.yaml: the student .* was not chosen, but named"):
        settle_student(auto, resume=True)
    tasks: list[Any] = auto.judging.model_dump(mode="json")["tasks"]
    section = auto.student.auto.model_dump(mode="json")  # type: ignore[union-attr]
    plan = tmp_path / "out" / "plan.json"
    plan.write_text(json.dumps({"asked": {"auto": section, "tasks": tasks}}))
    assert settle_student(auto, resume=True).student == named.student
    # Another run chose a larger one for this recipe, and was killed before it took the folder.
    row = {"name": "two layers", "section": {"shrink": {"of": "tiny", "layers": 2}}}
    plan.write_text(json.dumps({"asked": {"auto": section, "tasks": tasks}, "rows": [row], "chosen": row["name"]}))
    larger = settle_student(auto, resume=True)
    assert larger.student.shrink.layers == 2  # type: ignore[union-attr]
    with pytest.raises(DistilvecError, match=r"recipe\.yaml: .*another recipe \(student"):
        output_folder(larger, resume=True)
    plan.write_text(json.dumps({"asked": {"auto": section | {"parameters": 5e6}, "tasks": tasks}}))
    with pytest.raises(DistilvecError, match=r"plan\.json: the student .* chosen for something else"):
        settle_student(auto, resume=True)
