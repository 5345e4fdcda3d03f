"""One small row of each experiment, trained from scratch on invented data: no committed figure comes back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.results_files import EXPERIMENTS, experiments, no_committed_figure
from tests.shared_like import write_shared

from distilvec.flow import demo


@pytest.fixture(scope="module")
def invented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shared(tmp_path_factory.mktemp("shared-like"))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One work folder for all: experiments that build on others find them there, as for a user."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def script(
    invented: Path, work: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Imports modules afresh, with the invented data, a tiny teacher and an empty work folder."""
    monkeypatch.setenv("DISTILVEC_DATA", str(invented))
    monkeypatch.setattr(demo, "demo_teacher", lambda: str(tiny_bert))
    monkeypatch.setenv("DISTILVEC_WORK", str(work))
    with experiments(monkeypatch) as imported:
        yield imported


def small_talas(module: Any) -> None:
    module.GRID, module.EPOCHS = (1e-3,), 0.5


def small_mixtures(module: Any) -> None:
    """Its pictures are those of the report, and drawn in its tests."""
    module.write_geometry = lambda found, title, folder: found.to_dict()


#: Script, its arguments, what makes it small, and rows that must come out. many_text has a file of its own.
RUNS: dict[str, tuple[list[str], Callable[[Any], None] | None, set[str]]] = {
    "alignment": (["--rows", "scitail", "--limit", "13"], None, {"scitail"}),
    "talas": (["--student", "bpe", "--rows", "talas"], small_talas, {"teacher", "bpe/talas-0"}),
    "sharpness": (["--rows", "adamw", "asam", "--seeds", "0", "--quick"], None, {"start-0", "5/adamw-0", "5/asam-0"}),
    "mixtures": (
        ["--rows", "sba", "--starts", "0", "--seeds", "0", "--quick"],
        small_mixtures,
        {"start-mixture-0", "0/geometry", "0/sba, 2e-05-0", "0/before, sba"},
    ),
    "cross_tokenizer": (
        ["--sets", "sst2", "--rows", "emo", "--seeds", "1", "--quick"],
        None,
        {"sst2/teacher-minilm", "sst2/emo-0.0001-0"},
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_small_row_is_trained_and_no_committed_figure_comes_back(
    name: str,
    script: Callable[..., Any],
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, shrink, expected = RUNS[name]
    module, records = script(f"{name}.run"), script("harness.records")
    if shrink:
        shrink(module)
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    module.main()
    (file,) = work.glob(f"{name}*/results/results.jsonl")
    made = {record["name"]: record for record in records.read_records(file)}
    assert expected <= set(made)
    no_committed_figure(records, name, made, rounded=name == "alignment")
    committed = (EXPERIMENTS / "results" / name / "table.md").read_text()
    shown = capsys.readouterr().out
    rows = {line for line in shown.splitlines() if line.startswith("|") and sum(c.isdigit() for c in line) > 12}
    assert shown and not rows & set(committed.splitlines())
    if name == "sharpness":
        points = {row: made[f"5/{row}-0"]["result"]["points"] for row in ("adamw", "asam")}
        # One student and one batch to start from, and a flatter end.
        assert points["adamw"][0]["curvature"] == pytest.approx(points["asam"][0]["curvature"])
        assert points["asam"][-1]["curvature"] < points["adamw"][-1]["curvature"], points


class Trained(BaseException):
    """Raised where a row would be trained."""


#: Script, its arguments, and the function that makes its first row.
STUBBED = {
    "headline": (["--seed", "7", "--layers", "3", "--epochs", "0.01"], "student_of"),
    "choosing": ([], "predicted"),
    "compression": ([], "compressed"),
    "alignment": ([], "rates"),
    "sharpness": ([], "Bench"),
    "talas": ([], "judge"),
    "mixtures": ([], "fit"),
    "scores": ([], "judged_teacher"),
}


@pytest.mark.parametrize("name", STUBBED)
def test_without_training_no_figure_is_shown(
    name: str, script: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, trains = STUBBED[name]
    module = script(f"{name}.run")

    def stub(*_: Any, **__: Any) -> None:
        raise Trained

    monkeypatch.setattr(module, trains, stub)
    if name == "compression":  # a student as if headline.py had been run
        (module.student() / "modules.json").parent.mkdir(parents=True, exist_ok=True)
        (module.student() / "modules.json").write_text("[]")
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    with pytest.raises(Trained):
        module.main()
    assert not any(line.startswith("|") for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("name", sorted(file.parent.name for file in EXPERIMENTS.glob("results/*/results.jsonl")))
def test_tables_need_no_data_and_say_what_the_records_say(
    name: str,
    script: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DISTILVEC_DATA", str(tmp_path / "none"))
    module, records = script(f"{name}.run"), script("harness.records")
    here = EXPERIMENTS / "results" / name
    (tmp_path / name).mkdir()
    (tmp_path / name / "results.jsonl").write_bytes((here / "results.jsonl").read_bytes())
    monkeypatch.setattr(script("harness.script"), "RESULTS", tmp_path)
    committed = records.committed
    monkeypatch.setattr(script("harness.script"), "committed", lambda experiment: committed(experiment, tmp_path))
    monkeypatch.setattr(sys, "argv", ["run.py", "--table"])
    module.main()
    page = (here / "table.md").read_text()
    assert (tmp_path / name / "table.md").read_text() == page
    assert capsys.readouterr().out.strip() == page.strip()
