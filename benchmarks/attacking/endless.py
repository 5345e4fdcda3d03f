"""Pipes, devices and files without an end, wherever a person may give a path, and in every file of a folder given."""

from __future__ import annotations

import functools
import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacking.children import call

HUGE = 1 << 40


def _fifo(place: Path) -> None:
    os.mkfifo(place)


def _socket(place: Path) -> None:
    here = Path.cwd()
    os.chdir(place.parent)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(place.name)
    os.chdir(here)


def _sparse(place: Path) -> None:
    """A terabyte that takes no room."""
    with place.open("wb") as out:
        out.truncate(HUGE)


MAKERS: dict[str, Callable[[Path], None]] = {
    "pipe": _fifo,
    "link to a pipe": lambda place: (_fifo(place.with_name("pipe")), place.symlink_to("pipe"))[1],
    "/dev/zero": lambda place: place.symlink_to("/dev/zero"),
    "/dev/urandom": lambda place: place.symlink_to("/dev/urandom"),
    "/dev/full": lambda place: place.symlink_to("/dev/full"),
    "socket": _socket,
    "terabyte": _sparse,
}
#: Words of a command; what begins with "@" is the path, and says how it ends. "BERT", "TEXTS" ... are among the inputs.
COMMANDS = (
    "run @.yaml",
    "train @.yaml",
    "teach @.yaml",
    "compare @.yaml -m mse",
    "mine @.yaml",
    "plan @.yaml",
    "run RECIPE -o @",
    "train RECIPE -o @/inside",
    "teach RECIPE --dry-run --set corpus.path=@.SUFFIX",
    "teach RECIPE --set corpus.path=@.SUFFIX -o out",
    "teach RECIPE --set teachers.0.vectors=@.VECTORS -o out",
    "teach RECIPE --set teachers.0.texts=@.SUFFIX -o out",
    "teach RECIPE --set teachers.0={name:a,model:@} -o out",
    "teach RECIPE --set teachers.0={name:a,model:BERT,adapters:[@]} -o out",
    "teach SCORED --set scorers.0.scores=@.jsonl -o out",
    "teach SCORED --set scorers.0={name:a,model:@} -o out",
    "teach RECIPE --set cache=@ -o out",
    "train RECIPE --set student.model=@ -o out",
    "train RECIPE --set student.model=@.json -o out",
    "run RECIPE --set judging.tasks.0.test=@.SUFFIX -o out",
    "evaluate @ -t TASK",
    "evaluate BERT -t @.yaml",
    "evaluate BERT -t @.json",
    "evaluate BERT -t @",
    "evaluate BERT -t TASK -o @.json",
    "evaluate BERT -t TASK --results @",
    "shrink @ -o out --layers 1",
    "shrink BERT -o @ --layers 1",
    "shrink BERT -o out --vocabulary 100 --corpus @.SUFFIX",
    "export @ -o out",
    "export BERT -o @",
    "export BERT -o out --web --texts @.SUFFIX",
    "export BERT -o out --web --texts TEXTS --library @",
    "geometry @ --data TEXTS",
    "geometry BERT --data @.SUFFIX",
    "geometry BERT --data TEXTS -o @",
    "compress @ --data TEXTS -o out",
    "compress BERT --data @.SUFFIX -o out",
    "compress BERT --data TEXTS -o @",
    "compress BERT --data TEXTS -o out -t @.yaml",
    "drift @.SUFFIX TEXTS --model BERT",
    "drift TEXTS @.SUFFIX --model BERT",
    "finetune @ --data TRAIN -o out",
    "finetune BERT --data @.SUFFIX -o out",
    "finetune BERT --data TRAIN -o @",
    "finetune BERT --data TRAIN --validation @.SUFFIX -o out",
    "finetune BERT --data TRAIN --test @.SUFFIX -o out",
    "align words --student @ --teacher BERT",
    "align words --student @.json --teacher BERT",
    "align words --student BERT --teacher BERT --picture @.png",
    "size @",
    "clean @ --yes",
    "push @ nobody/nothing",
    "check-index @ --vectors INDEX --texts KNOWN",
    "check-index BERT --vectors @.VECTORS --texts KNOWN",
    "check-index BERT --vectors INDEX --texts @.SUFFIX",
    "adapt BERT --vectors @.VECTORS --texts KNOWN -o out",
    "adapt BERT --vectors INDEX --texts @.SUFFIX -o out",
    "adapt BERT --vectors INDEX --texts KNOWN --queries @.SUFFIX -o out",
    "adapt BERT --vectors INDEX --texts KNOWN -o @",
    "new-method mine --folder @",
    "serve @ --port 0",
    "demo -o @",
    "demo -o out --teacher @",
    "demo -o out --student @",
    "recipes start-texts --data @",
)
SUFFIXES = {
    "SUFFIX": ("txt", "csv", "tsv", "json", "jsonl", "parquet", "smi", "csv.gz", "txt.zst", "npz", "arrow", ""),
    "VECTORS": ("npy", "npz", "parquet", "jsonl", "json", "csv", "bin", "npy.gz"),
}
#: Folders whose files are replaced one at a time -> commands on them, as "out".
FOLDERS = {
    "full": (
        "evaluate out -t TASK",
        "export out -o there",
        "shrink out -o there --layers 1",
        "align words --student out --teacher BERT",
        "finetune out --data TRAIN -o there",
        "teach RECIPE --set teachers.0={name:a,model:out} -o there",
    ),
    "adapters": ("teach RECIPE --set teachers.0={name:a,model:BERT,adapters:[out]} -o there",),
    "finished": (
        "train BOTH -o out --resume",
        "run BOTH -o out --resume",
        "teach BOTH -o out",
        "size out",
        "clean out --yes",
        "push out nobody/nothing",
        "train BOTH -o out",
    ),
    "unfinished": ("train BOTH -o out --resume", "train BOTH -o out", "size out"),
    "compared": ("compare JUDGED -m cosine -m mse --seeds 2 -o out",),
    "finetuned": ("finetune BERT --data TRAIN --validation TEST -o out --epochs 2 --batch-size 8",),
    "exported": ("evaluate out -t TASK", "export BERT -o out"),
    "mined": ("mine MINED -o out",),
}
NAMES = {
    "BERT": "bert",
    "RECIPE": "plain.yaml",
    "BOTH": "both.yaml",
    "JUDGED": "judged.yaml",
    "MINED": "mined.yaml",
    "SCORED": "scored.yaml",
    "TASK": "task.yaml",
    "TEXTS": "texts.jsonl",
    "TRAIN": "train.jsonl",
    "TEST": "test.jsonl",
    "KNOWN": "known.txt",
    "INDEX": "index.npy",
}


