"""The scripts under experiments/ and benchmarks/: they start, and what they conclude follows from the files."""

from __future__ import annotations

import importlib
import json
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent


def has_main(file: Path) -> bool:
    """Whether a file is a script, not a part of one."""
    return '__name__ == "__main__"' in file.read_text(encoding="utf-8")


SCRIPTS = sorted(
    str(file.relative_to(ROOT).with_suffix("")).replace("/", ".")
    for folder in ("experiments", "benchmarks")
    for file in (ROOT / folder).rglob("*.py")
    if has_main(file)
)


@pytest.fixture(autouse=True)
def _beside_the_benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Benchmarks import their neighbours by plain names, as they do when run as files."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if Path(str(getattr(sys.modules[name], "__file__", None))).parent == ROOT / "benchmarks":
            del sys.modules[name]


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_explains_itself(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module(script, run_name="__main__")
    assert stopped.value.code == 0
    assert "usage:" in capsys.readouterr().out


@pytest.fixture
def workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The step benchmark's parts, on docstrings and a tiny student."""
    monkeypatch.setenv("DISTILVEC_DATA", str(tmp_path / "none"))
    module = importlib.import_module("workload")
    return module.Workload.make("tiny", tmp_path / "work", texts=200, batch_size=8, device="cpu")


def test_a_benchmarked_step_trains_and_is_set_against_simcse(workload: Any) -> None:
    step = importlib.import_module("step")
    names = [step.BARE, "simcse", "talas+asam", "distilcse"]
    times = step.measure(workload, names, batches=1, rounds=2)
    assert {name: len(rounds) for name, rounds in times.items()} == dict.fromkeys(names, 2)
    assert all(wall > 0 for rounds in times.values() for wall, _ in rounds)
    assert step.ratio(times, "simcse", "simcse", 0) == {"median": 1.0, "least": 1.0, "greatest": 1.0}
    assert step.ratio({"a": [(3.0, 0), (8.0, 0)], "b": [(2.0, 0), (2.0, 0)]}, "a", "b", 0) == {
        "median": 2.75,
        "least": 1.5,
        "greatest": 4.0,
    }


@pytest.mark.parametrize("name", ["alignment", "dispatch", "expert_head", "house", "many_teachers", "mining"])
def test_a_benchmarks_page_is_that_of_its_figures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, name, raising=False)
    benchmark, home = importlib.import_module(name), ROOT / "benchmarks" / "results"
    assert benchmark.table(json.loads((home / f"{name}.json").read_text())) == (home / f"{name}.md").read_text()


@pytest.mark.parametrize(
    ("quartiles", "expected"),
    [((0.0, 0.01), "yes"), ((0.01, 0.031), "not told apart"), ((0.031, 0.05), "no")],
)
def test_a_measure_is_held_against_its_aim_with_its_quartiles(quartiles: tuple[float, float], expected: str) -> None:
    dispatch, head = (importlib.import_module(name) for name in ("dispatch", "expert_head"))
    assert dispatch.end_to_end({"added": 0.02, "added_quartiles": list(quartiles)}) == expected
    assert head.end_to_end({"added": {"median": 0.02, "quartiles": list(quartiles)}, "aim": 0.03}) == expected
    assert dispatch.end_to_end({"added": 0.0299}) == "yes"
    assert dispatch.end_to_end({"added": 0.0301}) == "no"


def test_curvature_is_that_of_talas_with_frozen_views(workload: Any) -> None:
    from distilvec.training import Distiller

    sharpness = importlib.import_module("experiments.sharpness.run")
    trained = workload.loop("talas without simcse").distiller.eval()
    method, student, rows = trained.method, trained.student, workload.batch_rows()[:1]
    held_out = workload.batch_rows()[1:2]
    objective = sharpness.Objective(workload.collator(), rows[0], rows, held_out, torch.device("cpu"))
    (batch,) = objective.batches
    plain = Distiller(student, method, trained.needs)(**workload.collator()(rows[0]))["loss"]
    assert objective(student, method, batch).item() == pytest.approx(plain.item(), rel=1e-5)

    contrasting = workload.loop("talas").distiller.eval()
    state = torch.get_rng_state()
    once, again = (objective(contrasting.student, contrasting.method, batch).item() for _ in range(2))
    assert once == again
    assert torch.equal(state, torch.get_rng_state())
    assert not contrasting.training and not contrasting.student.training
    contrasting.method.options.simcse_weight = 1.0
    assert objective(contrasting.student, contrasting.method, batch).item() > once + 1e-3  # the views differ
    found = objective.found(student, method, 12)
    assert found["curvature"] > 0
    assert found["loss"] == pytest.approx(plain.item(), rel=1e-5) and found["held_out"] != found["loss"]


def test_what_runs_everything_asks_for_what_there_is() -> None:
    commands, rows = (importlib.import_module(f"experiments.{name}") for name in ("run_all", "cross_tokenizer.rows"))
    asked = [shlex.split(line) for line in commands.COMMANDS.strip().splitlines()]
    assert {words[0] for words in asked} == {file.parent.name for file in (ROOT / "experiments").glob("*/run.py")}
    groups = [
        words[words.index("--rows") + 1] for words in asked if words[0] == "cross_tokenizer" and "--rows" in words
    ]
    named = {name for group in groups for name in group.split(",")}
    assert "ablations" in named and named <= rows.GROUPS.keys() | rows.ROWS.keys()
    placed = {
        file.parent.name for file in (ROOT / "experiments").glob("*/run.py") if "options.device" in file.read_text()
    }
    assert set(commands.PLACED) == placed
