"""The demo, small: the real teacher, real docstrings, a student of a quarter, a report."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from distilvec.corpus import docstrings
from distilvec.flow import demo
from distilvec.flow.demo import demo_recipe
from distilvec.flow.run import run as start


@pytest.fixture(scope="module", autouse=True)
def _small_and_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "HELD_OUT_PAIRS", 150)
        patch.setattr(docstrings, "docstring_pairs", functools.cache(docstrings.docstring_pairs))
        yield


@pytest.mark.parametrize("cross_tokenizer", [False, True])
def test_a_small_demo_ends_with_a_student_and_a_report(
    tmp_path: Path, real_teacher_folder: Path, cross_tokenizer: bool
) -> None:
    recipe = demo_recipe(tmp_path, cross_tokenizer=cross_tokenizer, texts=600)
    recipe.training.epochs = 1
    run = start(recipe)
    teacher, student = run.record.model("teacher"), run.record.model("student")
    assert teacher is not None and student is not None
    assert student.parameters <= teacher.parameters / 4
    assert {row.role for row in run.record.models} >= {"teacher", "untrained", "free", "student"}
    assert set(student.scores) == {"retrieval", "package", "clusters"}
    assert run.record.agreement["cosine_from"] == "space"
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    assert run.student.encode(["Return the number of bytes."]).shape == (1, 384)
    text = (tmp_path / "student" / "README.md").read_text()
    assert "apache-2.0" in text and "SentenceTransformer(" in text


def test_a_method_without_a_map_keeps_its_own_space(tmp_path: Path, real_teacher_folder: Path) -> None:
    assert demo_recipe(tmp_path, method="simcse", texts=600).student.space == "own"


def test_a_static_student_is_a_table_that_cosine_trains(tmp_path: Path, real_teacher_folder: Path) -> None:
    recipe = demo_recipe(tmp_path, student="static", texts=600)
    assert recipe.student.static is not None and recipe.student.static.of == "teacher"
    assert (recipe.method.name, recipe.student.space) == ("cosine", "teacher")
    assert recipe.optimizer.lr > demo_recipe(tmp_path, texts=600).optimizer.lr
    assert demo_recipe(tmp_path, student="static", method="mse", texts=600).method.name == "mse"
