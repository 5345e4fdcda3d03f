"""The record: JSON and back, what it derives, what it refuses and what it does not tell."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from tests.report.example import example

from distilvec.corpus.keys import join_pair
from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.kinds.base import find_kind
from distilvec.report import ModelRow, Record, ScoreDifference, ScoreEntry, write_report
from distilvec.report.data import short_source
from distilvec.report.sections.spaces import MAP_POINTS, MAP_TEXT, space_map


def test_json_round_trip() -> None:
    record = example()
    text = record.to_json()
    assert Record.from_json(text) == record
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_title_is_enough() -> None:
    record = Record(title="bare")
    assert Record.from_json(record.to_json()) == record


def test_not_a_number_survives_json() -> None:
    row = ModelRow(name="broken", scores={"t": ScoreEntry(value=float("nan"))})
    back = Record.from_json(Record(title="x", sections={"scores": {"models": [row]}}).to_json())
    assert math.isnan(back["scores"].models[0].scores["t"].value)


def test_numpy_values_become_plain() -> None:
    record = Record(
        title="x",
        sections={
            "scores": {
                "models": [ModelRow(name="m", scores={"t": {"value": np.float32(0.5)}}, parameters=np.int64(3))]
            },
            "agreement": {"values": {"cosine": np.float32(0.25), "items": np.int64(4)}, "teachers": []},
            "training": {"log": [{"step": np.int64(1), "loss": np.float32(2.0)}]},
        },
    )
    data = json.loads(record.to_json())["sections"]
    assert data["agreement"]["values"] == {"cosine": 0.25, "items": 4}
    assert data["scores"]["models"][0]["scores"]["t"]["value"] == 0.5
    assert data["training"]["log"] == [{"step": 1, "loss": 2.0}]


def test_averages_leave_retrieval_out_and_add_half_widths_in_squares() -> None:
    scores = {
        "a": ScoreEntry(value=0.6, low=0.57, high=0.63, domain="in"),
        "b": ScoreEntry(value=0.8, low=0.76, high=0.84, domain="out"),
        "r": ScoreEntry(value=0.1, kind="retrieval"),
    }
    found = ModelRow(name="m", scores=scores).averages
    assert set(found) == {"in", "out", "all", "retrieval"}
    assert found["all"].value == pytest.approx(0.7)
    assert found["all"].low == pytest.approx(0.7 - 0.05 / 2)
    assert found["all"].high == pytest.approx(0.7 + 0.05 / 2)
    assert found["retrieval"].value == 0.1
    assert found["in"].low == 0.57


def test_average_has_no_interval_if_one_task_lacks_it() -> None:
    scores = {"a": ScoreEntry(value=0.6, low=0.5, high=0.7), "b": ScoreEntry(value=0.8)}
    assert ModelRow(name="m", scores=scores).averages["all"].low is None


def test_retention() -> None:
    scores = example()["scores"]
    student, teacher = scores.model("student"), scores.model("teacher")
    wanted = 100 * student.averages["all"].value / teacher.averages["all"].value
    assert scores.retention(student, "all") == pytest.approx(wanted)
    assert scores.retention(teacher, "STS-B") == 100
    zero = scores.model_copy(update={"models": [teacher.model_copy(update={"averages": {}, "scores": {}}), student]})
    assert zero.retention(student, "all") is None


def test_nothing_is_kept_of_next_to_nothing() -> None:
    """A teacher that cannot do a task has no score that another could have a percentage of."""

    def kept(**teachers: float) -> float | None:
        rows = {"teacher": ScoreEntry(metric="r2", **teachers), "student": ScoreEntry(metric="r2", value=-0.3)}
        models = [ModelRow(name=role, role=role, scores={"a": score}) for role, score in rows.items()]
        scores = example(scores={"models": models})["scores"]
        kept: float | None = scores.retention(scores.model("student"), "a")
        return kept

    assert kept(value=0.001) is None and kept(value=0.2, low=-0.1, high=0.4) is None
    assert kept(value=0.2, low=0.1, high=0.4) == pytest.approx(-150)


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.01, 0.1, "better"), (-0.1, -0.01, "worse"), (-0.1, 0.1, "open")]
)
def test_a_verdict_needs_an_interval_without_zero(low: float, high: float, verdict: str) -> None:
    assert ScoreDifference(a="x", b="y", value=0.0, low=low, high=high).verdict == verdict


def test_long_maps_are_thinned_evenly() -> None:
    count = 3 * MAP_POINTS
    vectors = np.random.default_rng(0).normal(size=(count, 8))
    numbers = [str(number) for number in range(count)]
    spaces = space_map(vectors, 2 * vectors, ["w " * 999] * count, numbers)
    assert len(spaces["texts"]) == len(spaces["teacher"]) == len(spaces["student"]) == MAP_POINTS
    assert spaces["groups"][0] == "0" and spaces["groups"][-1] == str(count - 1)
    assert np.allclose(spaces["teacher"], spaces["student"]), "one is the other, larger"
    assert len(spaces["texts"][0]) <= MAP_TEXT


@pytest.mark.parametrize("place", ["/home/ann/secret/a/b.txt", "~/secret/a/b.txt", "C:\\Users\\ann\\secret\\a\\b.txt"])
def test_places_are_cut(place: str) -> None:
    assert short_source(place) == "a/b.txt"


def test_images_of_several_folders_are_distinguished() -> None:
    """Classes often have files of equal names."""
    items = ["/home/ann/pictures/dark/0.png", "/home/ann/pictures/light/0.png", "data:image/png;base64,AAAA"]
    assert find_kind("image").shown(items, items) == ["dark/0.png", "light/0.png", "held-out image 3"]


def test_the_two_of_a_joint_pair_stand_apart() -> None:
    pair = join_pair("Is it raining?", "Yes.")
    assert find_kind("text").shown([pair, "alone"], []) == ["Is it raining? | Yes.", "alone"]


def test_no_report_file_tells_where_things_are(tmp_path: Path) -> None:
    write_report(example(), tmp_path)
    for file in ("report.html", "report.md"):
        assert "somebody" not in (tmp_path / file).read_text()
        assert "texts.jsonl" in (tmp_path / file).read_text()


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="tittle"):
        Record(title="x", tittle="y")  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="ScoreEntry(.|\n)*low 0.4 and high None"):
        ScoreEntry(value=0.5, low=0.4)
    with pytest.raises(DataError, match="line 1 column 2"):
        Record.from_json("{")
    with pytest.raises(DataError, match=r"version 2\b.*\b99\b"):
        Record.from_json('{"schema_version": 99, "title": "x"}')
    start = '{"schema_version": 2, "title": "x", "sections": '
    with pytest.raises(DataError, match=r"sections\.scores\.models\.0\.name"):
        Record.from_json(start + '{"scores": {"models": [{}]}}}')
    with pytest.raises(DataError, match=r"sections\.score_s"):
        Record.from_json(start + '{"score_s": {}}}')
    with pytest.raises(KeyError):
        Record(title="x")["cots"]
    with pytest.raises(DistilvecError, match=r"/none\.json: "):
        Record.load(tmp_path / "none.json")


def test_report_is_written_whole_and_replaces_an_older_one(tmp_path: Path) -> None:
    write_report(example(), tmp_path)
    names = {file.name for file in (tmp_path / "figures").glob("[!.]*")}
    assert names == {"scores.svg", "training.svg", "map.svg"}
    page = write_report(Record(title="second"), tmp_path)
    assert page == tmp_path / "report.html"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["figures", "report.html", "report.json", "report.md"]
    assert list((tmp_path / "figures").iterdir()) == []
    assert Record.load(tmp_path).title == "second"


def test_an_old_report_stays_when_the_new_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_report(Record(title="first"), tmp_path)

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("distilvec.report.write.render_html", full)
    with pytest.raises(EnvironmentProblem, match=re.escape(f"{tmp_path}: ") + r".*\(No space left on device\)"):
        write_report(example(), tmp_path)
    assert Record.load(tmp_path).title == "first"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["figures", "report.html", "report.json", "report.md"]


def test_figures_of_an_older_report_go_and_the_users_files_stay(tmp_path: Path) -> None:
    write_report(example(), tmp_path)
    names = {file.name for file in (tmp_path / "figures").iterdir()}
    assert {"scores.svg", "training.svg"} <= names
    (tmp_path / "figures" / "mine.svg").write_text("mine")
    write_report(Record(title="without any"), tmp_path)
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {"mine.svg"}
    assert (tmp_path / "figures" / "mine.svg").read_text() == "mine"


def test_the_same_record_gives_the_same_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_report(example(), tmp_path / name)
    for file in sorted((tmp_path / "a").rglob("*.*")):
        if file.is_file():
            assert file.read_bytes() == (tmp_path / "b" / file.relative_to(tmp_path / "a")).read_bytes(), file.name
