"""experiments/images: a small run of every part of it, and what its tables and claims make of known results."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.results_files import experiments
from tests.results_files import write as write_record
from tests.shared import needs_shared


@pytest.fixture(autouse=True)
def _beside_the_scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("DISTILVEC_WORK", str(tmp_path / "work"))
    with experiments(monkeypatch):
        yield


@pytest.fixture
def tables() -> ModuleType:
    return importlib.import_module("experiments.images.table")


def write(rows: dict[str, Any], row: str, seed: int, *values: float) -> None:
    """A row with these accuracies on the three data sets."""
    names = ("CIFAR-10", "Fashion-MNIST", "MNIST")
    tasks = {n: {"value": v, "interval": [v - 0.01, v + 0.01]} for n, v in zip(names, values, strict=True)}
    result = {"row": row, "seed": seed, "parameters": 75_000, "tasks": tasks}
    if row != "untrained":
        result |= {
            "steps": 6,
            "epochs": 1,
            "kernel_parameters": 9,
            "training_seconds": 1.0,
            "encoding_seconds": 1.0,
            "probe_seconds": 1.0,
            "held_out": {"birds": {"explained": 0.25 + seed / 2, "calibration": 1.5}},
        }
    rows[f"{row}-{seed}"] = result


def test_tables_say_what_the_files_say(tables: ModuleType, tmp_path: Path) -> None:
    rows: dict[str, Any] = {}
    write(rows, "untrained", 0, 0.3, 0.6, 0.7)
    write(rows, "gaussian", 0, 0.80, 0.82, 0.90)
    write(rows, "gaussian", 1, 0.82, 0.82, 0.90)
    write(rows, "gaussian from birds", 0, 0.5, 0.7, 0.8)
    page = tables.write_page(rows, tmp_path)
    assert page == (tmp_path / "table.md").read_text()
    assert "| likelihood (NLL) | 2 | 0.07 M | 81.00 ± 1.41 | 82.00 ± 0.00 | 90.00 ± 0.00 | 84.33 ± 0.47 |" in page
    assert "| untrained | 1 | 0.07 M | 30.00 (29.0 to 31.0) |" in page
    assert "| birds | 1 | 50.00 (49.0 to 51.0) | 70.00 (69.0 to 71.0) | 80.00 (79.0 to 81.0) | 66.67 |" in page
    assert "| gaussian |  |  |  |  |  |  | 0.500 |  |" in page
    picture = tmp_path / "images.svg"
    assert picture.stat().st_size < 60_000
    ElementTree.parse(picture)


def test_nothing_there_is_a_page_without_tables(tables: ModuleType, tmp_path: Path) -> None:
    page = tables.write_page({}, tmp_path / "none")
    assert "Cut against the paper" in page
    assert "##" not in page
    assert not (tmp_path / "none" / "images.svg").exists()


def test_claims_follow_from_the_files(tables: ModuleType, tmp_path: Path) -> None:
    claims, rows = importlib.import_module("experiments.claims.run"), dict[str, Any]()
    for seed in range(3):
        write(rows, "gaussian", seed, 0.80 + seed / 100, 0.82, 0.90)
        write(rows, "multi_mse", seed, 0.70 + seed / 100, 0.72 + seed / 1000, 0.80)  # worse with every seed
        write(rows, "multi_cosine", seed, 0.80 + (0.0, 0.1, -0.1)[seed], 0.82, 0.90)  # as good on average
        write(rows, "gaussian without vww", seed, 0.805 + seed / 100, 0.825, 0.905 + seed / 1000)  # half a point better
        write(rows, "gaussian from resnet56+vww", seed, 0.60 + seed / 100, 0.62, 0.70)
    for number, row in enumerate(importlib.import_module("experiments.images.rows").single_rows()):
        write(rows, row, 0, 0.5 + number / 1000, 0.6, 0.7)
    write(rows, "gaussian from resnet56", 0, 0.79, 0.81, 0.89)  # the best
    assert tables.best_single(rows) == "gaussian from resnet56"
    for seed in (1, 2):
        write(rows, "gaussian from resnet56", seed, 0.79 + seed / 100, 0.81, 0.89)
    for name, result in rows.items():
        write_record(tmp_path, "images", name, result)
    found = {
        claim.ours[1]: forms["our form"]
        for claim, student, forms in claims.findings(tmp_path, tmp_path)
        if student == "images"
    }
    best = found["best single"]
    assert best.verdict == "holds" and best.value == pytest.approx(1)
    assert best.basis == "3 sets, 3 seeds; gaussian from resnet56; one rate for all rows"
    assert found["multi_mse"].verdict == "holds"
    assert found["multi_cosine"].verdict == "open"
    assert found["gaussian without vww"].verdict == "holds"
    assert found["gaussian from resnet56"].verdict == "opposite"
    assert found["labels"].verdict == found["best teacher"].verdict == "not tested"


@needs_shared
def test_a_small_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = importlib.import_module("experiments.images.run")
    rows = "untrained,labels,gaussian,gaussian without vww,gaussian paper,gaussian from vww,multi_cosine,vit gaussian"
    monkeypatch.setattr(sys, "argv", ["images.py", "--quick", "--rows", rows, "--seeds", "1", "--device", "cpu"])
    images.main()
    said = capsys.readouterr().out
    file, records = (
        tmp_path / "work/images-quick/results/results.jsonl",
        importlib.import_module("experiments.harness.records"),
    )
    found = records.rows_of(records.read_records(file))
    assert len(found) == 8 + 8
    for result in found.values():
        assert set(result["tasks"]) == {"CIFAR-10", "Fashion-MNIST", "MNIST"}
        assert all(0 <= task["value"] <= 1 and len(task["values"]) == 2 for task in result["tasks"].values())
    assert {name: found[f"teacher-{name}"]["width"] for name in ("mlperf", "birds")} == {"mlperf": 64, "birds": 1280}
    held = found["gaussian-0"]["held_out"]
    assert set(held) == set(images.TEACHERS)
    assert {"nll", "explained", "calibration"} <= set(held["vww"])
    assert set(found["gaussian without vww-0"]["held_out"]) == set(images.TEACHERS) - {"vww"}
    assert set(found["gaussian from vww-0"]["held_out"]) == {"vww"}
    assert "calibration" not in found["multi_cosine-0"]["held_out"]["birds"]
    steps = {name: found[f"{name}-0"]["steps"] for name in ("labels", "gaussian")}
    assert abs(steps["labels"] - steps["gaussian"]) <= 1, "as many steps with fewer images"
    assert found["labels-0"]["teachers"] == [] and found["labels-0"]["parameters"] == found["gaussian-0"]["parameters"]
    assert found["vit gaussian-0"]["parameters"] > 1_000_000
    assert "## As Tables 1 and 20" in said and "## As Figures 2 and 3" in said
    # A second time nothing is made again.
    before = file.read_bytes()
    images.main()
    assert file.read_bytes() == before


def test_rows_by_group_and_name() -> None:
    named_rows = importlib.import_module("experiments.harness.bench").named_rows
    groups = importlib.import_module("experiments.images.rows").GROUPS
    assert named_rows("weak,gaussian", groups, "vit") == [*groups["weak"], "gaussian"]
    assert not any(row.startswith("vit") for row in named_rows("default", groups, "vit"))
    with pytest.raises(SystemExit, match="'gausian'.*default, main"):
        named_rows("gausian", groups, "vit")
