"""experiments/molecules on invented data and teachers with random weights, and the ranks behind its tables."""

from __future__ import annotations

import csv
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file
from tests.results_files import experiments
from tests.results_files import write as write_record
from tests.teachers.test_molecule import tensors_of, vae_tensors

from distilvec.report.ranks import ranks

#: Combined to molecules that all differ: a chain, a ring, an end.
CHAINS = [f"{'C' * n}{link}" for n in range(1, 9) for link in ("", "O", "N", "S", "C(=O)")]
RINGS = ("c1ccccc1", "C1CCCCC1", "c1ccncc1", "C1CCOC1")
ENDS = ("", "F", "Cl", "O", "C#N")
TEACHERS = ("gcn", "graphsage", "gat", "molclr", "chemvae", "morgan", "descriptors")
ROWS = "untrained,gaussian,gaussian from morgan"
#: Molecules in the tasks, and in the pool that is taught.
IN_TASKS, IN_POOL = 80, 80


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with experiments(monkeypatch) as imported:
        yield imported


@pytest.fixture
def invented(tmp_path: Path, parts: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like the shared one: few molecules, half of them in tasks, and random teachers."""
    pytest.importorskip("rdkit")
    pytest.importorskip("torch_geometric")
    molecules, models = tmp_path / "shared" / "data" / "molecules", tmp_path / "shared" / "models"
    molecules.mkdir(parents=True)
    models.mkdir()
    smiles = [f"{chain}{ring}{end}" for chain in CHAINS for ring in RINGS for end in ENDS]
    smiles = [str(one) for one in np.random.default_rng(0).permutation(smiles)]
    with gzip.open(molecules / "pool_muv_40000.smi.gz", "wt") as file:
        file.write("\n".join(smiles[IN_TASKS : IN_TASKS + IN_POOL]) + "\n")
    for name, columns in (("bbbp", ("ring", "never")), ("esol", ("carbons",))):
        with gzip.open(molecules / f"{name}.csv.gz", "wt", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["smiles", "scaffold_split", *columns])
            for one in smiles[:IN_TASKS]:
                answers = [int("c1" in one), 0] if name == "bbbp" else [one.count("C") - 3.5 * one.count("O")]
                writer.writerow([one, "train", *answers])
    for kind, file in parts("molecules.rows").NETWORKS.items():
        save_file(vae_tensors() if kind == "chemvae" else tensors_of(kind), models / f"{file}.safetensors")
    monkeypatch.setenv("DISTILVEC_DATA", str(tmp_path / "shared"))
    monkeypatch.setenv("DISTILVEC_WORK", str(tmp_path / "work"))
    return tmp_path


def test_a_quick_run_goes_through_and_is_not_repeated(
    invented: Path, parts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    molecules = parts("molecules.run")
    monkeypatch.setattr(sys, "argv", ["molecules.py", "--quick", "--rows", ROWS, "--device", "cpu"])
    molecules.main()
    results = invented / "work" / "molecules-quick" / "results"
    records = parts("harness.records")
    found = records.rows_of(records.read_records(results / "results.jsonl"))
    columns = found.pop("columns")
    assert set(found) == {
        *(f"teacher-{name}" for name in TEACHERS),
        "untrained-0",
        "gaussian-0",
        "gaussian from morgan-0",
    }
    assert "two labels were expected" in columns["refused"]["bbbp never"]
    assert columns["items"]["bbbp ring"] == {"n": IN_TASKS, "minority": pytest.approx(0.5, abs=0.1)}
    for run in found.values():
        assert set(run["tasks"]) == {"bbbp ring", "esol carbons"}
        for task in run["tasks"].values():
            assert task["seeds"] == [0, 1]
            assert task["value"] == pytest.approx(np.mean(task["values"]), abs=1e-6)
    # Aromatic rings are bits of a fingerprint; numbers of carbons are descriptors.
    assert found["teacher-morgan"]["tasks"]["bbbp ring"]["value"] > 0.95
    trained = found["gaussian-0"]
    assert set(trained["held_out"]) == set(TEACHERS)
    assert set(trained["held_out"]["gat"]) == {"nll", "plain_nll", "explained", "calibration"}
    assert set(found["gaussian from morgan-0"]["held_out"]) == {"morgan"}
    assert trained["tasks"] != found["untrained-0"]["tasks"]
    shares = trained["disagreement"]
    assert shares.pop("columns") == ["bbbp ring"] and set(shares) == set(TEACHERS)
    assert all(0 <= share <= 1 for (share,) in shares.values())
    committed = {
        task["value"] for run in records.committed("molecules").values() for task in run.get("tasks", {}).values()
    }
    assert not committed & {task["value"] for run in found.values() for task in run["tasks"].values()} - {0.0, 0.5, 1.0}
    page = (results / "table.md").read_text()
    for line in (
        "| untrained | 1 |",
        "| teacher gat | 1 |",
        "## One, two and all teachers",
        "- bbbp never: not probed",
    ):
        assert line in page

    before = (results / "results.jsonl").read_bytes()
    capsys.readouterr()
    molecules.main()
    assert "gaussian, seed 0: 0 s" in capsys.readouterr().out
    assert (results / "results.jsonl").read_bytes() == before


def test_differences_of_average_ranks(parts: Any) -> None:
    found = parts("molecules.ranks")
    scores = {
        "a": {"s one": 0.9, "s two": 0.8, "t one": 0.7, "only a": 1.0},
        "b": {"s one": 0.5, "s two": 0.8, "t one": 0.6},
        "c": {"s one": 0.6, "s two": 0.1, "t one": 0.9},
    }
    tasks = ["s one", "s two", "t one"]
    given = ranks(scores, tasks)
    assert found.by_set(given, tasks) == pytest.approx([(1.25 + 2) / 2, (2.25 + 3) / 2, (2.5 + 1) / 2])
    gaps = given[:, 1] - given[:, 0]
    assert (gaps.mean(), found.bootstrap(gaps)) == (pytest.approx(1.0), pytest.approx((0.0, 2.0)))
    assert found.terciles({"x": 3.0, "y": 1.0, "z": 2.0, "w": 9.0}) == [["y", "z"], ["x"], ["w"]]


def write(results: Path, name: str, level: float, step: float = 0.0, seed: int | None = 0) -> None:
    """A result with 12 tasks of scores around `level`; `step` moves every other one."""
    names = [f"{('bbbp', 'tox21', 'esol')[i % 3]} {i}" for i in range(12)]
    tasks = {name: {"metric": "auroc", "value": level + step * (i % 2) + i / 1000} for i, name in enumerate(names)}
    result = {"row": name, "tasks": tasks, **({} if seed is None else {"seed": seed})}
    write_record(results, "molecules", name if seed is None else f"{name}-{seed}", result)


def test_claims_of_ranks_follow_from_the_files(tmp_path: Path, parts: Any) -> None:
    claims = parts("claims.run")
    for number, name in enumerate(TEACHERS):
        write(tmp_path, f"teacher-{name}", 0.5 + number / 100, seed=None)
        for seed in range(3):
            write(tmp_path, f"gaussian from {name}", 0.4 + number / 100, seed=seed)
    for seed in range(3):
        write(tmp_path, "gaussian", 0.6 + seed / 100, seed=seed)
        write(tmp_path, "multi_mse", 0.55, seed=seed)
        write(tmp_path, "multi_cosine", 0.6, 0.1, seed=seed)  # as good in half of the tasks, better in the other half
        write(tmp_path, "gaussian depth 2", 0.601 + seed / 100, seed=seed)
    write(tmp_path, "gaussian depth 5", 0.601)
    write_record(tmp_path, "molecules", "columns", {"items": {}, "refused": {}})
    found = {
        claim.ours[1]: forms["our form"]
        for claim, student, forms in claims.findings(tmp_path, tmp_path)
        if student == "molecules"
    }
    assert {row: finding.verdict for row, finding in found.items()} == {
        "best teacher": "holds",
        "best single-teacher student": "holds",
        "multi_mse": "holds",
        "multi_cosine": "open",
        "multi_mse unclipped": "not tested",
        "gaussian depth 2": "holds",
        "gaussian depth 5": "not tested",
    }
    five = found["gaussian depth 5"]
    assert (five.value, five.why) == (pytest.approx(-0.1), "one seed")
    assert found["best teacher"].basis == "3 sets, 3 seeds; teacher descriptors; one rate for all rows"
    assert found["gaussian depth 2"].basis == "2 sets, 3 seeds; AUROC; one rate for all rows"
    assert found["best single-teacher student"].basis.startswith("3 sets, 3 seeds; gaussian from descriptors")
