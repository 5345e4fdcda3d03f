"""Whole benchmarks of MTEB by name: progress, result files, and going on after a fault; with small tasks of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distilvec.api import evaluate
from distilvec.errors import DistilvecError, EnvironmentProblem
from distilvec.judging import CachedEncoder, MtebTask, expand
from distilvec.judging.benchmarks import benchmark_means
from distilvec.judging.results import revision_of
from distilvec.report.render.terminal import scores_grid

mteb = pytest.importorskip("mteb", reason="the extra mteb is not installed")
NAME = "Local(v1)"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Three tasks that need no network, registered under a name."""
    from mteb.benchmarks.get_benchmark import _build_registry
    from mteb.mocks.mock_tasks import MockPairClassificationTask, MockRetrievalTask, MockSTSTask

    made = mteb.Benchmark(name=NAME, tasks=[MockSTSTask(), MockRetrievalTask(), MockPairClassificationTask()])
    monkeypatch.setitem(_build_registry(), NAME, made)
    return made


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the tasks that MTEB really runs."""
    real, found = mteb.evaluate, []

    def counted(model: Any, task: Any, **options: Any) -> Any:
        found.append(task.metadata.name)
        return real(model, task, **options)

    monkeypatch.setattr(mteb, "evaluate", counted)
    return found


def test_a_benchmark_by_name_keeps_its_results(
    benchmark: Any, runs: list[str], tiny_bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = evaluate(str(tiny_bert), NAME, tmp_path / "scores.json", results=tmp_path / "mteb", name="tiny bert")
    names = [task.metadata.name for task in benchmark.tasks]
    assert runs == names == list(first.scores["tiny bert"])
    scores = first.scores["tiny bert"]
    assert all(score.details["benchmark"] == NAME for score in scores.values())
    place = tmp_path / "mteb" / "results" / "distilvec__tiny_bert" / revision_of(tiny_bert)
    assert {file.name for file in place.iterdir()} == {*(f"{name}.json" for name in names), "model_meta.json"}
    read = mteb.ResultCache(tmp_path / "mteb").load_task_result(names[0], "distilvec/tiny_bert", place.name)
    assert read is not None and read.get_score() == pytest.approx(scores[names[0]].value)
    runs.clear()
    with caplog.at_level("INFO", "distilvec"):
        again = evaluate(str(tiny_bert), NAME, results=tmp_path / "mteb", name="tiny bert")
    assert runs == []
    values = {name: score.value for name, score in scores.items()}
    assert {name: score.value for name, score in again.scores["tiny bert"].items()} == pytest.approx(values)
    assert f"{names[0]}: taken from {place}" in caplog.text
    told = [row[0].text for row in scores_grid(first).rows]
    assert told[-2:] == [f"{NAME}, mean of 3 tasks", f"{NAME}, mean of 3 types of task"]


def test_it_continues_after_an_error(
    benchmark: Any, runs: list[str], tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sts, retrieval, pairs = benchmark.tasks
    load = type(retrieval).load_data

    def unreachable(self: Any, *args: Any, **options: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(type(retrieval), "load_data", unreachable)
    with pytest.raises(EnvironmentProblem, match=r"task MockRetrievalTask: .*no route.*same command goes on"):
        evaluate(str(tiny_bert), NAME, results=tmp_path)
    monkeypatch.setattr(type(retrieval), "load_data", load)
    runs.clear()
    evaluate(str(tiny_bert), NAME, results=tmp_path)
    assert runs == [retrieval.metadata.name, pairs.metadata.name]
    file = next(tmp_path.rglob(f"{sts.metadata.name}.json"))
    file.write_text(file.read_text()[:40])
    runs.clear()
    evaluate(str(tiny_bert), NAME, results=tmp_path)
    assert runs == [sts.metadata.name]
    json.loads(file.read_text())


def test_results_of_other_weights_are_not_taken(
    benchmark: Any, runs: list[str], tiny_bert: Path, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    other = Path(shutil.copytree(tiny_bert, tmp_path / tiny_bert.name))
    file = next(other.rglob("model.safetensors"))
    save_file({name: 1.01 * values for name, values in load_file(file).items()}, file, {"format": "pt"})
    (other / "README.md").write_text("another card")
    assert revision_of(other) != revision_of(tiny_bert)
    evaluate(str(tiny_bert), benchmark, results=tmp_path / "mteb")
    runs.clear()
    evaluate(str(other), benchmark, results=tmp_path / "mteb")
    assert len(runs) == 3


def test_every_part_of_joined_tasks_is_kept(runs: list[str], tmp_path: Path) -> None:
    from mteb.mocks.mock_tasks import MockAggregatedTask

    from distilvec.judging.results import ResultFiles

    task = MtebTask(MockAggregatedTask())
    task.results = ResultFiles(tmp_path, "words", "r")
    encoder = CachedEncoder(lambda texts: np.array([[len(text), 1.0 + text.count("e")] for text in texts]))
    score = task.score(encoder)
    parts = [part.metadata.name for part in task.task.metadata.tasks]
    assert runs == parts
    kept = {file.stem for file in tmp_path.rglob("*.json")} - {"model_meta"}
    assert kept == {*parts, task.name}
    assert encoder.encoded > 0 and score.value == pytest.approx(task.score(encoder).value)


def test_vectors_go_with_their_task(benchmark: Any) -> None:
    """A benchmark reads millions of texts; what it reads counts, and nothing of it stays."""
    encoder = CachedEncoder(lambda texts: np.array([[len(text), 1.0 + text.count("e")] for text in texts]))
    for task in expand(benchmark):
        before = encoder.encoded
        task.score(encoder)
        assert encoder.encoded > before
    assert not encoder._sides


def test_means_are_those_of_the_leaderboard() -> None:
    from distilvec.judging import Score

    def score(name: str, kind: str, value: float, benchmark: str | None = "B") -> Score:
        details = {"type": kind} | ({"benchmark": benchmark} if benchmark else {})
        return Score(name, "mteb", "m", value, None, 0, details)

    found = benchmark_means(
        [score("a", "STS", 0.2), score("b", "STS", 0.4), score("c", "Retrieval", 0.9), score("d", "STS", 0.0, None)]
    )
    assert found == {"B": (pytest.approx(0.5), 3, pytest.approx(0.6), 2)}


def test_wrong_wishes(benchmark: Any, tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(DistilvecError, match=r"results: .*function"):
        evaluate(lambda texts: np.ones((len(texts), 2)), benchmark, results=tmp_path)
    pairs = [{"text1": "a", "text2": "b", "score": score} for score in (1.0, 2.0)]
    own = {"name": "s", "kind": "similarity", "test": pairs}
    with pytest.raises(DistilvecError, match=r"results: .*MTEB"):
        evaluate(str(tiny_bert), own, results=tmp_path)
