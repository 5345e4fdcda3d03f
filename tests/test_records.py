"""experiments/harness, records.py and comparing.py: what a key is made of, and what moved beyond seeds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.results_files import experiments, write


@pytest.fixture(autouse=True)
def part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    monkeypatch.setenv("DISTILVEC_WORK", str(tmp_path / "work"))
    with experiments(monkeypatch) as imported:
        yield imported


CALLS: list[float] = []


def trained(lr: float) -> dict[str, Any]:
    CALLS.append(lr)
    return {"value": lr, "pair": (1, 2)}


def trained_otherwise(lr: float) -> dict[str, Any]:
    CALLS.append(lr)
    return {"value": -lr}


def run(results: Any, lr: float, make: Any = trained) -> dict[str, Any]:
    return dict(results.run("row-0", functools.partial(make, lr), lr=lr))


def test_a_row_is_made_once_for_each_setting_and_code(part: Callable[[str], Any]) -> None:
    results = part("harness.records").Results("some", {"epochs": 2})
    CALLS.clear()
    first = run(results, 0.1)
    assert run(results, 0.1) == first and CALLS == [0.1]
    assert first["pair"] == [1, 2]  # as it comes back from the file
    assert run(results, 0.2)["value"] == 0.2
    assert run(part("harness.records").Results("some", {"epochs": 3}), 0.1)["value"] == 0.1
    assert run(results, 0.1, trained_otherwise)["value"] == -0.1
    assert CALLS == [0.1, 0.2, 0.1, 0.1]
    assert run(results, 0.1) == first and len(CALLS) == 4
    assert results.rows() == {"row-0": first}  # what was asked for last, under these settings


def test_a_key_is_the_same_whatever_python_reads_the_code(part: Callable[[str], Any]) -> None:
    def row(name: str) -> dict[str, Any]:
        """What it says does not count."""
        return {"name": name, "found": [each + name for each in name]}

    assert part("harness.records").code_of(row) == "c5368b4d120e0442"


def test_a_lambda_has_no_source_of_its_own(part: Callable[[str], Any]) -> None:
    with pytest.raises(TypeError):
        part("harness.records").Results("some").run("row-0", lambda: {"value": 1})


def test_a_line_that_was_cut_short_is_made_again(part: Callable[[str], Any]) -> None:
    results = part("harness.records").Results("some")
    run(results, 0.1)
    run(results, 0.2)
    text = results.file.read_text()
    results.file.write_text(text[:-40])
    CALLS.clear()
    run(results, 0.1)
    run(results, 0.2)
    assert CALLS == [0.2]
    assert results.rows()["row-0"]["value"] == 0.2


def test_recording_replaces_rows_of_the_same_names_only(part: Callable[[str], Any], tmp_path: Path) -> None:
    records = part("harness.records")
    write(tmp_path, "some", "row-0", {"value": 9.0})
    write(tmp_path, "some", "other-0", {"value": 8.0})
    results = records.Results("some", {"epochs": 2})
    run(results, 0.1)
    run(records.Results("some", {"epochs": 5}), 0.2)  # of other settings: not recorded
    assert results.record(tmp_path) == ["row-0"]
    assert {name: row["value"] for name, row in records.committed("some", tmp_path).items()} == {
        "row-0": 0.1,
        "other-0": 8.0,
    }
    (record,) = (each for each in records.read_records(tmp_path / "some" / "results.jsonl") if each["key"])
    assert record["options"] == {"epochs": 2, "lr": 0.1} and record["made"]["distilvec"]


def test_what_moved_beyond_seeds_is_told(
    part: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparing = part("harness.comparing")
    monkeypatch.setattr(comparing, "RESULTS", tmp_path)
    for seed, value in enumerate((0.50, 0.52, 0.51)):
        write(tmp_path, "some", f"steady-{seed}", {"average": value}, lr=1)
    write(tmp_path, "some", "moved-0", {"average": 0.5, "same": 0.25, "training_seconds": 5})
    new = [
        {"name": "steady-0", "options": {"lr": 2}, "result": {"average": 0.53}},
        {"name": "moved-0", "options": {}, "result": {"average": 0.6, "same": 0.25, "training_seconds": 9}},
    ]
    page = comparing.compared("some", new)
    # Deviation 0.01 with 2 degrees of freedom, t 4.30: reach 0.050 for 3 seeds and 1, 0.061 for 1 and 1.
    assert "| steady | average | 0.5100 (3) | 0.5300 (1) | +0.0200 | no |" in page
    assert "| moved | average | 0.5000 (1) | 0.6000 (1) | +0.1000 | yes |" in page
    assert "1 figures are the same, 2 moved, 1 beyond" in page and "seconds" not in page
    assert "- steady: lr was 1, is 2" in page
    assert comparing.beyond(0.1, 1, 1, None) == "?"


def test_no_committed_record_names_a_folder_of_a_machine(part: Callable[[str], Any]) -> None:
    records = part("harness.records")
    for file in sorted(records.RESULTS.glob("*/results.jsonl")):
        for record in records.read_records(file):
            assert records.short(record["options"]) == record["options"], (file.parent.name, record["name"])
