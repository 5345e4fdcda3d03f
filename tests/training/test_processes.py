"""Two processes (gloo) end with the same parameters on both, and with those of one process."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.training.starting import Running, Starter

# 48 rows in 6 full batches of 8; without dropout, the ranks' halves give what the whole batch gives.
# Plain SGD without clipping shows a gradient that is too large by a factor; Adam and ASAM's ascent would not.
TRAINING = {
    "epochs": 1,
    "batch_size": 8,
    "logging_steps": 1,
    "save_every": 4,
    "lr_scheduler_type": "constant",
    "optim": "sgd",
    "max_grad_norm": 0.0,
}
ACCUMULATED = TRAINING | {"gradient_accumulation_steps": 2, "save_every": 2}
ASAM: dict[str, Any] = {"kind": "asam", "rho": 0.5}
# Of jobs whose loss would grow from step to step at 0.1, and rounding with it.
SMALL_LR = 5e-4
# DistillMoE has places where rounding decides, and six steps make 1e-2 of it: which teacher tokens a threshold keeps,
# and the kink of the diversity's relu, where its experts start (orthogonal) and to which it drives them. Here all
# tokens are kept, and the experts start at random.
SMOOTH: dict[str, Any] = {"layers": 2, "dropout": 0, "mass": 1.0, "least_cosine": None}
RANDOM = SMOOTH | {"start": "random"}
# One job for each way in which rows of two processes meet: a method's terms, a task, what adds a term, accumulation,
# each kind of sharpness, cached gradients. Where two of these cross without a line of their own (ASAM over each method,
# remembering beside each), one crossing stands for all.
JOBS: dict[str, dict[str, Any]] = {
    "cosine": {"method": "cosine", "training": TRAINING},
    "cosine-accumulated": {"method": "cosine", "training": ACCUMULATED},
    "cosine-clipped": {"method": "cosine", "training": TRAINING | {"max_grad_norm": 0.1}},
    "cosine-again": {"method": "cosine", "training": TRAINING | {"gradient_checkpointing": True}},
    "cosine-disam": {
        "method": "cosine",
        "training": TRAINING,
        "sharpness": {"kind": "disam", "rho": 0.5, "domains": 0.5},
    },
    "talas": {"method": "talas", "options": {"simcse_weight": 0.5}, "training": TRAINING},
    "talas-asam-accumulated": {
        "method": "talas",
        "options": {"simcse_weight": 0.5},
        "training": ACCUMULATED,
        "sharpness": ASAM,
    },
    "talas-asam-layers": {
        "method": "talas",
        "options": {"simcse_weight": 0.5},
        "training": TRAINING,
        "sharpness": ASAM | {"scale": "layer"},
    },
    "talas-asam-per-batch": {
        "method": "talas",
        "options": {"simcse_weight": 0.5},
        "training": ACCUMULATED,
        "sharpness": ASAM | {"per": "batch"},
    },
    "relational-disam": {
        "method": "relational",
        "training": TRAINING,
        "sharpness": {"kind": "disam", "rho": 0.5, "domains": 0.5},
    },
    "distilcse": {"method": "distilcse", "options": {"queue": 20}, "lr": SMALL_LR, "training": TRAINING},
    "gaussian": {"method": "gaussian", "options": {"width": 16, "depth": 2}, "training": TRAINING},
    "cosine-remember": {"method": "cosine", "training": TRAINING, "remember": 1.0},
    # Triplets: 16 of them in 4 batches.
    "mnrl": {"method": "mnrl", "corpus": "triplets", "training": TRAINING | {"batch_size": 4}},
    "cosine-mixture": {"method": "cosine", "student": "still-mixture", "router_balance": 1.0, "training": TRAINING},
    "mnrl-cached-mixture": {
        "method": "mnrl",
        "corpus": "triplets",
        "student": "still-mixture",
        "router_balance": 1.0,
        "training": TRAINING | {"batch_size": 4, "mini_batch_size": 2},
    },
    # The teacher is live and pads on the left; ranks have longest items of their own.
    "emo": {"method": "emo", "live": "decoder", "training": TRAINING},
    "emo-paper-accumulated": {
        "method": "emo",
        "options": {"preset": "paper"},
        "live": "decoder",
        "training": ACCUMULATED,
    },
    "distillmoe": {
        "method": "distillmoe",
        "options": RANDOM,
        "live": "decoder",
        "lr": 0.01,
        "training": TRAINING,
    },
    "sft-labelled": {"method": "sft", "corpus": "labelled", "task": "classification", "training": TRAINING},
    "distillmoe-labelled": {
        "method": "distillmoe",
        "options": RANDOM,
        "live": "decoder",
        "lr": 0.01,
        "corpus": "labelled",
        "task": "classification",
        "training": TRAINING,
    },
    "distillmoe-matryoshka": {
        "method": "distillmoe",
        "options": RANDOM,
        "matryoshka": [8],
        "live": "decoder",
        "lr": 0.01,
        "training": TRAINING,
    },
    **{
        f"{method}-labelled": {
            "method": method,
            "live": "classifier",
            "corpus": "labelled",
            "task": "classification",
            "lr": 1e-3 if method == "dskd" else 0.1,
            "training": TRAINING,
        }
        for method in ("uld", "mined", "multilevel_ot", "cdm", "dskd")
    },
    # Students that write; answers, and so the terms' weights, are of different lengths on the ranks.
    **{
        f"{method}-writing": {
            "method": method,
            "options": options,
            "live": "writer",
            "corpus": "prompts",
            "student": "still-scribe",
            "task": "generation",
            "lr": 0.01,
            "training": TRAINING,
        }
        for method, options in (("mined", {}), ("dskd", {}), ("distillmoe", RANDOM))
    },
    "dskd": {"method": "dskd", "live": "decoder", "training": TRAINING},
    "mined": {"method": "mined", "live": "decoder", "training": TRAINING},
    "cdm": {"method": "cdm", "live": "decoder", "training": TRAINING},
    "jasper_stella": {
        "method": "jasper_stella",
        "options": {"heads_share": 0.5},
        "lr": SMALL_LR,
        "training": TRAINING,
    },
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_two(start: Starter, **job: Any) -> list[Running]:
    port, env = free_port(), job.pop("env", {})
    shared = env | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        start(
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            job={key: str(value) if isinstance(value, Path) else value for key, value in job.items()},
        )
        for rank in (0, 1)
    ]


def complete(job: dict[str, Any]) -> dict[str, Any]:
    lr, sharpness = job.get("lr", 0.1), job.get("sharpness")
    rest = {key: value for key, value in job.items() if key not in ("lr", "sharpness")}
    return rest | {"optimizer": {"lr": lr, "heads_lr": lr, "sharpness": sharpness}, "train_rows": 48}


def logged(out: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (out / "run.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k == "loss" or k.startswith("term/")} for line in lines if "loss" in line]


Alone = Callable[[str], tuple[Running, Path]]


@pytest.fixture(scope="module")
def alone(start: Starter, home: Path, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Name of a job -> its training in one process and its output; started once."""
    trainings: dict[str, tuple[Running, Path]] = {}

    def train(name: str) -> tuple[Running, Path]:
        if name not in trainings:
            out = tmp_path_factory.mktemp(f"one-{name}")
            trainings[name] = start.train(home=home, out=out, **{"student": "still"} | complete(JOBS[name])), out
        return trainings[name]

    return train


