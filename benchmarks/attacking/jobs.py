"""The commands that are killed, what they work on, and what has to be true of what they leave."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attacking import whole

#: Of JSON files: what a clock or a process number says.
CLOCKED = re.compile(
    r"second|\.cost\.|_per_|runtime|latency|speed|_ms\b|time|bytes|created|version|git|host|pid|writer|peak|load|machine|digest|checksum"
)


@dataclass(frozen=True)
class Job:
    """A command that is killed and started again.

    Attributes:
        command: what it counts as.
        arguments: of the first start; relative paths are those of the case's folder.
        again: of the following ones.
        finished: what it says where it is done already, and refuses to do it again.
        check: (folder of the case, of the run that was not killed) -> what is wrong.
    """

    command: str
    arguments: tuple[str, ...]
    check: Callable[[Path, Path], list[str]]
    again: tuple[str, ...] = ()
    finished: str | None = None

    @property
    def name(self) -> str:
        return " ".join(self.arguments)


def recipes(inputs: Path) -> dict[str, dict[str, Any]]:
    """Name -> a recipe on the inputs."""
    given = {"name": "given", "vectors": str(inputs / "vectors.npy"), "texts": str(inputs / "known.txt")}
    mine = {"name": "mine", "model": str(inputs / "bert")}
    tasks: list[dict[str, Any]] = [
        {"name": "similar", "kind": "similarity", "test": str(inputs / "similar.jsonl")},
        {
            "name": "topics",
            "kind": "classification",
            "train": str(inputs / "train.jsonl"),
            "test": str(inputs / "test.jsonl"),
        },
    ]
    plain: dict[str, Any] = {
        "corpus": {"path": str(inputs / "texts.jsonl"), "holdout": 0.2},
        "teachers": [given],
        "student": {"model": str(inputs / "bert")},
        "method": {"name": "cosine"},
        "optimizer": {"lr": 1e-2},
        "training": {"epochs": 1, "batch_size": 12, "save_every": 2, "logging_steps": 1, "use_cpu": True},
        "judging": {"speed": False, "tasks": tasks[:1]},
        "output": "out",
    }
    sharp = {"lr": 1e-2, "sharpness": {"kind": "asam", "rho": 0.3}}
    return {
        "plain": plain,
        "many": plain | {"corpus": {"path": str(inputs / "many.jsonl")}, "teachers": [given, mine]},
        "tokens": plain | {"teachers": [{"name": "seen", "model": str(inputs / "qwen3")}], "method": {"name": "dskd"}},
        "sharp": plain | {"teachers": [mine], "method": {"name": "talas"}, "optimizer": sharp},
        "planned": plain | {"corpus": {"path": str(inputs / "many.jsonl")}, "teachers": [mine]},
        "both": plain | {"teachers": [given, mine]},
        "judged": plain | {"judging": {"speed": False, "tasks": tasks}, "teachers": [mine]},
        "mined": {
            "corpus": {"path": str(inputs / "pairs.jsonl"), "text": ["query", "document"]},
            "teachers": [mine],
            "mining": {"negatives": 1},
            "output": "out",
        },
        "scored": plain
        | {
            "corpus": {"path": str(inputs / "pairs.jsonl"), "text": ["query", "document"], "holdout": 0.2},
            "scorers": [{"name": "judge", "scores": str(inputs / "scores.jsonl")}],
            "method": {"name": "margin_mse"},
        },
    }


def jobs(inputs: Path) -> list[Job]:
    """Every command, some of them on several inputs."""
    resume = ("--resume",)

    def recipe(command: str, name: str, check: Any, *more: str, again: tuple[str, ...] = ()) -> Job:
        arguments = (command, str(inputs / f"{name}.yaml"), *more)
        return Job(command, arguments, check, (*arguments, *again))

    def other(*arguments: str, check: Any, finished: str | None = None) -> Job:
        return Job(arguments[0], arguments, check, arguments, finished)

    bert, kept = str(inputs / "bert"), "this folder holds a model, and it would be lost"
    index = ("--vectors", str(inputs / "index.npy"), "--texts", str(inputs / "known.txt"))
    labelled = ("--data", str(inputs / "train.jsonl"), "--validation", str(inputs / "test.jsonl"))
    return [
        recipe("teach", "many", same_stores),
        recipe("teach", "tokens", same_stores),
        recipe("train", "plain", same_training, again=resume),
        recipe("train", "sharp", same_training, again=resume),
        recipe("train", "tokens", same_training, again=resume),
        recipe("run", "plain", same_run, again=resume),
        recipe("run", "judged", same_run, again=resume),
        recipe("compare", "judged", same_comparison, "-m", "cosine", "-m", "mse", "--seeds", "2"),
        recipe("plan", "planned", same_stores, "--sample", "100", "--layers", "1"),
        other("finetune", bert, *labelled, "-o", "out", "--epochs", "2", "--batch-size", "8", check=same_finetuning),
        other("compress", bert, "--data", str(inputs / "texts.jsonl"), "-o", "out", "--limit", "20", check=same_table),
        other("export", bert, "-o", "out", check=same_export),
        recipe("mine", "mined", same_mining),
        other("shrink", bert, "-o", "out", "--layers", "1", check=same_model, finished=kept),
        other("adapt", bert, *index, "-o", "out", check=same_model, finished=kept),
        other("evaluate", bert, "-t", str(inputs / "task.yaml"), "-o", "out/scores.json", check=same_scores),
        other("geometry", bert, "--data", str(inputs / "texts.jsonl"), "-o", "out", check=same_names),
    ]


# what has to be true in the end


def same_stores(folder: Path, unkilled: Path) -> list[str]:
    """No row lost, none twice, every vector as in the run that was not killed."""
    from distilvec.store import SignalStore

    found = []
    for card in sorted((unkilled / "out").glob("**/store.json")):
        name = card.parent.relative_to(unkilled)
        mine, theirs = SignalStore.open(folder / name, verify=True), SignalStore.open(card.parent, verify=True)
        keys = [whole.all_keys(store) for store in (mine, theirs)]
        if mine.bad:
            found.append(f"{name}: bad parts {mine.bad}")
        if len({bytes(key) for key in keys[0]}) != len(keys[0]):
            found.append(f"{name}: a row twice")
        if {bytes(key) for key in keys[0]} != {bytes(key) for key in keys[1]}:
            found.append(f"{name}: {len(keys[0])} rows, not {len(keys[1])}")
        elif (mine.read(mine.rows(keys[1])) != theirs.read(theirs.rows(keys[1]))).any():
            found.append(f"{name}: other vectors")
    return found


def same_training(folder: Path, unkilled: Path) -> list[str]:
    """The weights bit by bit, every logged value, and the stores."""
    found = same_bytes(folder, unkilled, "out/student/model.safetensors")
    if log(folder / "out/run.jsonl") != log(unkilled / "out/run.jsonl"):
        found.append("run.jsonl differs")
    return found + same_stores(folder, unkilled) + same_names(folder, unkilled)


def same_run(folder: Path, unkilled: Path) -> list[str]:
    """As a training, and the report says the same."""
    return same_training(folder, unkilled) + same_json(folder, unkilled, "out/report.json")


def same_comparison(folder: Path, unkilled: Path) -> list[str]:
    students = sorted(file.relative_to(unkilled) for file in unkilled.glob("out/**/student/model.safetensors"))
    found = [line for name in students for line in same_bytes(folder, unkilled, str(name))]
    for name in ("out/compare.json", *(f"out/baselines/{file.name}" for file in unkilled.glob("out/baselines/*.json"))):
        found += same_json(folder, unkilled, name)
    return found + same_stores(folder, unkilled) + same_names(folder, unkilled)


def same_finetuning(folder: Path, unkilled: Path) -> list[str]:
    files = ("out/model.safetensors", "out/task/head.safetensors")
    found = [line for name in files for line in same_bytes(folder, unkilled, name)]
    return found + same_json(folder, unkilled, "out/task/finetune.json") + same_names(folder, unkilled)


def same_table(folder: Path, unkilled: Path) -> list[str]:
    return same_json(folder, unkilled, "out/compression.json") + same_names(folder, unkilled)


def same_mining(folder: Path, unkilled: Path) -> list[str]:
    return same_bytes(folder, unkilled, "out/mined.jsonl") + same_stores(folder, unkilled)


def same_model(folder: Path, unkilled: Path) -> list[str]:
    return same_bytes(folder, unkilled, "out/model.safetensors") + same_names(folder, unkilled)


def same_scores(folder: Path, unkilled: Path) -> list[str]:
    return same_json(folder, unkilled, "out/scores.json")


def same_export(folder: Path, unkilled: Path) -> list[str]:
    from distilvec.export import load_onnx

    found = same_names(folder, unkilled)
    texts = ["one text", "and another one"]
    for precision in ("float32", "int8"):
        mine, theirs = (load_onnx(place / "out", precision=precision, threads=1) for place in (folder, unkilled))
        if not np.array_equal(mine.encode(texts), theirs.encode(texts)):
            found.append(f"{precision}: other vectors")
    return found


def same_bytes(folder: Path, unkilled: Path, name: str) -> list[str]:
    if not (folder / name).is_file():
        return [f"{name} is missing"]
    return [] if (folder / name).read_bytes() == (unkilled / name).read_bytes() else [f"{name} differs"]


def same_json(folder: Path, unkilled: Path, name: str) -> list[str]:
    """Equal but for what clocks and the machine say."""
    if not (folder / name).is_file():
        return [f"{name} is missing"]
    mine, theirs = (
        _flat(json.loads((place / name).read_text(encoding="utf-8").replace(str(place), "PLACE")))
        for place in (folder, unkilled)
    )
    different = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
    return [f"{name}: {key} is {mine.get(key)!r}, not {theirs.get(key)!r}" for key in different[:3]]


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, each in value.items() for k, v in _flat(each, f"{path}.{key}").items()}
    if isinstance(value, list):
        return {k: v for number, each in enumerate(value) for k, v in _flat(each, f"{path}.{number}").items()}
    return {} if CLOCKED.search(path) else {path: value}


def same_names(folder: Path, unkilled: Path) -> list[str]:
    """The files of the run that was not killed are all there; none lies about half-written."""
    mine, theirs = (
        {re.sub(r"\d{6}|-\d+-", "N", str(file.relative_to(place / "out"))) for file in (place / "out").rglob("*")}
        for place in (folder, unkilled)
    )
    skipped = re.compile(r"^(stores|tokens|alignments|pieces|corpus|checkpoints|\.)")
    missing = sorted(name for name in theirs - mine if not skipped.match(name))
    return [f"{name} is missing" for name in missing[:3]]


def log(file: Path) -> list[dict[str, Any]]:
    """The log without what a clock says."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if not CLOCKED.search(key)} for line in lines]


def fresh(folder: Path) -> Path:
    """An empty folder for one case, with files of somebody else that look like ours."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "tmp").mkdir(parents=True)
    for name in ("recipe.yaml", "report.json", "out.partial-2023/notes.txt", "checkpoints-before/a", ".out.old/b"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"mine: {name}\n")
    return folder


def foreign_touched(folder: Path) -> list[str]:
    """Which of those files are not as they were."""
    names = ("recipe.yaml", "report.json", "out.partial-2023/notes.txt", "checkpoints-before/a", ".out.old/b")
    return [
        f"the foreign file {name} was touched"
        for name in names
        if not (folder / name).is_file() or (folder / name).read_text() != f"mine: {name}\n"
    ]
