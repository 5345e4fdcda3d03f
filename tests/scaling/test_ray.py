"""Teaching with Ray, on a cluster of two nodes: the content is that of one process, whoever dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.scaling.content import same_content

from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.recipe import Recipe
from distilvec.scaling import teach_alone, teach_with_ray
from distilvec.scaling.ledger import MOST_ATTEMPTS, Ledger
from distilvec.scaling.pool import Pool, pool_of
from distilvec.store import RaggedSignal, SignalStore


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Address of a cluster of two nodes with a processor each, on this machine."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args=node)
    found.add_node(num_cpus=1, object_store_memory=80 << 20)
    yield found.address
    found.shutdown()


@pytest.fixture
def texts(tmp_path: Path, sentences: list[str]) -> list[str]:
    found = list(dict.fromkeys(" ".join(text.split()[:12]) for text in sentences))[:120]
    (tmp_path / "texts.txt").write_text("\n".join(found), encoding="utf-8")
    return found


def recipe_of(folder: Path, teacher: dict[str, Any], student: Path, output: str, **more: Any) -> Recipe:
    sections = {
        "corpus": {"path": str(folder / "texts.txt")},
        "teachers": [{"name": "mine", **teacher}],
        "student": {"model": str(student)},
        "method": {"name": "cosine"},
        "output": str(folder / output),
    }
    return Recipe.build({**sections, **more})


def test_two_workers_teach_what_one_process_teaches(
    cluster: str, tmp_path: Path, texts: list[str], tiny_bert: Path
) -> None:
    one = teach_alone(recipe_of(tmp_path, {"model": str(tiny_bert)}, tiny_bert, "one"))[0][0]
    recipe = recipe_of(tmp_path, {"model": str(tiny_bert)}, tiny_bert, "two")
    ((two, filled),) = teach_with_ray(recipe, workers=2, address=cluster, chunk=12)
    same_content(one, two)
    assert (filled.taught, filled.present, filled.absent) == (len(texts), 0, 0)
    assert len(filled.parts) == 10
    assert [file.suffix for file in (two.path / "derived").iterdir()] == [".npy"]
    ((_, again),) = teach_with_ray(recipe, workers=2, address=cluster)
    assert (again.present, again.taught, again.parts) == (len(texts), 0, [])


def test_token_signals_too(cluster: str, tmp_path: Path, texts: list[str], tiny_bert: Path) -> None:
    stores = []
    for output in ("one", "two"):
        recipe = recipe_of(tmp_path, {"model": str(tiny_bert)}, tiny_bert, output, method={"name": "emo"})
        done = teach_alone(recipe) if output == "one" else teach_with_ray(recipe, address=cluster, chunk=40)
        stores.append(done[0][0])
    same_content(*stores)
    names = {file.name.split("-")[0] for file in stores[0].path.glob("*.arrow")}
    assert names == {file.name.split("-")[0] for file in stores[1].path.glob("*.arrow")} and len(names) > 1


def embedder(folder: Path, per_batch: float = 0.0, deadly: str | None = None) -> Callable[[list[str]], np.ndarray]:
    """A function that leaves its process's number in a folder, takes its time, and may kill its process at a text."""

    def embed(batch: list[str]) -> np.ndarray:
        (folder / f"pid-{os.getpid()}").touch()
        if len(batch) > 1:
            time.sleep(per_batch)
        if deadly in batch and (folder / "deadly").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return np.array([[len(text), text.count("e"), text.count(" "), 1.0] for text in batch])

    return embed


def teacher_of(folder: Path, **options: Any) -> dict[str, Any]:
    return {"call": embedder(folder, **options), "batch_size": 4}


def test_a_killed_worker_costs_at_most_its_part(
    cluster: str, tmp_path: Path, texts: list[str], tiny_bert: Path
) -> None:
    recipe = recipe_of(tmp_path, teacher_of(tmp_path, per_batch=0.1), tiny_bert, "out")
    store, killed = Path(recipe.output) / "stores/mine", []

    def kill() -> None:
        while len(list(store.glob("sentence-*.json"))) < 2:
            time.sleep(0.01)
        killed.extend(held(store))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    ((found, filled),) = teach_with_ray(recipe, workers=2, address=cluster, chunk=12)
    thread.join(10)
    assert killed and len(list(tmp_path.glob("pid-*"))) >= 3  # two workers, and the one that took the dead one's place
    assert filled.taught == len(texts) == len(found)
    same_content(teach_alone(recipe_of(tmp_path, teacher_of(tmp_path), tiny_bert, "one"))[0][0], found)
    assert SignalStore.open(found.path, verify=True).bad == {}


