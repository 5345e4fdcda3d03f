"""Processes that are really killed or interrupted: resumed, they end with the bits of the uninterrupted run."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.training.starting import Starter

from distilvec.folders import seal

ASAM = {"lr": 1e-2, "sharpness": {"kind": "asam", "rho": 0.3}}
TRAINING = {"epochs": 2, "batch_size": 8, "save_every": 5, "logging_steps": 3}
ACCUMULATED = TRAINING | {"gradient_accumulation_steps": 3, "save_every": 2, "logging_steps": 3}
JOBS: dict[str, dict[str, Any]] = {
    "cosine": {"method": "cosine", "training": TRAINING},
    "talas-muon": {
        "method": "talas",
        "training": TRAINING,
        "optimizer": {"lr": 2e-5, "muon": True, "sharpness": {"kind": "sam"}},
    },
    "cosine-accumulated": {"method": "cosine", "training": ACCUMULATED},
    "talas-asam": {"method": "talas", "options": {"init": "random"}, "training": TRAINING, "optimizer": ASAM},
    "talas-asam-accumulated": {"method": "talas", "training": ACCUMULATED, "optimizer": ASAM},
    "talas-asam-per-batch": {
        "method": "talas",
        "training": ACCUMULATED,
        "optimizer": {"lr": 1e-2, "sharpness": {"kind": "asam", "per": "batch", "every": 2, "fresh_dropout": True}},
    },
    "distilcse": {
        "method": "distilcse",
        "options": {"preset": "code", "init": "ridge", "queue": 20},
        "training": TRAINING,
    },
    "matryoshka-distilcse": {
        "method": "distilcse",
        "options": {"queue": 20},
        "matryoshka": [8],
        "training": TRAINING,
        "optimizer": ASAM,
    },
    "jasper_stella": {"method": "jasper_stella", "options": {"heads_share": 0.4}, "training": TRAINING},
    "remember": {"method": "cosine", "training": TRAINING, "remember": 1.0},
    "mixture": {"method": "cosine", "student": "mixture", "router_balance": 1.0, "training": TRAINING},
    "emo-live": {"method": "emo", "live": "decoder", "training": TRAINING},
    "distillmoe-live-labelled": {
        "method": "distillmoe",
        "options": {"layers": 2, "token_map": "pairs"},
        "live": "decoder",
        "corpus": "labelled",
        "task": "classification",
        "training": TRAINING,
        "optimizer": ASAM,
    },
    "dskd-live-writing": {
        "method": "dskd",
        "live": "writer",
        "corpus": "prompts",
        "student": "scribe",
        "task": "generation",
        "training": TRAINING,
    },
    "mnrl-cached": {
        "method": "mnrl",
        "corpus": "triplets",
        "training": TRAINING | {"mini_batch_size": 4, "save_every": 2},
        "optimizer": ASAM,
    },
}


@pytest.fixture(scope="session")
def uninterrupted(start: Starter, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Name of a job -> its output, trained without interruption (once)."""
    done: dict[str, Path] = {}

    def train(name: str) -> Path:
        if name not in done:
            out = tmp_path_factory.mktemp(f"whole-{name}")
            code, output = start.train(home=home, out=out, **JOBS[name]).wait()
            assert code == 0, output
            done[name] = out
        return done[name]

    return train


def entries(out: Path) -> list[dict[str, Any]]:
    """The log without what a clock says."""
    lines = [json.loads(line) for line in (out / "run.jsonl").read_text().splitlines()]
    clock = {"train_runtime", "train_samples_per_second", "train_steps_per_second"}
    return [{key: value for key, value in line.items() if key not in clock} for line in lines]


def check_same(out: Path, whole: Path) -> None:
    """Weights, heads and every logged value; nothing half-written is left."""
    assert (out / "final-0.safetensors").read_bytes() == (whole / "final-0.safetensors").read_bytes()
    assert entries(out) == entries(whole)
    assert {file.name for file in (out / "checkpoints").iterdir()} == {
        file.name for file in (whole / "checkpoints").iterdir()
    }


