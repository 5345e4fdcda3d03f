"""What is kept for a later call belongs to what made it: corpora, checkpoints, stores and results are not mixed up."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from tests.faults.commands import HELD, run, write
from tests.jobs import Job, identity_of
from tests.training.starting import Starter

import distilvec
from distilvec.corpus import Corpus, read_corpus
from distilvec.corpus.files import new_files
from distilvec.errors import DataError, DistilvecError
from distilvec.judging.identity import content_digest
from distilvec.modules.task_head import TaskHead
from distilvec.recipe import Recipe
from distilvec.store import SignalStore
from distilvec.students import load_student
from distilvec.students.pieces import piece_vectors
from distilvec.teachers import load_teacher
from distilvec.teachers.callable import find_function
from distilvec.training.checkpoint import newest_checkpoint
from distilvec.training.log import RunLog

# the prepared corpus


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    (tmp_path / "texts.txt").write_text("".join(f"text number {number}\n" for number in range(50)))
    read_corpus(tmp_path / "texts.txt", tmp_path / "corpus", holdout=0.2)
    return tmp_path / "corpus"


FILES = ["train_rows.bin", "holdout_rows.bin", "keys.bin", "items.arrow"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["zeroed", "one bit", "swapped"])
def test_a_damaged_corpus_of_the_right_size(prepared: Path, name: str, how: str) -> None:
    file = prepared / name
    content = bytearray(file.read_bytes())
    if how == "zeroed":
        content[:] = bytes(len(content))
    elif how == "one bit":
        content[len(content) // 2] ^= 4
    else:
        half = len(content) // 2
        content = content[half:] + content[:half]
    file.write_bytes(bytes(content))
    with pytest.raises(DataError, match=rf"/corpus/{re.escape(name)}: "):
        Corpus.open(prepared)
    again = read_corpus(prepared.parent / "texts.txt", prepared, holdout=0.2)
    assert again.texts() == [f"text number {number}" for number in range(50)], "it was made again"
    assert sorted([*again.train_rows, *again.holdout_rows]) == list(range(50))


def test_a_damaged_manifest(prepared: Path) -> None:
    manifest = json.loads((prepared / "corpus.json").read_text())
    manifest["fingerprint"] = "0" * 32
    (prepared / "corpus.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"/corpus/corpus\.json: "):
        Corpus.open(prepared)


def test_a_copied_corpus_and_one_of_an_earlier_version(prepared: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(prepared, copy, copy_function=shutil.copyfile)  # with new dates
    before = json.loads((copy / "corpus.json").read_text())
    assert len(Corpus.open(copy)) == 50
    after = json.loads((copy / "corpus.json").read_text())
    assert before["checksums"] != after["checksums"] and len(Corpus.open(copy)) == 50, "read once, then known"
    del after["checksums"], after["own_checksum"]
    (copy / "corpus.json").write_text(json.dumps(after))
    assert len(Corpus.open(copy)) == 50


def test_a_source_that_keeps_its_date_and_size(prepared: Path) -> None:
    source = prepared.parent / "texts.txt"
    status = source.stat()
    source.write_text(source.read_text().replace("text", "word"))
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert read_corpus(source, prepared, holdout=0.2).texts()[0] == "word number 0"


HOLDING = """
import os, sys, time
from pathlib import Path
from distilvec.corpus.files import new_files
os.getpid = lambda: 1          # as every container counts its own processes
import socket; socket.gethostname = lambda: "worker"
with new_files(Path(sys.argv[1])) as partial:
    (partial / "items").write_text("mine")
    print(partial, flush=True)
    sys.stdin.read()
    print((partial / "items").read_text(), flush=True)