@pytest.mark.parametrize("name", JOBS)
def test_two_processes_equal_one(start: Starter, home: Path, tmp_path: Path, alone: Alone, name: str) -> None:
    check_equal_to_one(start, home, tmp_path, alone, name)


@pytest.mark.parametrize(
    "name",
    [
        "cosine-accumulated",
        "cosine-clipped",
        "talas",
        "talas-asam-accumulated",
        "talas-asam-layers",
        "talas-asam-per-batch",
        "distilcse",
        "jasper_stella",
        "cosine-remember",
        "cosine-again",
        "mnrl-cached-mixture",
        "emo-paper-accumulated",
        "distillmoe-labelled",
        "mined-writing",
    ],
)
def test_two_processes_with_a_part_of_the_student_each_equal_one(
    start: Starter, home: Path, tmp_path: Path, alone: Alone, name: str
) -> None:
    asked = {"env": {"ACCELERATE_USE_FSDP": "true"}} if name == "talas" else {"training": {"fsdp": True}}
    check_equal_to_one(start, home, tmp_path, alone, name, **asked)
    parts = [json.loads((tmp_path / f"part-{rank}.json").read_text()) for rank in (0, 1)]
    assert sum(part for part, _ in parts) == pytest.approx(1) and max(part for part, _ in parts) < 0.6
    assert [kept for _, kept in parts] == [0, 0]  # of the whole student, while the parts are trained