# The jobs take 16 steps (2 epochs of 60 rows in batches of 8), or 6 where three batches are accumulated.
@pytest.mark.parametrize(
    ("name", "die"),
    [
        ("cosine", "forward:3"),
        ("cosine", "weights:1"),
        ("cosine", "weights:2"),
        ("cosine", "optimizer:2"),
        ("cosine", "rename:1"),
        ("cosine", "rename:4"),
        ("cosine", "log:5"),
        ("cosine", "step:8"),
        ("cosine-accumulated", "forward:11"),
        ("talas-muon", "step:12"),
        ("talas-asam-accumulated", "forward:8"),
        ("talas-asam-per-batch", "step:5"),
        ("distilcse", "step:7"),
        ("matryoshka-distilcse", "step:6"),
        ("jasper_stella", "step:9"),
        ("mnrl-cached", "step:3"),
        ("emo-live", "step:7"),
        ("dskd-live-writing", "step:7"),
        ("distillmoe-live-labelled", "forward:9"),
        ("remember", "step:7"),
        ("mixture", "step:7"),
    ],
)
def test_killed_then_resumed(
    start: Starter, home: Path, tmp_path: Path, uninterrupted: Callable[[str], Path], name: str, die: str
) -> None:
    code, output = start.train(home=home, out=tmp_path, die=die, **JOBS[name]).wait()
    assert code == -signal.SIGKILL, output
    assert not (tmp_path / "final-0.safetensors").exists()
    early = die in ("forward:3", "weights:1", "rename:1")
    assert bool(list((tmp_path / "checkpoints").glob("checkpoint-*"))) != early
    if die.startswith(("weights", "optimizer", "rename")) and die != "rename:1":
        assert list((tmp_path / "checkpoints").glob(".partial-*"))
    code, output = start.train(home=home, out=tmp_path, resume=True, **JOBS[name]).wait()
    assert code == 0, output
    check_same(tmp_path, uninterrupted(name))


def test_killed_again_and_again(
    start: Starter, home: Path, tmp_path: Path, uninterrupted: Callable[[str], Path]
) -> None:
    for steps in ("step:6", "step:4", "step:7"):
        code, output = start.train(home=home, out=tmp_path, die=steps, resume=True, **JOBS["talas-asam"]).wait()
        assert code == -signal.SIGKILL, output
    code, output = start.train(home=home, out=tmp_path, resume=True, **JOBS["talas-asam"]).wait()
    assert code == 0, output
    check_same(tmp_path, uninterrupted("talas-asam"))


def test_interrupting_saves_and_says_how_to_resume(
    start: Starter, home: Path, tmp_path: Path, uninterrupted: Callable[[str], Path]
) -> None:
    name, number = "talas-asam", signal.SIGTERM  # both signals: tests/faults/test_jobs
    running = start.train(home=home, out=tmp_path, slow=0.05, **JOBS[name])
    running.until(lambda: (tmp_path / "run.jsonl").exists() and (tmp_path / "run.jsonl").read_text().count("\n") >= 1)
    running.kill(number)
    code, output = running.wait()
    assert code == 128 + number, output
    assert f"stopped by {number.name} at step" in output and "--resume" in output and "Traceback" not in output
    step = int(output.split("at step ")[1].split()[0])
    assert 3 <= step < 16
    assert (tmp_path / "checkpoints" / f"checkpoint-{step}").is_dir()
    code, output = start.train(home=home, out=tmp_path, resume=True, **JOBS[name]).wait()
    assert code == 0, output
    whole = uninterrupted(name)
    assert (tmp_path / "final-0.safetensors").read_bytes() == (whole / "final-0.safetensors").read_bytes()
    assert entries(tmp_path) == entries(whole)


@pytest.mark.parametrize("training", [TRAINING | {"max_steps": 6}, TRAINING | {"epochs": 1}])
def test_resuming_what_is_finished_trains_no_further(
    start: Starter, home: Path, tmp_path: Path, training: dict[str, Any]
) -> None:
    job = {"home": home, "out": tmp_path, "method": "cosine", "training": training}
    results = []
    for resume in (False, True):
        code, output = start.train(resume=resume, **job).wait()
        assert code == 0, output
        results.append(((tmp_path / "final-0.safetensors").read_bytes(), entries(tmp_path)))
    assert results[0] == results[1]