@functools.cache
def cases(inputs: Path) -> list[tuple[str, str, str]]:
    """(maker, file of a folder or "", command) of all, mixed."""
    found = []
    for command in COMMANDS:
        ends = next((SUFFIXES[name] for name in SUFFIXES if f"@.{name}" in command), ("",))
        for end in ends:
            words = command.replace("@.SUFFIX", f"@.{end}".rstrip(".")).replace("@.VECTORS", f"@.{end}")
            found += [(maker, "", words) for maker in MAKERS]
    for name, commands in FOLDERS.items():
        for file in sorted(each for each in (inputs / name).rglob("*") if each.is_file()):
            inner = f"{name}/{file.relative_to(inputs / name).as_posix()}"
            found += [(maker, inner, command) for maker in ("pipe", "/dev/zero", "terabyte") for command in commands]
    random.Random("endless").shuffle(found)
    return found


def endless(rng: Any, inputs: Path, folder: Path, mark: Path) -> Callable[[], int | None]:
    """The case of this number."""
    every = cases(inputs)
    maker, file, command = every[rng.number % len(every)]
    rng.told = f"{maker} {file}: {command}"
    words = command.split(" ")
    if file:
        name, _, inner = file.partition("/")
        shutil.copytree(inputs / name, folder / "out")
        (folder / "out" / inner).unlink()
        MAKERS[maker](folder / "out" / inner)
    else:
        place = next(word for word in words if "@" in word)
        end = place.partition("@")[2].partition("/")[0].rstrip("]}")
        MAKERS[maker](folder / f"given{end}")
    words = [_filled(word, inputs) for word in words]
    return lambda: call(words)


def _filled(word: str, inputs: Path) -> str:
    """A word with the names of inputs, and the path that is attacked."""
    word = word.replace("@", "given")
    for name, file in NAMES.items():
        if word == name or (":" in word and name in word):
            word = word.replace(name, str(inputs / file))
    return word.replace(":", ": ").replace(",", ", ") if word.startswith("teachers.0={") or "={" in word else word
