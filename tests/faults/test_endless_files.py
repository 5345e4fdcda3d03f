"""Pipes, devices and files of absurd size where people give files: refused before anything is read."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distilvec import folders
from distilvec.corpus import Corpus, read_corpus
from distilvec.errors import DataError, DistilvecError
from distilvec.files import read_small
from distilvec.indexes.queries import read_queries
from distilvec.judging import load_task
from distilvec.judging.loading import read_tasks
from distilvec.recipe import Recipe
from distilvec.scorers.score_file import TableScorer
from distilvec.store import SignalStore
from distilvec.teachers.vectors import VectorsTeacher

ONE = np.ones((1, 2), np.float32)
WAYS: dict[str, tuple[list[str], Callable[[Path], Any]]] = {
    "corpus": (
        ["txt", "csv", "tsv", "json", "jsonl", "parquet", "smi", "csv.gz", "txt.zst"],
        lambda file: read_corpus(file, file.parent / "corpus"),
    ),
    "images": (["npz", "jsonl"], lambda file: read_corpus(file, file.parent / "corpus", modality="image")),
    "vectors": (
        ["npy", "npz", "parquet", "jsonl", "json", "csv", "bin"],
        lambda file: VectorsTeacher(file, texts=["a"]),
    ),
    "texts": (["txt", "jsonl"], lambda file: VectorsTeacher(ONE, texts=file)),
    "keys": (["npy"], lambda file: VectorsTeacher(ONE, keys=file)),
    "scores": (["jsonl", "parquet", "csv"], TableScorer),
    "queries": (["jsonl", "parquet"], lambda file: read_queries(file, None, ["a"], 2)),
    "task": (["yaml", "json"], lambda file: load_task(str(file))),
    "tasks": (["yaml", "json"], lambda file: read_tasks([str(file)])),
    "test": (
        ["jsonl", "parquet", "tsv"],
        lambda file: load_task({"name": "s", "kind": "similarity", "test": str(file)}),
    ),
    "recipe": (["yaml"], Recipe.load),
    "manifest": (["json"], lambda file: Corpus.open(_named(file, "corpus.json"))),
    "store": (["json"], lambda file: SignalStore.open(_named(file, "store.json"))),
}


def _named(file: Path, name: str) -> Path:
    file.rename(file.parent / name)
    return file.parent


@pytest.fixture(params=["pipe", "device"])
def endless(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """What makes a pipe that nobody writes to, or a link to a device that never ends."""

    def make(name: str) -> Path:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        if request.param == "pipe":
            os.mkfifo(tmp_path / name)
        else:
            (tmp_path / name).symlink_to("/dev/zero")
        return tmp_path / name

    yield make


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", WAYS)
def test_endless_files_are_not_opened(way: str, endless: Callable[[str], Path]) -> None:
    for suffix in WAYS[way][0]:
        file = endless(f"{suffix}/given.{suffix}")
        with pytest.raises(
            DistilvecError, match=r"(given\.|corpus\.|store\.).*a pipe, a device or a socket, not a file"
        ):
            WAYS[way][1](file)


def test_a_recipe_of_twenty_megabytes_is_refused_at_once(tmp_path: Path) -> None:
    teachers = "".join(f"  - {{name: t{number}, model: abcdefghijklmnop}}\n" for number in range(460_000))
    (tmp_path / "big.yaml").write_text(f"teachers:\n{teachers}")
    size = (tmp_path / "big.yaml").stat().st_size
    assert size > 20_000_000
    begun = time.process_time()
    for read in (Recipe.load, lambda file: read_tasks([str(file)]), lambda file: load_task(str(file))):
        with pytest.raises(DistilvecError, match=rf"big\.yaml: .*\b{size:,} bytes.*at most 1,048,576"):
            read(tmp_path / "big.yaml")
    assert time.process_time() - begun < 5, "reading it takes minutes"


def test_small_files_are_read_up_to_their_bound(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("é" * 50)
    assert read_small(tmp_path / "a", 100) == "é" * 50
    with pytest.raises(OSError, match="it has 100 bytes, and files of its kind at most 99"):
        read_small(tmp_path / "a", 99)


def test_an_invalid_score_in_a_file_is_refused_with_its_line(tmp_path: Path) -> None:
    for value, told in {
        "9" * 400: "a finite number was expected, not 9999",
        "-" + "9" * 400: "a finite number was expected, not -9999",
        "9" * 5000: "broken JSON",
        "1e400": "a finite number was expected, not inf",
        '"' + "9" * 400 + '"': "a finite number was expected, not '9999",
        "1e39": "too large for a score",
        "[1]": r"a number was expected, not \[1\]",
    }.items():
        (tmp_path / "scores.jsonl").write_text(f'{{"query": "a", "document": "b", "score": {value}}}\n')
        with pytest.raises(DataError, match=rf"scores\.jsonl, line 1.*{told}") as caught:
            TableScorer(tmp_path / "scores.jsonl")
        assert len(str(caught.value)) < 400
    for odd in (10**400, 10**5000):  # which Python does not even write down
        with pytest.raises(DataError, match="row 1, column score: a finite number was expected"):
            TableScorer([{"query": "a", "document": "b", "score": odd}])
        with pytest.raises(DataError, match="row 1, column query: a text was expected"):
            TableScorer([{"query": odd, "document": "b", "score": 1}])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
def test_what_has_no_end_within_an_output_or_a_store_is_named(tmp_path: Path, kind: str) -> None:
    out = folders.claim(tmp_path / "out")
    store = SignalStore.create(out / "stores/t", {"name": "t", "kind": "vectors", "fingerprint": "f" * 16}, 4)
    places = [out / "checkpoints/checkpoint-2/trainer_state.json", out / "tokens/offsets.npy", out / "stores/t/x.json"]
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind == "pipe":
            os.mkfifo(place)
        elif kind == "device":
            place.symlink_to("/dev/zero")
        else:
            os.mknod(place, 0o600 | stat.S_IFSOCK)
        with pytest.raises(DistilvecError, match=rf"{place.name}: expected a file or a folder, found a pipe"):
            folders.claim(out)
        if place == places[-1]:
            with pytest.raises(DistilvecError, match=rf"{place.name}: expected a file or a folder, found a pipe"):
                SignalStore.open(store.path)
        place.unlink()
        folders.claim(out)
    SignalStore.open(store.path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("suffix", ["txt", "csv", "jsonl", "smi", "json"])
def test_a_terabyte_without_a_line_feed_is_no_text(tmp_path: Path, suffix: str) -> None:
    with (tmp_path / f"a.{suffix}").open("wb") as out:
        out.write(b"text,label\n" if suffix == "csv" else b"")
        out.truncate(1 << 40)
    with pytest.raises(DataError, match=rf"a\.{suffix}"):
        read_corpus(tmp_path / f"a.{suffix}", tmp_path / "corpus")