"""


def holding(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_containers_with_one_host_name_and_equal_process_numbers(tmp_path: Path) -> None:
    """Whether the other is alive is not asked of process numbers: they mean nothing across containers."""
    first, theirs = holding(tmp_path)
    second, ours = holding(tmp_path)
    with new_files(tmp_path):
        assert theirs != ours and theirs.is_dir() and ours.is_dir()
    assert second.communicate("")[0].strip() == "mine" and not ours.exists()
    assert theirs.is_dir(), "those that end leave the living alone"
    first.kill()
    first.wait()
    assert theirs.is_dir()
    with new_files(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == [], "the dead one's is removed, locks and all"


# training


def test_a_changed_corpus_is_not_resumed(start: Starter, tmp_path: Path, job: dict[str, Any]) -> None:
    """Halved, in another order, with other texts; put back, it goes on; without --resume it starts anew."""
    code, output = run(start, tmp_path, job)
    assert code == 0, output
    file = tmp_path / "texts.jsonl"
    content = file.read_text()
    lines = content.splitlines(keepends=True)
    student = (tmp_path / "out/student/model.safetensors").read_bytes()
    for changed, said in (
        (lines[:60], "items: 120 then, 60 now"),
        (lines[::-1], "the same items in another order"),
        ([*lines[:-1], '{"text": "something quite different, of which nobody has heard"}\n'], "then|other items"),
    ):
        file.write_text("".join(changed))
        code, output = run(start, tmp_path, None, "--resume")
        assert code == 2 and "corpus has changed" in output and "without --resume" in output, output
        assert any(part in output for part in said.split("|")), output
        assert (tmp_path / "out/student/model.safetensors").read_bytes() == student
    file.write_text(content)
    code, output = run(start, tmp_path, None, "--resume")
    assert code == 0, output
    file.write_text("".join(lines[:60]))
    code, output = run(start, tmp_path, None)
    assert code == 0 and (tmp_path / "out/checkpoints-before").is_dir(), output


@pytest.mark.parametrize(("lr", "heads_lr"), [(1e308, 1e-3), (1e-3, 1e308), (1e30, 1e-3)])
def test_rates_that_blow_the_weights_up(
    start: Starter, tmp_path: Path, job: dict[str, Any], lr: float, heads_lr: float
) -> None:
    """In the last step: no loss comes after it, and what is not finite must not ship."""
    job["optimizer"] = {"lr": lr, "heads_lr": heads_lr}
    job["training"] |= {"max_steps": 1, "lr_scheduler_type": "constant", "warmup_steps": 0}
    code, output = run(start, tmp_path, job)
    assert code == 3 and "not finite" in output and "Lower optimizer" in output, output
    assert not (tmp_path / "out/student").exists()
    if lr > 1e100 or heads_lr > 1e100:  # what is not finite is no checkpoint either
        assert not list((tmp_path / "out").glob("checkpoints/checkpoint-*"))


def test_a_fine_tuning_that_blows_up(tmp_path: Path, tiny_bert: Path) -> None:
    from distilvec.flow.finetune import finetune

    rows = [{"text": f"text {number}", "label": "a" if number % 2 else "b"} for number in range(16)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = {"max_steps": 1, "lr_scheduler_type": "constant", "warmup_steps": 0, "use_cpu": True}
    with pytest.raises(
        DataError, match=r"^step 1: \d+ tensors .*student\.0\.model\..*optimizer\.lr and optimizer\.heads_lr"
    ):
        finetune(tiny_bert, tmp_path / "rows.jsonl", tmp_path / "out", training=training, optimizer={"lr": 1e308})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content", [b"\xff\xfe{", b"", b"[]", b'{"global_step": "many"}', b'{"nothing": 1}', b"[" * 100_000]
)
def test_a_checkpoint_whose_state_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4/trainer_state.json").write_bytes(content)
    with pytest.raises(DataError, match=r"/checkpoint-4/trainer_state\.json: .*\(.+\)"):
        newest_checkpoint(tmp_path)


def test_a_log_that_cannot_be_decoded(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_bytes(
        b'{"step": 1, "loss": 2.0}\n\xff\xfe\x00\n{"step": ' + b"7" * 5000 + b"}\n" + b"[" * 9000 + b'\n{"step": 2}\n'
    )
    RunLog(tmp_path / "run.jsonl", Accelerator(cpu=True), 2)
    assert [json.loads(line)["step"] for line in (tmp_path / "run.jsonl").read_text().splitlines()] == [1, 2]


# teaching


def test_two_that_teach_one_store_pay_once(start: Starter, tmp_path: Path, job: dict[str, Any]) -> None:
    (tmp_path / "held_service.py").write_text(HELD)
    (tmp_path / "hold").touch()
    job["teachers"] = [{"name": "slow", "call": "held_service:embed", "batch_size": 2}]
    write(tmp_path, job)
    both = [start(arguments=["teach", "recipe.yaml"], folder=str(tmp_path)) for _ in range(2)]
    both[0].until(lambda: any("waiting until" in each.output for each in both))
    (tmp_path / "hold").unlink()
    told = [running.wait() for running in both]
    assert [code for code, _ in told] == [0, 0], told
    assert sum("waiting until it is done" in output for _, output in told) == 1, told
    # Each looks at its teacher with a few texts first.
    assert 120 <= (tmp_path / "calls").read_text().count("\n") < 160
    assert len(SignalStore.open(tmp_path / "out/stores/slow")) == 120
    assert not list((tmp_path / "out/stores/slow").glob("*.lock"))


def test_the_waiting_run_continues_after_the_other_is_killed(
    start: Starter, tmp_path: Path, job: dict[str, Any]
) -> None:
    (tmp_path / "held_service.py").write_text(HELD)
    (tmp_path / "hold").touch()
    job["teachers"] = [{"name": "slow", "call": "held_service:embed", "batch_size": 2}]
    write(tmp_path, job)
    first = start(arguments=["teach", "recipe.yaml"], folder=str(tmp_path))
    first.until((tmp_path / "held").exists)
    waiting = start(arguments=["teach", "recipe.yaml"], folder=str(tmp_path))
    stopped = start(arguments=["teach", "recipe.yaml"], folder=str(tmp_path))
    for each in (waiting, stopped):
        each.until(lambda each=each: "waiting until" in each.output)  # type: ignore[misc]
    stopped.kill(signal.SIGTERM)
    code, told = stopped.wait()
    assert code == 143 and "another process was teaching" in told, told
    first.kill(signal.SIGKILL)
    (tmp_path / "hold").unlink()
    code, told = waiting.wait()
    assert code == 0 and "120 rows" in told, told


@pytest.mark.parametrize("words", ["sys.exit(0)", "sys.exit('bye')", "raise SystemExit", "exit()"])
def test_a_function_that_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    name = f"quitter_{abs(hash(words))}"
    monkeypatch.chdir(tmp_path)
    code = f"import sys\ncalls = []\ndef embed(texts):\n    calls.append(1)\n    if len(calls) > 1:\n        {words}\n"
    (tmp_path / f"{name}.py").write_text(code + "    return [[1.0, 2.0] for _ in texts]\n")
    teacher = load_teacher(call=f"{name}:embed")
    with pytest.raises(DistilvecError, match=r"^teacher: .*SystemExit: "):
        list(teacher.stream(["a text"]))
    (tmp_path / f"{name}_import.py").write_text(f"import sys\n{words}\n")
    with pytest.raises(DistilvecError, match=rf'{name}_import:embed: .*"{name}_import" .*SystemExit: '):
        find_function(f"{name}_import:embed")


def test_a_command_whose_teacher_ends_the_process_fails(start: Starter, tmp_path: Path, job: dict[str, Any]) -> None:
    (tmp_path / "leaver.py").write_text(
        HELD.replace("batches.extend([1]", "len(texts) > 1 and exit(0)\n    batches.extend([1]")
    )
    job["teachers"] = [{"name": "leaver", "call": "leaver:embed"}]
    code, output = run(start, tmp_path, job)
    assert code == 2 and "the function ends the process" in output, output
    assert not (tmp_path / "out/student").exists()


# float16


@pytest.mark.parametrize("size", [1e-9, 1e-6, 1e-30, 2.0**-140, 1.0, 100.0])
def test_small_vectors_keep_their_digits(tmp_path: Path, size: float) -> None:
    rng = np.random.default_rng(0)
    vectors = (rng.standard_normal((40, 24)) * size).astype(np.float32)
    vectors[0] = 0
    keys = rng.integers(0, 256, (40, 16), dtype=np.uint8)
    store = SignalStore.from_vectors(tmp_path, {"fingerprint": "x"}, keys, vectors)
    found = SignalStore.open(tmp_path, verify=True).read(store.rows(keys))
    exact = vectors.astype(float)
    errors = np.linalg.norm(found - exact, axis=1)[1:] / np.linalg.norm(exact, axis=1)[1:]
    assert not found[0].any() and errors.max() < (0.0005 if size > 1e-38 else 0.2)
    assert store.statistics().relative_error < (0.0005 if size > 1e-38 else 0.2)


def test_a_store_mixes_parts_with_and_without_scales(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    large, small = rng.standard_normal((2, 20, 8)).astype(np.float32)
    keys = rng.integers(0, 256, (40, 16), dtype=np.uint8)
    card = {"fingerprint": "x"}
    SignalStore.from_vectors(tmp_path, card, keys[:20], large)
    both = np.concatenate([large[:3], small[3:] * 1e-9])
    store = SignalStore.from_vectors(tmp_path, card, keys[20:], both)
    assert len(store.parts) == 2
    assert np.allclose(store.read(store.rows(keys[:20])), large, rtol=1e-3)
    assert np.allclose(store.read(store.rows(keys[20:])), both, rtol=2e-3, atol=1e-13)


# results of comparisons


def test_a_comparison_s_results_are_found_by_content(tmp_path: Path, job: dict[str, Any]) -> None:
    """Another student, teacher, corpus, task or weights under the same names is another comparison."""
    rows = [{"a": f"text {n}", "b": f"other {n}", "score": n} for n in range(9)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"name": "pairs", "kind": "similarity", "test": "pairs.jsonl", "text1": "a", "text2": "b"}

    def identity(**sections: Any) -> str:
        write(tmp_path, job | {"judging": {"tasks": [task]}} | sections)
        return identity_of(Job(Recipe.load(tmp_path / "recipe.yaml", output=tmp_path / "out")))

    first = identity()
    assert identity() == first and identity(method={"name": "mse"}, training={"seed": 5}) == first
    seen = {first}

    def new(found: str) -> bool:
        before = len(seen)
        seen.add(found)
        return len(seen) == before + 1

    assert new(identity(student={"model": "model", "max_length": 20}))
    weights = tmp_path / "model/model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-4] + bytes(4))
    assert new(identity()), "other weights at the same place"
    weights.write_bytes(content)
    assert identity() == first
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row | {"score": -row["score"]}) + "\n" for row in rows))
    assert new(identity()), "other labels in the same file"
    assert new(identity(judging={"tasks": [task | {"seed": 1}]}))
    assert new(identity(teachers=[job["teachers"][0] | {"weight": 2.0}])), "another weight"
    fresh = {"fresh": {"layers": 1, "width": 32, "heads": 2, "vocabulary": 400}}
    assert new(identity(student=fresh)) and new(identity(student=fresh, training={"seed": 5})), "made by chance"
    vectors = np.load(tmp_path / "vectors.npy")
    np.save(tmp_path / "vectors.npy", vectors + 1)
    assert new(identity()), "another teacher"
    (tmp_path / "texts.jsonl").write_text("".join((tmp_path / "texts.jsonl").read_text().splitlines(True)[:90]))
    assert new(identity()), "another corpus"


def test_digests_of_content() -> None:
    values: list[Any] = [1, "1", 1.0, True, None, [1], [[1]], {"a": 1}, {"a": [1]}, {1}, np.array([1]), np.array([1.0])]
    values += [b"1", ["a", "b"], ["ab"], np.zeros((2, 3)), np.zeros((3, 2)), torch.nn.Linear, len]
    assert len({content_digest(value) for value in values}) == len(values)
    loop: list[Any] = []
    loop.append(loop)
    assert content_digest(loop) == content_digest(loop)
    assert content_digest({"a": 1, "b": 2}) == content_digest({"b": 2, "a": 1})


# what is made of corpora and stores


@pytest.mark.parametrize("how", ["zeroed", "cut", "text"])
def test_damaged_alignments_are_made_again(
    how: str, tiny_model_folders: dict[str, Path], sentences: list[str], tmp_path: Path
) -> None:
    def run(place: str) -> np.ndarray:
        made = distilvec.distill(
            str(tiny_model_folders["bert"]),
            student=str(tiny_model_folders["gpt2"]),
            corpus=sentences[:24],
            method="emo",
            output=tmp_path / place,
            cache=str(tmp_path / "cache"),
            training={"epochs": 1, "batch_size": 8},
            judging={"agreement": False, "speed": False},
        )
        return distilvec.load(made.folder / "student").encode(sentences[:4])

    first = run("first")
    kept = [
        file for file in (tmp_path / "cache").rglob("*") if re.match(r"[0-9a-f]{16}-", file.name) and file.is_file()
    ]
    assert len(kept) > 1
    for file in kept:
        content = file.read_bytes()
        damaged = {"zeroed": bytes(len(content)), "cut": content[: len(content) // 2], "text": b"mine"}
        file.write_bytes(damaged[how])
    assert (run("second") == first).all()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY"])
def test_damaged_vectors_of_pieces_are_made_again(content: bytes, tiny_bert: Path, tmp_path: Path) -> None:
    teacher = load_student(tiny_bert)
    first = piece_vectors(teacher, np.arange(50, 90), cache=tmp_path)
    (file,) = tmp_path.glob("*.npz")
    whole = file.read_bytes()
    file.write_bytes(content or whole[:300] + bytes(64) + whole[364:])
    assert (piece_vectors(teacher, np.arange(50, 90), cache=tmp_path) == first).all() and file.read_bytes() == whole


def test_a_foreign_task_head(tmp_path: Path) -> None:
    TaskHead(8, labels=["a", "b"]).save(tmp_path / "model")
    task = tmp_path / "model/task"
    config = json.loads((task / "task.json").read_text())
    for broken in ({"width": 10**12}, {"width": -1}, {"width": "8"}, {"labels": [str(n) for n in range(10**6)]}):
        (task / "task.json").write_text(json.dumps({**config, "width": 1024, **broken}))
        with pytest.raises(DataError, match="/task: "):
            TaskHead.load(tmp_path / "model")
    (task / "task.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="/task: "):
        TaskHead.load(tmp_path / "model")
    (task / "head.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (task / "head.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    (task / "task.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"/task: .*link leads out"):
        TaskHead.load(tmp_path / "model")
