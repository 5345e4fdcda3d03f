"""What the report's sections say of what is in the record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.report.example import example

from distilvec.report.blocks import Bullets
from distilvec.report.markdown import render_markdown
from distilvec.report.record import ScoreDifference, ScoreEntry
from distilvec.report.sections import sections
from distilvec.report.sentences import verdict


def test_kinds_of_texts_that_are_behind_come_with_what_helps() -> None:
    record = example()
    page = render_markdown(record)
    assert "texts cut into other pieces than the teacher's | 21.3 % | 60.1 % | 57.0 % to 63.2 % | 70.9 %" in page
    assert "below the others" in page and "a larger student.shrink.vocabulary" in page
    assert "by more than chance" not in page


def test_where_no_kind_is_behind_it_says_so_and_advises_nothing() -> None:
    record = example()
    record.slices = [replace(each, behind=False) for each in record.slices]
    page = render_markdown(record)
    assert "None is below the others by more than chance." in page
    assert "student.shrink.vocabulary" not in page.split("Where they differ most")[0].split("Which texts it knows")[1]


@pytest.mark.parametrize(
    ("student", "advice"),
    [
        ({"shrink": {"of": "teacher", "vocabulary": 5000}}, "a larger student.shrink.vocabulary."),
        (
            {"shrink": {"of": "teacher", "vocabulary": 5000, "embedding": 64}},
            "a larger student.shrink.vocabulary, at a lower rank of the table.",
        ),
        ({"static": {"of": "teacher", "vocabulary": 5000}}, "a larger student.static.vocabulary."),
        ({"model": "somebody/small"}, "a student with a larger vocabulary."),
    ],
)
def test_advice_names_keys_that_the_recipe_has(student: dict[str, Any], advice: str) -> None:
    page = render_markdown(example(recipe={"student": student}))
    assert f"Other pieces than the teacher's: {advice}" in page


def test_being_worse_than_a_second_teacher_is_no_bad_news() -> None:
    record = example()
    second = record.models[0].model_copy(update={"name": "another teacher"})
    record.models.insert(1, second)
    record.comparisons = [ScoreDifference(a="student", b="another teacher", value=-0.1, low=-0.2, high=-0.05)]
    (said,) = [each for section in sections(record, ()) for each in section.blocks if isinstance(each, Bullets)][:1]
    assert list(said.tones) == [""]


def test_the_first_sentence_without_a_teachers_scores() -> None:
    record = example()
    record.models = [row for row in record.models if row.role != "teacher"]
    assert verdict(record).startswith("The student reaches an average over 9 tasks of ")


def test_neighbours_stand_beside_untrained_student_and_free_baseline() -> None:
    """The only scores where the corpus allows no task."""
    record = example(comparisons=[])
    for row in record.models:
        row.scores, row.averages = {}, {}
    assert "neighbours" not in render_markdown(record).split("How far it agrees")[0]
    for row, value in zip(record.models, (1.0, 0.41, 0.52, 0.687), strict=True):
        row.averages = {"neighbours": ScoreEntry(value=value, low=value - 0.01, high=value + 0.01)}
    record.comparisons = [
        ScoreDifference(a="student", b="free baseline", group="neighbours", value=-0.01, low=-0.02, high=-0.005)
    ]
    page = render_markdown(record)
    assert "The student finds 68.7 % of the teacher's nearest neighbours among held-out texts (95 % interval" in page
    assert "On the teacher's nearest neighbours, student is worse than free baseline (−1.0 points" in page
    assert "It is worse than the free baseline: −1.0 points" in page
    assert "| free baseline | 52.0" in page and "of the teacher's ten nearest among the held-out texts" in page
