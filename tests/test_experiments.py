"""The scripts under experiments/ and benchmarks/: they start, and what they conclude follows from the files."""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.shared import needs_shared

ROOT = Path(__file__).parent.parent


def has_main(file: Path) -> bool:
    """Whether a file is a script, not a part of one."""
    return '__name__ == "__main__"' in file.read_text(encoding="utf-8")


SCRIPTS = [
    *(f"experiments/{file.name}" for file in sorted((ROOT / "experiments").glob("*.py")) if has_main(file)),
    *(f"benchmarks/{file.name}" for file in sorted((ROOT / "benchmarks").glob("*.py")) if has_main(file)),
]
TASKS = ("banking77", "emotion", "stsb", "sick", "mrpc")


@pytest.fixture(autouse=True)
def _beside_the_scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts import their neighbours by plain names, as they do when run as files."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and Path(str(sys.modules[name].__file__)).parent in (
            ROOT / "experiments",
            ROOT / "benchmarks",
        ):
            del sys.modules[name]


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_explains_itself(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert stopped.value.code == 0
    assert "usage:" in capsys.readouterr().out


def write_row(folder: Path, row: str, seed: int, scores: dict[str, float]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tasks = {name: {"value": value, "interval": [value - 0.02, value + 0.02]} for name, value in scores.items()}
    averages = {group: sum(scores.values()) / len(scores) for group in ("in", "out", "all")}
    result = {"row": row, "seed": seed, "tasks": tasks, "averages": averages}
    (folder / f"{row.replace(' ', '_')}-{seed}.json").write_text(json.dumps(result))


def level(value: float, *steps: float) -> dict[str, float]:
    """A score for every task: `value`, moved by the steps in turn."""
    return {task: value + (steps[i % len(steps)] if steps else 0.0) for i, task in enumerate(TASKS)}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Results in which the truth of each claim is known."""
    bpe = tmp_path / "results" / "talas_table" / "bpe"
    write_row(bpe, "talas", 0, level(0.70))
    write_row(bpe, "talas", 1, level(0.72))
    write_row(bpe, "talas+asam", 0, level(0.71, 0.00, 0.01))  # better than talas in every set, at the seed in common
    write_row(bpe, "talas without lasd", 0, level(0.70, 0.03, -0.03))  # no difference on average
    write_row(bpe, "talas without tamd", 0, level(0.75, 0.00, 0.01))  # the opposite of the claim
    write_row(bpe, "talas without simcse", 0, level(0.701, 0.001, -0.001))  # hardly any difference
    write_row(bpe, "simcse", 0, level(0.60, 0.01, 0.02))
    reference = {"tasks": {name: {"value": value, "interval": None} for name, value in level(0.5).items()}}
    (bpe / "references.json").write_text(json.dumps({"models": {"untrained student": reference}}))
    teacher = {"tasks": {name: {"value": value, "interval": None} for name, value in level(0.8).items()}}
    (bpe.parent / "teacher.json").write_text(json.dumps({"models": {"teacher": teacher}}))
    sharpness = tmp_path / "results" / "sharpness"
    sharpness.mkdir()
    for row, values in (("adamw", (90.0, 30.0, 22.0, 20.0)), ("asam", (90.0, 15.0, 12.0, 9.0))):
        points = [{"step": 10 * i, "epoch": i / 2, "curvature": value} for i, value in enumerate(values)]
        (sharpness / f"{row}-0.json").write_text(json.dumps({"row": row, "seed": 0, "points": points}))
    benchmarks = tmp_path / "benchmarks"
    benchmarks.mkdir()
    ratios = {"simcse": (1.0, 1.0, 1.0), "talas": (1.1, 1.0, 1.2), "talas+asam": (2.4, 2.3, 2.6)}
    rows = [
        {"name": name, "ratio_processor_time": dict(zip(("median", "least", "greatest"), values, strict=True))}
        for name, values in ratios.items()
    ]
    (benchmarks / "step.json").write_text(json.dumps({"rows": rows}))
    return tmp_path


def test_verdicts_follow_from_the_files(results: Path) -> None:
    claims = importlib.import_module("claims")
    found = {
        (claim.text, student): finding
        for claim, student, finding in claims.findings(results / "results", results / "benchmarks")
    }
    expected = {
        "ASAM helps": "holds",
        "LASD helps": "does not hold here (not told apart)",
        "TAMD helps: TALAS needs it": "does not hold here (the opposite)",
        "The SimCSE term has a small effect": "holds",
        "SimCSE beats the untrained student": "holds",
        "The teacher is ahead of TALAS": "holds",
        "TALAS beats DistillCSE": "not tested",
        "A step of TALAS without ASAM, in steps of SimCSE": "holds",
        "A step of TALAS with ASAM, in steps of SimCSE": "does not hold here",  # a round was dearer
        "ASAM ends flatter than AdamW": "holds",
    }
    assert {text: found[text, "bpe"].verdict for text in expected} == expected
    assert found["ASAM helps", "cut"].verdict == "not tested"
    helps = found["ASAM helps", "bpe"]
    assert helps.value == pytest.approx(1.4)  # points, against seed 0 alone: 1, 2, 1, 2, 1
    assert helps.interval == pytest.approx((0.72, 2.08), abs=0.01)
    assert found["SimCSE beats the untrained student", "bpe"].value == pytest.approx(11.4)
    assert found["ASAM ends flatter than AdamW", "bpe"].value == pytest.approx((30 / 15 * 22 / 12 * 20 / 9) ** (1 / 3))


def test_a_row_is_not_taken_for_another_one_whose_name_begins_alike(tmp_path: Path) -> None:
    claims = importlib.import_module("claims")
    write_row(tmp_path / "talas_table" / "bpe", "talas+asam", 0, level(0.7))
    write_row(tmp_path / "talas_table" / "bpe", "talas anchored 1", 0, level(0.7))
    assert claims.task_scores(tmp_path, "bpe", "talas") == {}
    assert list(claims.task_scores(tmp_path, "bpe", "talas anchored 1")) == [0]


def test_labelled_runs_are_paired_by_set_and_seed_at_the_chosen_rate(tmp_path: Path) -> None:
    claims = importlib.import_module("claims")
    claimed = importlib.import_module("claimed")

    def write(name: str, row: str, lr: float, seed: int, validation: float, test: float) -> None:
        metric = "spearman" if name == "stsb" else "accuracy"
        folder = tmp_path / "cross_tokenizer" / name
        folder.mkdir(parents=True, exist_ok=True)
        run = {"row": row, "lr": lr, "seed": seed, "validation": {metric: validation}, "test": {metric: test}}
        (folder / f"{row.replace(' ', '_')}-{lr:g}-{seed}.json").write_text(json.dumps(run))

    claim = claimed.Claim("EMO", "", "IRA helps", "", "labelled", "emo", "emo without ira", students=("labelled",))
    assert claims.compare_labelled(claim, tmp_path).verdict == "not tested"
    write("sick", "emo", 1e-3, 0, 0.5, 0.9)  # better on test data, worse on validation data: not chosen
    for name in ("sick", "stsb"):
        for seed, gain in ((0, 0.02), (1, 0.04)):
            write(name, "emo", 1e-4, seed, 0.6, 0.7 + gain)
            write(name, "emo without ira", 1e-4, seed, 0.9, 0.7)
    found = claims.compare_labelled(claim, tmp_path)
    assert found.value == pytest.approx(3.0) and found.basis == "2 sets, 4 runs" and found.verdict == "holds"
    assert claims.compare_labelled(replace(claim, a=claim.b, b=claim.a), tmp_path).verdict.endswith("(the opposite)")


def test_aggregations_are_compared_by_seed_within_a_group_of_tasks(tmp_path: Path) -> None:
    claims = importlib.import_module("claims")
    claimed = importlib.import_module("claimed")
    table = importlib.import_module("mixture_table")
    (tmp_path / "mixtures").mkdir()
    for mode, clustering in (("linear", (0.5, 0.6, 0.7)), ("sba", (0.51, 0.63, 0.72))):
        for seed, value in enumerate(clustering):
            tasks = {name: {"value": value if name == "banking77" else 0.4} for name in table.TASKS}
            (tmp_path / "mixtures" / f"{mode}-{seed}.json").write_text(json.dumps({"seed": seed, "tasks": tasks}))
    claim = claimed.Claim("SBA", "", "", "", "mixed", "sba", "linear clustering", students=("mixtures",))
    found = claims.compare_mixtures(claim, tmp_path)
    assert found.value == pytest.approx(2.0) and found.basis == "clustering, 3 seeds"
    similarity = claims.compare_mixtures(replace(claim, b="linear similarity"), tmp_path)
    assert similarity.value == pytest.approx(0.0) and similarity.verdict.endswith("(not told apart)")
    assert claims.compare_mixtures(replace(claim, b="unit clustering"), tmp_path).verdict == "not tested"


def test_the_page_of_claims_is_written(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = importlib.import_module("claims")
    out = results / "CLAIMS.md"
    folders = ["--results", str(results / "results"), "--benchmarks", str(results / "benchmarks")]
    monkeypatch.setattr(sys, "argv", ["claims.py", *folders, "--out", str(out)])
    claims.main()
    page = out.read_text()
    assert "| ASAM helps | better | 74.79 > 72.85 | bpe | +1.40 (+0.72 to +2.08) |  | 5 sets, 1 seed | holds |" in page
    rows = [line for line in page.splitlines() if line.startswith("| TALAS")]
    counted = {
        word: sum(line.split("|")[-2].strip().startswith(word) for line in rows)
        for word in ("holds", "does not hold here", "not tested", "not comparable")
    }
    assert "; ".join(f"{count} {word}" for word, count in counted.items()) + "." in page
    assert sum(counted.values()) == len(rows)


def test_a_ratio_of_other_sizes_is_not_judged(tmp_path: Path) -> None:
    claims = importlib.import_module("claims")
    (claim,) = (each for each in claims.CLAIMS if each.a == "emo live")
    assert claims.compare_cost(claim, tmp_path).verdict == "not tested"
    rows = [
        {"name": name, "ratio_processor_time": dict.fromkeys(("median", "least", "greatest"), value)}
        for name, value in (("simcse", 1.0), ("emo live", 1.7))
    ]
    (tmp_path / "token_steps.json").write_text(json.dumps({"rows": rows}))
    found = claims.compare_cost(claim, tmp_path)
    assert found.value == 1.7 and found.verdict.startswith("not comparable (theirs a teacher of 4 B")


def test_many_text_teachers_are_set_against_the_best_single_one_once_all_are_there(tmp_path: Path) -> None:
    claims = importlib.import_module("claims")
    home = tmp_path / "many_text" / "talas"
    (claim,) = (each for each in claims.CLAIMS if each.students == ("texts",) and each.b == "best single")
    write_row(home, "gaussian", 0, level(0.60, 0.00, 0.01))
    (home / "setup.json").write_text(json.dumps({"teachers": ["minilm", "words"]}))
    write_row(home, "gaussian from minilm", 0, level(0.62))
    assert claims.compare_scores(claim, tmp_path, "texts").verdict == "not tested"
    write_row(home, "gaussian from words", 0, level(0.50))
    found = claims.compare_scores(claim, tmp_path, "texts")
    assert found.basis == "5 sets, 1 seed, gaussian from minilm"
    assert found.value == pytest.approx(-1.6) and found.verdict == "does not hold here (the opposite)"


def test_a_kept_result_is_read_and_not_made_again(tmp_path: Path) -> None:
    common = importlib.import_module("common")
    file, calls = tmp_path / "deep" / "row.json", []

    def make() -> dict[str, Any]:
        calls.append(1)
        return {"value": 3}

    first, second = common.once(file, make), common.once(file, make)
    assert first == second and first["value"] == 3 and len(calls) == 1


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


@pytest.mark.parametrize("name", ["alignment", "dispatch", "expert_head", "many_teachers"])
def test_a_benchmarks_page_is_that_of_its_figures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))  # before experiments/, which has an alignment.py, too
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

    sharpness = importlib.import_module("sharpness")
    trained = workload.trainer("talas without simcse").model.eval()
    method, student, rows = trained.method, trained.student, workload.batch_rows()[:1]
    objective = sharpness.Objective(workload.collator(), rows, torch.device("cpu"))
    (batch,) = objective.batches
    plain = Distiller(student, method, [sharpness_teacher()])(**workload.collator()(rows[0]))["loss"]
    assert objective(student, method, batch).item() == pytest.approx(plain.item(), rel=1e-5)

    contrasting = workload.trainer("talas").model.eval()
    state = torch.get_rng_state()
    once, again = (objective(contrasting.student, contrasting.method, batch).item() for _ in range(2))
    assert once == again
    assert torch.equal(state, torch.get_rng_state())
    assert not contrasting.training and not contrasting.student.training
    contrasting.method.options.simcse_weight = 1.0
    assert objective(contrasting.student, contrasting.method, batch).item() > once + 1e-3  # the views differ
    found = objective.curvature(student, method, 12)
    assert found["curvature"] > 0
    assert found["loss"] == pytest.approx(plain.item(), rel=1e-5)


def sharpness_teacher() -> Any:
    from distilvec.teachers.signals import TeacherInfo

    return TeacherInfo("random", 384)


def test_what_runs_everything_asks_for_what_there_is() -> None:
    scripts, rows = importlib.import_module("run_all").SCRIPTS, importlib.import_module("cross_rows")
    assert {name for name, _, _ in scripts} <= {file.name for file in (ROOT / "experiments").glob("*.py")}
    asked = [
        words[words.index("--rows") + 1]
        for name, words, _ in scripts
        if name == "cross_tokenizer.py" and "--rows" in words
    ]
    named = {name for group in asked for name in group.split(",")}
    assert "ablations" in named and named <= rows.GROUPS.keys() | rows.ROWS.keys()


@pytest.mark.shared
@pytest.mark.slow
@needs_shared
def test_sharpness_on_the_shared_data(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "experiments" / "sharpness.py"), "--quick", "--rows", "adamw", "asam"]
    environment = {**os.environ, "DISTILVEC_WORK": str(tmp_path / "work")}
    subprocess.run([*command, "--results", str(tmp_path / "results")], check=True, env=environment, timeout=280)
    points = {
        row: json.loads((tmp_path / "results" / f"{row}-0.json").read_text())["points"] for row in ("adamw", "asam")
    }
    assert points["adamw"][0]["curvature"] == pytest.approx(points["asam"][0]["curvature"])  # one student, one batch
    assert points["asam"][-1]["curvature"] < points["adamw"][-1]["curvature"]
