"""Licence and base model of a student."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tests.report.example import example, teacher

from distilvec.flow.combine import CombinedTeacher
from distilvec.report.card import model_card
from distilvec.report.front_matter import front_matter
from distilvec.report.sections.lineage import forbids_commercial_use, origin
from distilvec.teachers import Capabilities, TeacherCard


def front(**parts: Any) -> dict[str, Any]:
    return dict(yaml.safe_load(front_matter(example(**parts)).split("---\n")[1]))


def test_student_has_the_licence_of_its_base_model(tmp_path: Path) -> None:
    empty = {"model": None, "shrink": None, "static": None, "fresh": None, "revision": None}
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")
    bound = {"licence": "cc-by-nc-4.0", "derived": True}
    assert origin({**empty, "model": str(folder)}, {"t": None}) == bound
    assert origin({**empty, "shrink": {"of": str(folder)}}, {"t": None}) == bound
    assert origin({**empty, "static": {"of": "t"}}, {"t": None}) == {} == origin(empty, {"t": None}), (
        "the teacher says it"
    )
    assert origin({**empty, "fresh": {"embeddings_from": str(folder)}}, {"t": None}) == bound
    unknown = origin({**empty, "model": "nobody/has-this-model-here"}, {"t": None})
    assert unknown == {"base": "nobody/has-this-model-here", "licence": None, "derived": True}
    taught = {"lineage": {"teachers": [teacher("t", licence="mit")], "student": {"provenance": "x", **unknown}}}
    assert "license" not in front(**taught)
    assert "licence of the model that this student was trained from is not known" in model_card(example(**taught))


def test_base_model_has_no_revision() -> None:
    empty = {"shrink": None, "static": None, "fresh": None, "revision": None}
    assert origin({**empty, "model": "nobody/has-this-model-here@main"}, {})["base"] == "nobody/has-this-model-here"


def test_base_model_of_a_shrunk_student_is_its_teacher(tmp_path: Path) -> None:
    truncated = {"model": None, "shrink": {"of": "t", "layers": 2}, "static": None, "fresh": None, "revision": None}
    assert origin(truncated, {"t": "somebody/large@v1", "u": "somebody/other"}) == {"base": "somebody/large"}
    assert origin(truncated, {"t": str(tmp_path)}) == {}, "a place on a disk is nobody's base"
    assert origin(truncated, {"t": None}) == {}, "nor has a function one"


@pytest.mark.parametrize(
    ("licence", "bound"),
    [
        ("apple-amlr", True),
        ("https://creativecommons.org/licenses/by-nc/4.0/", True),
        ("Research only", True),
        ("Academic Free License v3.0", False),
        ("ncsa", False),
    ],
)
def test_which_licences_forbid_commercial_use(licence: str, bound: bool) -> None:
    assert forbids_commercial_use(licence) is bound


def test_licence_of_a_hub_model_is_read_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    asked = []

    def kept(name: str, file: str, revision: str | None = None) -> str:
        asked.append((name, file, revision))
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", kept)
    parts = {"model": "me/small@v2", "shrink": None, "static": None, "fresh": None, "revision": None}
    assert origin(parts, {})["licence"] == "mit" and asked == [("me/small", "README.md", "v2")]


@pytest.mark.parametrize(
    ("stated", "licence", "bound"),
    [
        (["mit", "mit"], "mit", False),
        (["mit", None], None, False),
        (["cc-by-nc-4.0", None], "cc-by-nc-4.0", True),
        (["mit", "apple-amlr"], "mit; apple-amlr", True),
    ],
)
def test_licence_of_combined_teachers(stated: list[str | None], licence: str | None, bound: bool) -> None:
    """One that states nothing is not covered by what the others state."""
    cards = [TeacherCard(name, "model", "", "", 4, licence=each) for name, each in zip("ab", stated, strict=True)]
    teachers: Any = [SimpleNamespace(card=card, can=Capabilities()) for card in cards]
    found = CombinedTeacher(teachers, [1.0, 1.0], "average").card.licence
    assert found == licence and forbids_commercial_use(found) is bound
