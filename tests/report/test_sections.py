"""What the report's sections say of what is in the record."""

from __future__ import annotations

from dataclasses import replace

from tests.report.example import example

from distilvec.report.markdown import render_markdown


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