def test_patience_and_best_survive_resumption(start: Starter, home: Path, tmp_path: Path) -> None:
    training = {"epochs": 2, "batch_size": 8, "evaluate_every": 2, "best": "score", "patience": 3, "logging_steps": 2}
    scores = [0.1, 0.5, 0.4, 0.3, 0.2, 0.9]
    job = {"home": home, "method": "cosine", "training": training}
    code, output = start.train(out=tmp_path / "whole", evaluate=scores, **job).wait()
    assert code == 0, output
    # Best at step 4, three worse ones after it: the end is step 10, and the weights are those of step 4.
    evaluated = [line for line in entries(tmp_path / "whole") if "eval_score" in line]
    assert [line["step"] for line in evaluated] == [2, 4, 6, 8, 10]
    names = {place.name for place in (tmp_path / "whole/checkpoints").iterdir()}
    assert names == {"checkpoint-4", "checkpoint-10"}
    code, output = start.train(
        out=tmp_path / "best", **job | {"training": training | {"max_steps": 4}}, evaluate=scores
    ).wait()
    assert code == 0, output

    code, output = start.train(out=tmp_path / "cut", evaluate=scores, die="step:7", **job).wait()
    assert code == -signal.SIGKILL, output
    for remaining in (scores[3:], []):  # the second time it is over already, and no score is asked for
        code, output = start.train(out=tmp_path / "cut", evaluate=remaining, resume=True, **job).wait()
        assert code == 0, output
        check_same(tmp_path / "cut", tmp_path / "whole")


def test_a_folder_that_was_moved_keeps_its_best_and_takes_a_longer_patience(
    start: Starter, home: Path, tmp_path: Path
) -> None:
    training = {"epochs": 2, "batch_size": 8, "evaluate_every": 2, "best": "score", "patience": 2, "logging_steps": 2}
    job = {"home": home, "method": "cosine"}
    code, output = start.train(out=tmp_path / "out", evaluate=[0.9, 0.5, 0.4], training=training, **job).wait()
    assert code == 0, output
    (tmp_path / "out").rename(tmp_path / "moved")
    longer = {"out": tmp_path / "moved", "training": training | {"patience": 4}, "evaluate": [0.3, 0.2, 0.1]}
    code, output = start.train(resume=True, **longer, **job).wait()
    assert code == 0, output
    evaluated = [line["step"] for line in entries(tmp_path / "moved") if "eval_score" in line]
    assert evaluated == [2, 4, 6, 8, 10], "two more went by"
    assert (tmp_path / "moved/checkpoints/checkpoint-2").is_dir()
    best = load_file(tmp_path / "moved/checkpoints/checkpoint-2/model.safetensors")
    ended = load_file(tmp_path / "moved/final-0.safetensors")
    shared = [name for name in best if name in ended]
    assert shared and all(torch.equal(best[name], ended[name]) for name in shared)


def test_a_new_start_sets_other_checkpoints_aside(start: Starter, home: Path, tmp_path: Path) -> None:
    job = {"home": home, "out": tmp_path, "training": TRAINING | {"epochs": 1}}
    code, output = start.train(method="cosine", **job).wait()
    assert code == 0, output
    code, output = start.train(method="mse", die="forward:2", **job).wait()
    assert code == -signal.SIGKILL
    assert "checkpoints-before" in output
    assert not (tmp_path / "checkpoints").exists() or not list((tmp_path / "checkpoints").iterdir())
    assert {place.name for place in (tmp_path / "checkpoints-before").iterdir()} == {"checkpoint-5", "checkpoint-8"}
    code, output = start.train(method="mse", resume=True, **job).wait()
    assert code == 0, output
    assert [line["step"] for line in entries(tmp_path)] == [3, 6, 8]


