"""The demo, small: the real teacher, real docstrings, a student of a quarter, a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distilvec.corpus import docstrings
from distilvec.errors import DistilvecError
from distilvec.flow import demo
from distilvec.flow.defaults import is_open
from distilvec.flow.demo import demo_recipe
from distilvec.flow.run import run as start
from distilvec.students import load_student, ship, shrink


@pytest.fixture(scope="module", autouse=True)
def _small_and_read_once() -> Iterator[None]:
    pairs = docstrings.docstring_pairs(limit=400)
    packages = [name for name, _ in Counter(pair["package"] for pair in pairs).most_common(6)]
    few = [{**pair, "description": pair["description"][:80]} for pair in pairs if pair["package"] in packages]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "HELD_OUT_PAIRS", 40)
        patch.setattr(docstrings, "docstring_pairs", lambda limit: few[:limit])
        yield


@pytest.mark.parametrize("cross_tokenizer", [False, True])
def test_a_small_demo_ends_with_a_student_and_a_report(
    tmp_path: Path, real_teacher_folder: Path, cross_tokenizer: bool
) -> None:
    given: dict[str, Any] = {}
    if cross_tokenizer:  # such a student is the same whoever teaches it; a layer of the teacher is quicker
        ship(shrink(load_student(real_teacher_folder, device="cpu"), layers=[1])[0], tmp_path / "teacher")
        given = {"cross_tokenizer": True, "teacher": str(tmp_path / "teacher")}
    recipe = demo_recipe(tmp_path / "out", texts=120, **given)
    recipe.training.epochs, recipe.corpus.holdout = 1, 0.2
    run = start(recipe)
    teacher, student = (run.record["scores"].model(role) for role in ("teacher", "student"))
    assert teacher is not None and student is not None
    assert student.parameters <= 22_713_216 / 4
    assert cross_tokenizer or teacher.parameters == 22_713_216 - 147_840, "without the pooler"
    assert {row.role for row in run.record["scores"].models} >= {"teacher", "untrained", "free", "student"}
    assert set(student.scores) == {"retrieval", "package", "clusters"}
    assert run.record["agreement"].values["cosine_from"] == "space"
    assert (tmp_path / "out" / "report.html").stat().st_size < 3_000_000
    assert run.student.encode(["Return the number of bytes."]).shape == (1, 384)
    text = (tmp_path / "out" / "student" / "README.md").read_text()
    assert "SentenceTransformer(" in text and ("apache-2.0" in text) != cross_tokenizer  # the teacher's licence


def test_other_settings_of_the_demo_are_the_defaults(tmp_path: Path, real_teacher_folder: Path) -> None:
    for given in ({}, {"student": "static"}, {"method": "simcse"}):
        recipe = demo_recipe(tmp_path, texts=240, **given)
        assert is_open(recipe), given
        assert recipe.optimizer.lr is recipe.training.epochs is recipe.training.batch_size is None
    assert demo_recipe(tmp_path, student="static", method="mse", texts=240).method.name == "mse"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fresh": True}, r"--fresh: .*--cross-tokenizer"),
        ({"student": "some/model", "cross_tokenizer": True}, r"--cross-tokenizer: .*--student"),
    ],
)
def test_demo_options_that_exclude_each_other_are_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DistilvecError, match=said):
        demo_recipe(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
