"""Teaching under torchrun: every process takes its share, and together they write what one writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.flow.ray.content import same_content
from tests.training.starting import Running, Starter

from distilvec.errors import DistilvecError
from distilvec.flow.ray import teach_alone
from distilvec.flow.ray.ranks import share_of_rank
from distilvec.recipe import Recipe
from distilvec.store import SignalStore

SLOW = """
import time

def embed(texts):
    time.sleep(0.02)
    return [[float(len(text)), float(text.count("e")), 1.0] for text in texts]
"""


@pytest.fixture
def job(tmp_path: Path, tiny_bert: Path, sentences: list[str]) -> Path:
    """A folder with a recipe: 150 texts, a tiny teacher."""
    texts = list(dict.fromkeys(" ".join(text.split()[:12]) for text in sentences))[:150]
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    recipe = {
        "corpus": {"path": "texts.txt"},
        "teachers": [{"name": "mine", "model": str(tiny_bert), "dtype": "float32"}],
        "student": {"model": str(tiny_bert)},
        "method": {"name": "cosine"},
        "output": "out",
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return tmp_path


def test_torchrun_teaches_what_one_process_teaches(job: Path) -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "distilvec", "teach"]
    ended = subprocess.run(
        [sys.executable, *command, "recipe.yaml"],
        cwd=job,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    new = [int(line.split(" rows, ")[1].split()[0]) for line in ended.stdout.splitlines() if " new in " in line]
    assert len(new) == 2 and sum(new) == 150 and min(new) > 40
    assert ended.stderr.count("150 rows read") == 1  # the second process found the corpus of the first
    two = SignalStore.open(job / "out/stores/mine")
    same_content(teach_alone(Recipe.load(job / "recipe.yaml", [f"output={job / 'one'}"]))[0][0], two)


def start_ranks(start: Starter, job: Path) -> list[Running]:
    return [
        start(
            arguments=["teach", "recipe.yaml"],
            folder=str(job),
            env={"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in (0, 1)
    ]


def test_a_killed_rank_loses_its_part_and_the_next_call_completes(start: Starter, job: Path) -> None:
    (job / "slow.py").write_text(SLOW)
    recipe = yaml.safe_load((job / "recipe.yaml").read_text())
    recipe["teachers"] = [{"name": "mine", "call": "slow:embed", "batch_size": 1}]
    (job / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    store = job / "out/stores/mine"

    first, second = start_ranks(start, job)
    second.until(lambda: len(list(store.glob("writer-*.lock"))) == 2)
    second.kill(9)
    assert second.wait()[0] == -9
    code, output = first.wait()
    assert code == 0, output
    kept = len(SignalStore.open(store))
    assert 40 < kept < 150

    for running in start_ranks(start, job):
        code, output = running.wait()
        assert code == 0, output
    found = SignalStore.open(store, verify=True)
    assert (found.bad, len(found)) == ({}, 150)
    assert not list(store.glob(".distilvec-tmp-*"))


def test_a_share_of_ones_own_choice_is_refused(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(DistilvecError, match="^--shard: torchrun"):
        teach_alone(Recipe.load(job / "recipe.yaml"), (0, 2))


def test_shares_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert share_of_rank() is None
    for name, value in (("WORLD_SIZE", "4"), ("RANK", "3"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert share_of_rank() == (3, 4)
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert share_of_rank() == (3, 4) and chosen == [1]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(DistilvecError, match=r"^torchrun: .*\b2\b.*\b1 GPU.*--nproc-per-node 1\b"):
        share_of_rank()