@pytest.fixture(scope="module")
def finished(start: Starter, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of one epoch, whose newest checkpoint is of step 8."""
    out = tmp_path_factory.mktemp("finished")
    code, output = start.train(home=home, out=out, **ONE).wait()
    assert code == 0, output
    return out


ONE: dict[str, Any] = {"method": "cosine", "training": TRAINING | {"epochs": 1}}
Damage = Callable[[Path], None]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) * 3 // 4] ^= 1
    file.write_bytes(content)


def changed_weights(change: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    def write(file: Path) -> None:
        save_file({name: change(value).contiguous() for name, value in load_file(file).items()}, file)

    return write


def changed_state(**values: Any) -> Damage:
    return lambda file: (file.write_text(json.dumps(json.loads(file.read_text()) | values)), None)[1]


def changed_pickle(change: Callable[[Any], None]) -> Damage:
    def write(file: Path) -> None:
        content = torch.load(file)
        change(content)
        torch.save(content, file)

    return write


def reshaped(content: Any) -> None:
    state = content["optimizer"]["state"]
    state[0]["exp_avg"] = state[0]["exp_avg"].flatten()[:7].clone()


#: Name of a file, what is done to it, what is said; and whether the list of files is made again, as nobody but an
#: attacker or a fault of ours would.
DAMAGES: list[tuple[str, Damage, str, bool]] = [
    *((name, cut, "is not as it was written", False) for name in ("model.safetensors", "optimizer.pt", "ranks.pt")),
    *((name, flip, "is not as it was written", False) for name in ("model.safetensors", "optimizer.pt", "ranks.pt")),
    *((name, Path.unlink, "is missing", False) for name in ("model.safetensors", "optimizer.pt", "ranks.pt")),
    *((name, cut, "cannot be", True) for name in ("model.safetensors", "optimizer.pt", "ranks.pt")),
    (".distilvec.json", Path.unlink, "no list with the hashes", False),
    ("model.safetensors", changed_weights(torch.Tensor.half), "another precision", True),
    ("model.safetensors", changed_weights(lambda value: value[..., :1]), "does not fit the student", True),
    ("trainer_state.json", changed_state(global_step=3), "is of step 3", True),
    ("trainer_state.json", changed_state(global_step=10**9), "is of step 1000000000", True),
    ("trainer_state.json", changed_state(global_step="8"), "global_step", True),
    ("trainer_state.json", changed_state(worse=-1), "worse", True),
    ("optimizer.pt", changed_pickle(reshaped), "exp_avg 0 has shape [7]", True),
    ("optimizer.pt", changed_pickle(lambda content: content.pop("schedule")), "'schedule'", True),
    ("ranks.pt", changed_pickle(lambda content: content[0].pop("generators")), "generator is missing", True),
    ("ranks.pt", changed_pickle(lambda content: content.clear()), "cannot be taken up", True),
    ("ranks.pt", changed_pickle(lambda content: content[0]["sums"].update(other=1)), "'other'", True),
]


@pytest.mark.parametrize(
    ("name", "damage", "said", "listed"), DAMAGES, ids=[f"{number}-{each[0]}" for number, each in enumerate(DAMAGES)]
)
def test_a_damaged_checkpoint_is_refused_with_its_file(
    start: Starter, home: Path, tmp_path: Path, finished: Path, name: str, damage: Damage, said: str, listed: bool
) -> None:
    out = shutil.copytree(finished, tmp_path / "out")
    newest = out / "checkpoints/checkpoint-8"
    damage(newest / name)
    if listed:
        seal(newest, "checkpoint", hashed=True)
    code, output = start.train(home=home, out=out, resume=True, **ONE | {"training": TRAINING}).wait()
    assert code in (2, 3) and "Traceback" not in output, output
    assert said in output and "checkpoint-8" in output, output
    assert name in output or "does not fit" in said


def test_a_checkpoint_of_a_longer_training_is_refused(
    start: Starter, home: Path, tmp_path: Path, finished: Path
) -> None:
    """A counter that no step is left after would train nothing, and ship."""
    out = shutil.copytree(finished, tmp_path / "out")
    newest = (out / "checkpoints/checkpoint-8").rename(out / "checkpoints/checkpoint-1000000000")
    changed_state(global_step=10**9)(newest / "trainer_state.json")
    seal(newest, "checkpoint", hashed=True)
    code, output = start.train(home=home, out=out, resume=True, **ONE).wait()
    assert code == 2 and "trainer_state.json: " in output and "1,000,000,000" in output and " 8" in output, output


def test_a_checkpoint_of_another_recipe_is_refused(start: Starter, home: Path, tmp_path: Path, finished: Path) -> None:
    out = shutil.copytree(finished, tmp_path / "out")
    code, output = start.train(home=home, out=out, resume=True, **ONE | {"method": "talas"}).wait()
    assert code == 2 and "does not fit the student and method" in output
    code, output = start.train(home=home, out=out, resume=True, optimizer=ASAM, **ONE).wait()
    assert code == 2 and "sharpness" in output, output
