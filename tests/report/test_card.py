"""The model card in a student's folder."""

from __future__ import annotations

from pathlib import Path

import yaml
from tests.report.example import example

from distilvec.report import model_card, write_card


def test_a_new_card_can_be_read_by_hubs(tmp_path: Path) -> None:
    text = write_card(example(), tmp_path).read_text()
    _, front, body = text.split("---\n", 2)
    data = yaml.safe_load(front)
    assert data["library_name"] == "sentence-transformers" and data["license"] == "apache-2.0"
    assert 'SentenceTransformer("path/to/this/folder")' in body
    assert "trust_remote_code" not in body
    for part in ("layers 1 and 6 of all-MiniLM-L6-v2", "9f3c1a52d07be8846a1f0c2b7d95e310", "apache-2.0", "talas"):
        assert part in body
    assert "somebody" not in body


def test_writing_again_replaces_the_section_and_keeps_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_text("---\ntags: [mine]\n---\n\n# Mine\n\nBefore.\n")
    write_card(example(), tmp_path)
    file.write_text(file.read_text() + "\nAfter.\n")
    write_card(example(title="Second run"), tmp_path)
    text = file.read_text()
    assert text.startswith("---\ntags: [mine]\n---\n\n# Mine\n\nBefore.\n")
    assert text.rstrip().endswith("After.")
    assert text.count("<!-- distilvec:begin -->") == text.count("<!-- distilvec:end -->") == 1
    assert "Second run" in text and "TALAS: all" not in text


def test_it_says_how_a_student_with_its_own_code_and_one_in_the_teachers_space_are_used() -> None:
    student = {"provenance": "x", "remote_code": True, "space": "teacher"}
    text = model_card(example(student=student))
    assert "trust_remote_code=True" in text
    assert "index of the teacher's vectors" in text


def test_nothing_from_outside_becomes_markup() -> None:
    hostile = "<script>x</script> [a](javascript:b)"
    text = model_card(example(title=hostile, teachers=[{"name": hostile, "licence": hostile, "prompt": hostile}]))
    assert "<script>" not in text and "[a](" not in text
