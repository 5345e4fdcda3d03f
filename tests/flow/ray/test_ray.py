"""Teaching with Ray: the content is that of one process, whoever dies."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tests.flow.ray.content import same_content, same_signals
from tests.training.starting import Starter

from distilvec.errors import DataError, DistilvecError, EnvironmentProblem
from distilvec.flow.ray import teach_alone, teach_with_ray
from distilvec.flow.ray.ledger import MOST_ATTEMPTS, Ledger, refuse_deadly
from distilvec.flow.ray.pool import Pool, pool_of
from distilvec.flow.ray.ray_engine import chunk_rows, lacking
from distilvec.recipe import Recipe
from distilvec.store import RaggedSignal, SignalStore
from distilvec.store.layout import read_signals

NODE = {"object_store_memory": 80 << 20, "include_dashboard": False}
#: A dead node is asked three times whether it lives; by default five times, with three seconds between.
HEALTH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster on this machine, with processors for two workers."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_worker_niceness", "0")  # with its 15, workers starve beside other tests
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "_system_config": HEALTH, **NODE})
    yield found
    found.shutdown()


@pytest.fixture(scope="module")
def cluster(nodes: Any) -> str:
    """The address of it."""
    return str(nodes.address)


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


def test_all_signals_are_those_of_one_process(cluster: str, tmp_path: Path, texts: list[str], tiny_bert: Path) -> None:
    alone, pool = (
        recipe_of(
            tmp_path,
            {"model": str(tiny_bert), "token_axes": 8, "dtype": "float32"},
            tiny_bert,
            output,
            method={"name": "emo"},
        )
        for output in ("alone", "pool")
    )
    one = teach_alone(alone)[0][0]
    ((other, filled),) = teach_with_ray(pool, workers=1, address=cluster, chunk=12)
    same_content(one, other)
    same_signals(one, other)
    assert (filled.taught, filled.present, filled.absent) == (len(texts), 0, 0)
    assert len(filled.parts) == 10
    tables = sorted(file.name.rpartition("-")[0] for file in (other.path / "derived").iterdir())
    indexed = [f"{name}-index" for name in read_signals(other.path) if name != "sentence"]
    assert tables == sorted(["index", *indexed]) and len(tables) == 5  # one of each signal, made once


SLOW = """
import time
from pathlib import Path

def embed(texts):
    with open(Path(__file__).with_name("calls"), "a") as calls:
        calls.write("x")
    time.sleep(0.2)
    return [[float(len(text)), 1.0] for text in texts]
