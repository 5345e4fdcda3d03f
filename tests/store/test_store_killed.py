"""Processes that are really killed, run out of room, or teach side by side: the content ends the same."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tests.training.starting import Running

from distilvec.store import RaggedSignal, SignalStore, fill, keyed

Start = Callable[..., Running]
ITEMS = 600


def check_complete(folder: Path, filling: ModuleType, items: int = ITEMS) -> SignalStore:
    """Every text has its own vector, once, and nothing unfinished lies about."""
    store = SignalStore.open(folder, verify=True)
    assert store.bad == {}
    texts = filling.texts(items)
    keys = filling.keys(texts)
    expected = filling.vectors(texts)
    np.testing.assert_array_equal(store.read(store.rows(keys)), expected.astype(np.float16).astype(np.float32))
    assert len(store) == len(set(texts))
    found, exact = store.statistics(), filling.vectors(sorted(set(texts))).astype(np.float64)
    np.testing.assert_allclose(found.mean, exact.mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found.std, exact.std(axis=0), rtol=1e-10)
    names = {file.name for file in folder.iterdir() if file.suffix != ".lock"}  # the locks of killed writers
    expected_names = {"store.json", "derived"} | {
        f"{part}{suffix}" for part in store.parts for suffix in (".arrow", ".json")
    }
    assert names == expected_names
    assert [file.suffix for file in (folder / "derived").iterdir()] == [".npy"]
    return store


# The calls that make things durable, in order: store.json 1-3, then 5 for each of 4 parts (vectors, folder,
# record, its rename, folder), then 2 for the table of keys.
@pytest.mark.parametrize(
    "point",
    ["disk:1", "disk:2", "disk:4", "disk:6", "disk:7", "disk:8", "disk:12", "disk:21", "disk:24", "disk:25"]
    + ["encode:1", "encode:9", "half:1", "half:3"],
)
def test_killed_anywhere_then_resumed(tmp_path: Path, filling: ModuleType, process: Start, point: str) -> None:
    child = process(tmp_path, "--items", ITEMS, "--die", point)
    code, output = child.wait()
    assert code == -signal.SIGKILL, output

    teacher, texts = filling.HashTeacher(), filling.texts(ITEMS)
    store = SignalStore.create(tmp_path, filling.CARD, filling.WIDTH)
    assert store.bad == {}  # what was unfinished does not exist; nothing finished is bad
    kept = len(store)
    rows = store.rows(filling.keys(texts))
    np.testing.assert_array_equal(
        store.read(rows[rows >= 0]),
        filling.vectors(texts)[rows >= 0].astype(np.float16).astype(np.float32),
    )
    report = fill(store, teacher, texts, filling.keys(texts), part_bytes=filling.PART_BYTES)
    assert (report.present, report.taught) == (kept, len(set(texts)) - kept)
    assert teacher.encoded == report.taught
    complete_parts = {"disk:8": 1, "disk:12": 1, "disk:21": 3, "disk:24": 4, "disk:25": 4, "half:3": 2}
    if point in complete_parts:
        assert kept >= 150 * complete_parts[point] or kept == len(set(texts))
    check_complete(tmp_path, filling)


@pytest.mark.parametrize("point", ["encode:7", "half:1", "half:4", "disk:15", "disk:40"])
def test_token_signals_killed_anywhere_then_resumed(
    tmp_path: Path, filling: ModuleType, process: Start, point: str
) -> None:
    """Each signal has parts of its own, and a kill leaves some of them behind the others."""
    items = 300
    child = process(tmp_path, "--items", items, "--signals", "--die", point)
    code, output = child.wait()
    assert code == -signal.SIGKILL, output

    teacher, texts = filling.HashTeacher(), filling.texts(items)
    keys = filling.keys(texts)
    store = SignalStore.create(tmp_path, filling.CARD, filling.WIDTH)
    report = fill(store, teacher, texts, keys, filling.WANTED, part_bytes=filling.PART_BYTES)
    assert teacher.encoded == report.taught and report.present + report.taught == len(set(texts))
    check = SignalStore.open(tmp_path, verify=True)
    assert check.bad == {}
    expected = filling.vectors(texts).astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(check.read(check.rows(keys)), expected)
    for name in ("tokens-1", "tokens-2"):
        found = RaggedSignal(tmp_path, name)
        for text, states in zip(texts, found.read(found.rows(keys)), strict=True):
            np.testing.assert_array_equal(states, filling.token_states(text).astype(np.float16))
    ids = RaggedSignal(tmp_path, "tokenids")
    assert [len(table) for table in ids.read(ids.rows(keys))] == [len(filling.token_states(text)) for text in texts]
    assert len(list((tmp_path / "derived").glob("tokens-1-index-*.npy"))) == 1  # what finding goes by, as of vectors
    # What was complete before the kill is not there twice.
    assert len(check) == len(set(texts)) and len(found) == len(set(texts))
    assert fill(store, teacher, texts, keys, filling.WANTED).taught == 0


def test_killed_from_outside_again_and_again(tmp_path: Path, filling: ModuleType, process: Start) -> None:
    for wait in (1, 2, 3):  # parts that have to be there before the kill
        child = process(tmp_path, "--items", 1500, "--slow", 0.01)
        child.until(lambda wait=wait: len(list(tmp_path.glob("sentence-*.json"))) >= wait)
        child.kill(signal.SIGKILL)
        assert child.wait()[0] == -signal.SIGKILL
    child = process(tmp_path, "--items", 1500)
    code, output = child.wait()
    assert code == 0, output
    assert json.loads(output)["present"] >= 450
    check_complete(tmp_path, filling, 1500)


def test_two_processes_fill_their_shards_at_once(
    tmp_path: Path, filling: ModuleType, process: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = [process(tmp_path, "--items", 2000, "--shard", shard, 2, "--slow", 0.005) for shard in (0, 1)]
    taught = []
    for child in children:
        code, output = child.wait()
        assert code == 0, output
        taught.append(json.loads(output)["taught"])
    assert sum(taught) == 1800 and min(taught) > 700
    monkeypatch.setattr(keyed, "locate_in_part", None)  # the table of keys knows the parts of both
    check_complete(tmp_path, filling, 2000)


def test_one_shard_killed_does_not_disturb_the_other(tmp_path: Path, filling: ModuleType, process: Start) -> None:
    surviving = process(tmp_path, "--items", 2000, "--shard", 0, 2, "--slow", 0.02)
    while not (tmp_path / "store.json").exists():
        time.sleep(0.001)
    killed = process(tmp_path, "--items", 2000, "--shard", 1, 2, "--die", "half:3")
    assert killed.wait()[0] == -signal.SIGKILL
    again = process(tmp_path, "--items", 2000, "--shard", 1, 2)
    code, output = again.wait()
    assert code == 0, output
    assert json.loads(output)["present"] >= 300
    code, output = surviving.wait()
    assert code == 0, output
    check_complete(tmp_path, filling, 2000)


def test_two_processes_with_the_same_work_agree(tmp_path: Path, filling: ModuleType, process: Start) -> None:
    children = [process(tmp_path, "--items", ITEMS, "--slow", 0.002) for _ in range(2)]
    for child in children:
        code, output = child.wait()
        assert code == 0, output
    texts = filling.texts(ITEMS)
    store = SignalStore.open(tmp_path, verify=True)
    assert len(store) >= len(set(texts)) and store.bad == {}
    np.testing.assert_array_equal(
        store.read(store.rows(filling.keys(texts))),
        filling.vectors(texts).astype(np.float16).astype(np.float32),
    )


@pytest.mark.parametrize("batch", [1, 9])
def test_a_file_size_limit_is_a_clear_error_and_nothing_is_lost(
    tmp_path: Path, filling: ModuleType, process: Start, batch: int
) -> None:
    child = process(tmp_path, "--items", ITEMS, "--limit", f"{batch}:3000")
    code, output = child.wait()
    assert code == 4, output
    assert "File too large" in output and "ulimit -f" in output and "Traceback" not in output
    records = {file.stem for file in tmp_path.glob("*.json")} - {"store"}
    assert {file.stem for file in tmp_path.glob("*.arrow")} == records
    assert bool(records) == (batch > 1)
    assert not list(tmp_path.glob(".distilvec-tmp-*")) and not list(tmp_path.glob("*.lock"))
    child = process(tmp_path, "--items", ITEMS)
    code, output = child.wait()
    assert code == 0, output
    assert (json.loads(output)["present"] > 0) == (batch > 1)
    check_complete(tmp_path, filling)