def held(store: Path) -> list[int]:
    """Processes that hold the lock of a writer of this store."""
    locks = {os.stat(file).st_ino for file in store.glob("writer-*.lock")}
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return [int(line[4]) for line in lines if line[1] == "FLOCK" and int(line[5].rsplit(":", 1)[1]) in locks]


def test_texts_that_kill_every_worker_are_named(
    cluster: str, tmp_path: Path, texts: list[str], tiny_bert: Path
) -> None:
    recipe = recipe_of(tmp_path, teacher_of(tmp_path, deadly=texts[70]), tiny_bert, "out")
    (tmp_path / "deadly").touch()
    with pytest.raises(DistilvecError, match=rf"{MOST_ATTEMPTS} workers died .* rows 60 to 79"):
        teach_with_ray(recipe, workers=1, address=cluster, chunk=20)
    kept = len(SignalStore.open(Path(recipe.output) / "stores/mine"))
    assert kept >= 60
    (tmp_path / "deadly").unlink()
    ((store, filled),) = teach_with_ray(recipe, workers=1, address=cluster)
    assert (len(store), filled.present) == (len(texts), kept)


def test_a_workers_error_is_the_drivers(cluster: str, tmp_path: Path, texts: list[str], tiny_bert: Path) -> None:
    def embed(batch: list[str]) -> np.ndarray:
        return np.array([[np.nan if text == texts[100] else len(text), 1.0] for text in batch])

    recipe = recipe_of(tmp_path, {"call": embed}, tiny_bert, "out")
    with pytest.raises(DataError, match="not finite"):
        teach_with_ray(recipe, workers=1, address=cluster, chunk=20)
    with pytest.raises(DistilvecError, match="no-such-model"):
        teach_with_ray(recipe_of(tmp_path, {"model": "no-such-model"}, tiny_bert, "x"), workers=1, address=cluster)


# without a cluster


def test_without_ray_the_extra_is_named(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    recipe = recipe_of(tmp_path, {"model": "any"}, tmp_path, "out")
    with pytest.raises(EnvironmentProblem, match=r"pip install 'distilvec\[ray\]'"):
        teach_with_ray(recipe)


class Nodes:
    def __init__(self, *nodes: tuple[float, float]) -> None:
        self._nodes = [{"Alive": True, "Resources": {"CPU": cpus, "GPU": gpus}} for cpus, gpus in nodes]

    def nodes(self) -> list[dict[str, Any]]:
        return self._nodes


@pytest.mark.parametrize(
    ("nodes", "workers", "expected"),
    [
        ([(8, 0)], None, Pool(4, 2, 0)),
        ([(1, 0)], None, Pool(1, 1, 0)),
        ([(8, 0)], 2, Pool(2, 4, 0)),
        ([(2, 0)], 4, Pool(4, 1, 0)),
        ([(16, 0), (16, 0)], 3, Pool(3, 8, 0)),
        ([(64, 8), (64, 8), (0, 0)], None, Pool(16, 1, 1)),
        ([(16, 2)], 1, Pool(1, 1, 1)),
        ([(16, 1)], 2, Pool(2, 1, 0.5)),
    ],
)
def test_what_a_worker_takes(nodes: list[tuple[float, float]], workers: int | None, expected: Pool) -> None:
    assert pool_of(Nodes(*nodes), workers) == expected


def test_the_ledger_counts_what_is_covered_and_what_was_begun_again() -> None:
    ledger = Ledger()
    assert [ledger.begin(0), ledger.begin(1), ledger.begin(0)] == [1, 1, 2]
    assert not ledger.advance(0, 5) and not ledger.advance(1, 3) and not ledger.advance(0, 6)
    assert ledger.state() == (9, 1)
    ledger.stop()
    assert ledger.advance(1, 4)


def test_every_wanted_signal_counts_as_missing(tmp_path: Path) -> None:
    from distilvec.scaling.ray_engine import lacking
    from distilvec.scaling.worker import Place
    from distilvec.teachers.signals import NOTHING, Wanted

    keys = np.arange(48, dtype=np.uint8).reshape(3, 16)
    store = SignalStore.from_vectors(tmp_path, {"fingerprint": "v"}, keys[:2], np.eye(2, 4, dtype=np.float32))
    logits = RaggedSignal.create(tmp_path, "logits", 1, "float32")
    writer = logits.writer("w", 1 << 20)
    writer.add(keys[:1], [np.ones((3, 1), np.float32)])
    writer.flush()
    assert lacking(store, Place(tmp_path, NOTHING), keys).tolist() == [False, False, True]
    assert lacking(store, Place(tmp_path, Wanted(logits=True)), keys).tolist() == [False, True, True]
