"""What goes wrong in whole jobs: a clear error with its exit code, nothing half-written, nothing lost."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from tests.faults.commands import HELD, run, write
from tests.training.starting import Starter

from distilvec.store import SignalStore


def unfinished(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*") if ".partial" in path.name or ".distilvec-tmp-" in path.name)


def check_whole(folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    assert SentenceTransformer(str(folder / "out/student"), device="cpu").encode(["a text"]).shape == (1, 32)
    assert unfinished(folder / "out") == []


def test_a_teacher_changed_under_its_store(start: Starter, tmp_path: Path, job: dict[str, Any]) -> None:
    shutil.copytree(tmp_path / "model", tmp_path / "teacher")
    job["teachers"] = [{"name": "mine", "model": "teacher"}]
    code, output = run(start, tmp_path, job)
    assert code == 0, output
    store = {file: file.read_bytes() for file in (tmp_path / "out/stores/mine").glob("*.arrow")}
    weights = load_file(tmp_path / "teacher/model.safetensors")
    name = next(key for key in weights if key.endswith("query.weight"))
    weights[name][0, 0] += 1
    save_file(weights, tmp_path / "teacher/model.safetensors", metadata={"format": "pt"})
    code, output = run(start, tmp_path, None)
    assert code in (2, 3)
    card = json.loads((tmp_path / "out/stores/mine/store.json").read_text())
    known = card.get("teacher", card.get("card", card))["fingerprint"]
    assert known[:8] in output and output.count("fingerprint") >= 1
    assert {file: file.read_bytes() for file in (tmp_path / "out/stores/mine").glob("*.arrow")} == store


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"vectors": "short.npy"}, 3, "119"),
        ({"vectors": "absent.npy"}, 3, "absent.npy"),
        ({"vectors": "flat.npy"}, 3, "flat.npy"),
        ({"texts": None}, 2, "texts"),
    ],
)
def test_vectors_that_do_not_fit(
    start: Starter, tmp_path: Path, job: dict[str, Any], change: dict[str, Any], code: int, said: str
) -> None:
    vectors = np.load(tmp_path / "vectors.npy")
    np.save(tmp_path / "short.npy", vectors[:-1])
    np.save(tmp_path / "flat.npy", vectors[:, 0])
    job["teachers"][0] |= change
    found, output = run(start, tmp_path, job)
    assert found == code and said in output, output
    assert not (tmp_path / "out/student").exists()


def test_wrong_dimensions_of_the_store_s_teacher(start: Starter, tmp_path: Path, job: dict[str, Any]) -> None:
    code, output = run(start, tmp_path, job)
    assert code == 0, output
    np.save(tmp_path / "vectors.npy", np.ones((120, 16), np.float32))
    code, output = run(start, tmp_path, None)
    assert code in (2, 3) and ("fingerprint" in output or "width" in output), output


@pytest.mark.parametrize(
    ("section", "key", "said"),
    [
        ("training", "bach_size", 'unknown key "bach_size"'),
        ("corpus", "pth", 'Did you mean "path"?'),
        ("method", "anchored_layer", 'no option "anchored_layer"'),
        ("optimizer", "learning_rate", 'unknown key "learning_rate"'),
        ("training", "label_smoothing_factor", 'unknown key "label_smoothing_factor"'),
        ("training", "learning_rate", "optimizer: {lr: ...}"),
    ],
)
def test_unknown_and_refused_keys(
    start: Starter, tmp_path: Path, job: dict[str, Any], section: str, key: str, said: str
) -> None:
    job[section][key] = 1
    code, output = run(start, tmp_path, job)
    assert code == 2 and said in output, output
    assert not (tmp_path / "out/checkpoints").exists()


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("corpus", {"path": "nowhere.jsonl"}),
        ("student", {"model": "./nowhere"}),
        ("teachers", [{"model": "./nowhere"}]),
    ],
)
def test_missing_files(start: Starter, tmp_path: Path, job: dict[str, Any], section: str, value: Any) -> None:
    job[section] = value
    code, output = run(start, tmp_path, job)
    assert code in (2, 3) and "nowhere" in output, output
    assert unfinished(tmp_path) == []


class Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.mark),))


@pytest.mark.parametrize("place", ["teacher", "student"])
@pytest.mark.parametrize("kind", ["pickle", "code"])
def test_hostile_model_folders(start: Starter, tmp_path: Path, job: dict[str, Any], place: str, kind: str) -> None:
    evil, mark = tmp_path / "evil", tmp_path / "burst"
    shutil.copytree(tmp_path / "model", evil)
    if kind == "pickle":
        (evil / "model.safetensors").unlink()
        (evil / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(mark)))
    else:
        modules = json.loads((evil / "modules.json").read_text())
        modules[0]["type"] = "evil.Transformer"
        (evil / "modules.json").write_text(json.dumps(modules))
        (evil / "evil.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    if place == "teacher":
        job["teachers"] = [{"name": "mine", "model": "evil"}]
    else:
        job["student"] = {"model": "evil"}
    code, output = run(start, tmp_path, job)
    assert code == 2 and ("pickled" if kind == "pickle" else "trust_remote_code") in output, output
    assert not mark.exists()


def test_every_kind_of_bad_row(start: Starter, tmp_path: Path, job: dict[str, Any]) -> None:
    good = (tmp_path / "texts.jsonl").read_bytes()
    bad = [
        b'{"text": ""}\n',
        b'{"text": "   "}\n',
        b'{"text": null}\n',
        b'{"text": NaN}\n',
        b'{"text": 7}\n',
        b'{"other": "no text"}\n',
        b'{"text": "broken\n',
        b'["not", "an object"]\n',
        b'{"text": "caf\xe9"}\n',
        b'{"text": "nul \\u0000 and bell \\u0007"}\n',
        json.dumps({"text": "x" * 30_000}).encode() + b"\n",
        good.splitlines(keepends=True)[0],
    ]
    (tmp_path / "texts.jsonl").write_bytes(b"".join(bad[:6]) + good + b"".join(bad[6:]))
    job["judging"]["agreement"] = True
    write(tmp_path, job)
    code, output = start(arguments=["run", "recipe.yaml"], folder=str(tmp_path)).wait()
    assert code == 0, output
    lines = [json.loads(line) for line in next((tmp_path / "out").rglob("rejected.jsonl")).read_text().splitlines()]
    assert {line["line"] for line in lines} >= {1, 2, 3, 4, 6, 127, 128, 129, 131}
    assert all(line["reason"] and line["file"].endswith("texts.jsonl") for line in lines)
    record = json.loads((tmp_path / "out/report.json").read_text())
    reasons = {line["reason"] for line in lines}
    assert all(reason in json.dumps(record) for reason in reasons), reasons
    page = (tmp_path / "out/report.html").read_text()
    assert "rejected" in page.lower()
    check_whole(tmp_path)
    job["corpus"]["strict"] = True
    job["output"] = "strict"
    code, output = run(start, tmp_path, job)
    assert code == 3 and "texts.jsonl" in output


# the disk, and signals


def test_no_room_for_a_checkpoint(start: Starter, tmp_path: Path, job: dict[str, Any]) -> None:
    size = (tmp_path / "model/model.safetensors").stat().st_size
    write(tmp_path, job)
    # Weights fit, the optimizer's two moments do not.
    code, output = run(start, tmp_path, None, limit=size * 3 // 2)
    assert code == 4 and "checkpoint cannot be written" in output and "--resume" in output, output
    assert unfinished(tmp_path / "out") == []
    assert not list((tmp_path / "out/checkpoints").iterdir()) and not (tmp_path / "out/student").exists()
    code, output = run(start, tmp_path, None, "--resume")
    assert code == 0, output
    check_whole(tmp_path)


def test_no_room_for_the_student(start: Starter, tmp_path: Path, job: dict[str, Any]) -> None:
    code, output = run(start, tmp_path, job, limit_student=20_000)
    assert code == 4 and "student cannot be written" in output, output
    assert unfinished(tmp_path / "out") == [] and not (tmp_path / "out/student").exists()
    log = (tmp_path / "out/run.jsonl").read_text()
    code, output = run(start, tmp_path, None, "--resume")
    assert code == 0, output
    check_whole(tmp_path)
    steps = [json.loads(line)["step"] for line in (tmp_path / "out/run.jsonl").read_text().splitlines()]
    assert steps == [json.loads(line)["step"] for line in log.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_a_command(start: Starter, tmp_path: Path, job: dict[str, Any], number: int) -> None:
    job["training"] |= {"epochs": 400, "save_every": 100_000}
    write(tmp_path, job)
    running, log = start(arguments=["train", "recipe.yaml"], folder=str(tmp_path)), tmp_path / "out/run.jsonl"
    running.until(lambda: log.exists() and log.read_text().count("\n") > 3)
    running.kill(number)
    code, output = running.wait()
    assert code == 128 + number, output
    assert (
        "Run the same" in output
        and "resume=True" in output
        and "a checkpoint is saved" in output
        and "Traceback" not in output
    )
    step = int(output.split("at step ")[1].split()[0])
    assert (tmp_path / f"out/checkpoints/checkpoint-{step}").is_dir()
    code, output = run(start, tmp_path, None, "--resume", "--set", f"training.max_steps={step + 2}")
    assert code == 2 and "another recipe" in output


@pytest.mark.parametrize(
    ("words", "number"), [("teach", signal.SIGTERM), ("teach", signal.SIGINT), ("run", signal.SIGTERM)]
)
def test_interrupting_while_teaching(
    start: Starter, tmp_path: Path, job: dict[str, Any], words: str, number: signal.Signals
) -> None:
    (tmp_path / "held_teacher.py").write_text(HELD)
    (tmp_path / "hold").touch()
    job["teachers"] = [{"name": "slow", "call": "held_teacher:embed", "batch_size": 4}]
    write(tmp_path, job)
    store = tmp_path / "out/stores/slow"
    running = start(arguments=[words, "recipe.yaml"], folder=str(tmp_path))
    running.until((tmp_path / "held").exists)
    running.kill(number)
    (tmp_path / "hold").unlink()
    code, output = running.wait()
    assert code == 128 + number, output
    told = [line for line in output.splitlines() if line.startswith("distilvec: ")]
    assert len(told) == 1 and f"stopped by {number.name}" in told[0] and "same command again" in told[0], output
    assert "Traceback" not in output
    kept = int(told[0].split("vectors of ")[1].split()[0])
    assert 12 <= kept < 120 and len(SignalStore.open(store, verify=True)) == kept
    code, output = start(arguments=["teach", "recipe.yaml"], folder=str(tmp_path)).wait()
    assert code == 0 and f"120 rows, {120 - kept} new" in output, output
    assert unfinished(tmp_path / "out") == []


def test_a_command_that_teaches_and_is_terminated(start: Starter, tmp_path: Path, job: dict[str, Any]) -> None:
    """As Slurm, systemd or `timeout` end it."""
    (tmp_path / "held_teacher.py").write_text(HELD)
    (tmp_path / "hold").touch()
    job["teachers"] = [{"name": "slow", "call": "held_teacher:embed", "batch_size": 4}]
    write(tmp_path, job)
    running = start(arguments=["teach", "recipe.yaml"], folder=str(tmp_path))
    running.until((tmp_path / "held").exists, 200)
    running.kill(signal.SIGTERM)
    (tmp_path / "hold").unlink()
    code, errors = running.wait(200)
    assert code == 143, errors
    assert "teaching was stopped by SIGTERM" in errors and "same command again" in errors and "Traceback" not in errors


def test_resuming_a_killed_whole_job(start: Starter, tmp_path: Path, job: dict[str, Any]) -> None:
    """The student of a job that was killed in training is the student of the job that was not."""
    job["training"] |= {"epochs": 3}
    code, output = run(start, tmp_path, job | {"output": "whole"})
    assert code == 0, output
    job["training"]["epochs"] = 3
    write(tmp_path, job)
    running = start(arguments=["train", "recipe.yaml"], folder=str(tmp_path))
    running.until(lambda: bool(list((tmp_path / "out").glob("checkpoints/checkpoint-*"))))
    running.kill(signal.SIGKILL)
    code, output = running.wait()
    assert code == -signal.SIGKILL, output
    code, output = run(start, tmp_path, None, "--resume")
    assert code == 0, output
    student = "student/model.safetensors"
    assert (tmp_path / "out" / student).read_bytes() == (tmp_path / "whole" / student).read_bytes()
    check_whole(tmp_path)