def check_equal_to_one(
    start: Starter, home: Path, out: Path, alone: Alone, name: str, training: Any = None, env: Any = None
) -> None:
    job = {"student": "still"} | complete(JOBS[name])
    both_job = job | {"training": job["training"] | (training or {}), "env": env or {}}
    single, single_out = alone(name)
    both = start_two(start, home=home, out=out, **both_job)
    for running in [single, *both]:
        code, output = running.wait()
        assert code == 0, output
    one = load_file(single_out / "final-0.safetensors")
    first, second = (load_file(out / f"final-{rank}.safetensors") for rank in (0, 1))
    begun = load_file(home / job["student"] / "model.safetensors")
    moved = max(
        float((one[f"student.0.model.{key}"] - value).abs().max())
        for key, value in begun.items()
        if f"student.0.model.{key}" in one
    )
    assert moved > 1e-3
    assert one.keys() == first.keys() == second.keys()
    without_heads = ("relational", "mnrl", "sft", "uld", "multilevel_ot", "mined-l", "mined-w", "cdm-l")
    assert name.startswith(without_heads) or any(key.startswith("method.") for key in one)
    for key in one:
        assert torch.equal(first[key], second[key]), key
        torch.testing.assert_close(
            first[key], one[key], rtol=1e-3, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}"
        )
    expected, found = logged(single_out), logged(out)
    assert len(expected) == len(found) > 2
    for entry, other in zip(expected, found, strict=True):
        assert entry.keys() == other.keys()
        assert list(entry.values()) == pytest.approx(list(other.values()), rel=1e-3, abs=1e-5)
    held_out = [
        json.loads(file.read_text())
        for file in (single_out / "held-out-0.json", out / "held-out-0.json", out / "held-out-1.json")
    ]
    assert bool(held_out[0]) != ("task" in job)
    assert held_out[1] == held_out[2] == pytest.approx(held_out[0], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("name", ["talas", "jasper_stella"])
def test_processes_that_do_not_gather_have_a_loss_each(start: Starter, home: Path, tmp_path: Path, name: str) -> None:
    job = {"student": "still"} | complete(JOBS[name])
    apart = job | {"training": TRAINING | {"gather": False}}
    alone = start.train(home=home, out=tmp_path / "one", apart=2, **job)
    both = start_two(start, home=home, out=tmp_path / "two", **apart)
    whole = start.train(home=home, out=tmp_path / "whole", **apart)
    for running in [alone, *both, whole]:
        code, output = running.wait()
        assert code == 0, output
    expected, found, gathered = (logged(tmp_path / folder) for folder in ("one", "two", "whole"))
    assert [entry["loss"] for entry in found] == pytest.approx([entry["loss"] for entry in expected], rel=1e-3)
    assert [entry["loss"] for entry in found] != pytest.approx([entry["loss"] for entry in gathered], rel=1e-2)
    one, two = (load_file(tmp_path / folder / "final-0.safetensors") for folder in ("one", "two"))
    for key in one:
        torch.testing.assert_close(two[key], one[key], rtol=1e-3, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("sharded", [False, True])
def test_two_killed_processes_resume(start: Starter, home: Path, tmp_path: Path, sharded: bool) -> None:
    job = complete(JOBS["talas-asam-accumulated"]) | {"home": home}
    job |= {"training": job["training"] | {"fsdp": sharded, "optim": "adamw_torch_fused"}}
    runs = {"whole": [{}], "cut": [{"die": "step:3"}, {"resume": True}]}
    for name, stages in runs.items():
        for stage in stages:
            both = start_two(start, out=tmp_path / name, **job, **stage)
            for running in both:
                code, output = running.wait()
                assert code == (-9 if "die" in stage else 0), output
    for rank in (0, 1):
        whole, cut = (load_file(tmp_path / name / f"final-{rank}.safetensors") for name in ("whole", "cut"))
        assert all(torch.equal(whole[key], cut[key]) for key in whole)
    assert logged(tmp_path / "whole") == logged(tmp_path / "cut")


def test_a_signal_to_one_process_stops_both_at_one_step(start: Starter, home: Path, tmp_path: Path) -> None:
    import signal

    job = complete(JOBS["cosine"]) | {"home": home, "out": tmp_path, "slow": 0.05}
    both = start_two(start, **job)
    both[1].until(lambda: (tmp_path / "run.jsonl").exists() and (tmp_path / "run.jsonl").read_text().count("\n") >= 1)
    both[1].kill(signal.SIGTERM)
    outputs = [running.wait() for running in both]
    assert [code for code, _ in outputs] == [130, 143], outputs
    steps = {output.split("at step ")[1].split()[0] for _, output in outputs}
    assert len(steps) == 1 and (tmp_path / f"checkpoints/checkpoint-{steps.pop()}").is_dir()


def test_a_loss_that_is_not_finite_names_rows_of_the_other_process(start: Starter, home: Path, tmp_path: Path) -> None:
    job = complete(JOBS["talas"]) | {"home": home, "out": tmp_path, "poison": True}
    outputs = [running.wait() for running in start_two(start, **job)]
    assert [code for code, _ in outputs] == [3, 3], outputs
    said = {output.split("for corpus rows ")[1].split(".")[0] for _, output in outputs}
    assert len(said) == 1