"""


def embedder(folder: Path, per_batch: float = 0.0) -> Callable[[list[str]], np.ndarray]:
    """A function that takes its time, and writes the texts it is given to a file named by its process."""

    def embed(batch: list[str]) -> np.ndarray:
        with (folder / f"pid-{os.getpid()}").open("a", encoding="utf-8") as read:
            read.writelines(f"{text}\n" for text in batch)
        if len(batch) > 1:
            time.sleep(per_batch)
        return np.array([[len(text), text.count("e"), text.count(" "), 1.0] for text in batch])

    return embed


def teacher_of(folder: Path, **options: Any) -> dict[str, Any]:
    return {"call": embedder(folder, **options), "batch_size": 4}


def test_what_a_dead_worker_and_a_dead_node_had_begun_is_taught_by_others(
    nodes: Any, tmp_path: Path, texts: list[str], tiny_bert: Path
) -> None:
    """Three nodes with a worker each. First a worker dies, then a node with its worker, both while they write."""
    import ray

    more = [nodes.add_node(num_cpus=2, **NODE) for _ in range(2)]
    recipe = recipe_of(tmp_path, teacher_of(tmp_path, per_batch=0.1), tiny_bert, "out")
    store, lost = Path(recipe.output) / "stores/mine", []
    present = teach_alone(recipe, (0, 4))[0][1].taught
    before = len(list(store.glob("sentence-*.json")))

    def writers(node: Any = None) -> list[int]:
        raylet = node and psutil.Process(node.all_processes["raylet"][0].process.pid)
        while not (found := [pid for pid in held(store) if not node or psutil.Process(pid) in raylet.children(True)]):
            time.sleep(0.01)
        return found

    def kill() -> None:
        while len(list(store.glob("sentence-*.json"))) < before + 2:
            time.sleep(0.01)
        lost.append(writers()[0])
        os.kill(lost[0], signal.SIGKILL)
        drivers = ray.get_runtime_context().get_node_id()
        (socket,) = (node["RayletSocketName"] for node in ray.nodes() if node["NodeID"] == drivers)
        node = next(each for each in more if each.raylet_socket_name != socket)
        lost.extend(writers(node)[:1])
        nodes.remove_node(node, allow_graceful=False)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    ((found, filled),) = teach_with_ray(recipe, workers=3, address=nodes.address, chunk=8)
    thread.join(30)
    nodes.remove_node(next(iter(nodes.worker_nodes)))
    assert len(lost) == 2 and os.getpid() not in lost
    assert (filled.present, filled.taught) == (present, len(texts) - present)
    read = Counter("".join(file.read_text(encoding="utf-8") for file in tmp_path.glob("pid-*")).splitlines())
    assert sum(read[text] > 1 for text in texts) <= 16, "at most the two chunks that the dead had begun"
    alike = recipe_of(tmp_path, teacher_of(tmp_path, per_batch=0.1), tiny_bert, "one")
    same_content(teach_alone(alike)[0][0], found)
    assert SignalStore.open(found.path, verify=True).bad == {}


def held(store: Path) -> list[int]:
    """Processes that hold the lock of a writer of this store."""
    locks = {os.stat(file).st_ino for file in store.glob("writer-*.lock")}
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return [int(line[4]) for line in lines if line[1] == "FLOCK" and int(line[5].rsplit(":", 1)[1]) in locks]


def test_a_workers_error_is_the_drivers(cluster: str, tmp_path: Path, texts: list[str], tiny_bert: Path) -> None:
    def embed(batch: list[str]) -> np.ndarray:
        return np.array([[np.nan if text == texts[100] else len(text), 1.0] for text in batch])

    recipe = recipe_of(tmp_path, {"call": embed}, tiny_bert, "out", corpus={"path": texts, "holdout": 0.0})
    with pytest.raises(DataError, match=r"^mine: .*'.+'.*NaN"):
        teach_with_ray(recipe, workers=1, address=cluster, chunk=20)


def test_a_signal_ends_it_and_keeps_what_was_encoded(
    start: Starter, cluster: str, tmp_path: Path, texts: list[str], tiny_bert: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    recipe = recipe_of(tmp_path, {"call": "slow:embed", "batch_size": 2}, tiny_bert, "out")
    (tmp_path / "recipe.yaml").write_text(recipe.to_yaml())
    words = ["teach", "recipe.yaml", "--engine", "ray", "--workers", "1", "--address", cluster]
    running = start(arguments=words, folder=str(tmp_path))
    store, calls = tmp_path / "out/stores/mine", tmp_path / "calls"

    def called() -> int:
        return calls.stat().st_size if calls.exists() else 0

    running.until(lambda: bool(list(store.glob("writer-*.lock"))), 200)
    before = called()
    running.until(lambda: called() >= before + 3)  # two batches are taught, the third begins
    running.kill(signal.SIGTERM)
    code, output = running.wait()
    assert code == 143, output
    assert "Run the same command again" in output
    assert 0 < len(SignalStore.open(store)) < len(texts), output


# without a cluster


def test_without_ray_the_extra_is_named(tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    recipe = recipe_of(tmp_path, {"model": "any"}, tmp_path, "out")
    with pytest.raises(EnvironmentProblem, match=r"distilvec\[ray\]"):
        teach_with_ray(recipe)


def test_a_cluster_that_is_not_there(tmp_path: Path, texts: list[str]) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    with pytest.raises(EnvironmentProblem, match=r"^127\.0\.0\.1:9: .*`ray status`"):
        teach_with_ray(recipe_of(tmp_path, {"model": "any"}, tmp_path, "out"), address="127.0.0.1:9")


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


@pytest.mark.parametrize(("texts", "workers", "rows"), [(200, 2, 32), (100_000, 4, 1563), (10**9, 8, 83_886)])
def test_how_many_texts_a_worker_takes_at_a_time(tmp_path: Path, texts: int, workers: int, rows: int) -> None:
    assert chunk_rows(SignalStore.create(tmp_path, {"fingerprint": "v"}, 392), texts, workers) == rows


def test_texts_that_kill_one_worker_after_another_are_named() -> None:
    refuse_deadly(MOST_ATTEMPTS, (60, 79))
    with pytest.raises(DistilvecError, match=rf"^corpus: {MOST_ATTEMPTS} .*rows 60 to 79.*`distilvec teach`"):
        refuse_deadly(MOST_ATTEMPTS + 1, (60, 79))


def test_the_ledger_counts_what_is_covered_and_what_was_begun_again() -> None:
    ledger = Ledger()
    assert [ledger.begin(0), ledger.begin(1), ledger.begin(0)] == [1, 1, 2]
    assert not ledger.advance(0, 5) and not ledger.advance(1, 3) and not ledger.advance(0, 6)
    assert ledger.state() == (9, 1)
    ledger.stop()
    assert ledger.advance(1, 4)


def test_every_wanted_signal_counts_as_missing(tmp_path: Path) -> None:
    from distilvec.flow.ray.worker import StorePlace
    from distilvec.teachers.signals import NOTHING, Wanted

    keys = np.arange(48, dtype=np.uint8).reshape(3, 16)
    store = SignalStore.from_vectors(tmp_path, {"fingerprint": "v"}, keys[:2], np.eye(2, 4, dtype=np.float32))
    logits = RaggedSignal.create(tmp_path, "logits", 1, "float32")
    writer = logits.writer("w", 1 << 20)
    writer.add(keys[:1], [np.ones((3, 1), np.float32)])
    writer.flush()
    assert lacking(store, StorePlace(tmp_path, NOTHING), keys).tolist() == [False, False, True]
    assert lacking(store, StorePlace(tmp_path, Wanted(logits=True)), keys).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--workers", "2"], "--engine ray"), (["--engine", "ray", "--shard", "0/2"], "take their shares themselves")],
)
def test_options_that_do_not_go_together(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    from distilvec.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main(["teach", "recipe.yaml", *options])
    assert ended.value.code == 2 and said in capsys.readouterr().err
