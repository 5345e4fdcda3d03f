"""Many models on many tasks; the real teacher on tiny data."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from distilvec.errors import DistilvecError
from distilvec.judging import (
    CachedEncoder,
    ClassificationTask,
    Judgement,
    JudgingTask,
    PairTask,
    RetrievalTask,
    RidgeMapped,
    Score,
    SimilarityTask,
    agreement,
    collapse,
    free_map,
    judge,
    speed,
)
from distilvec.judging.bootstrap import make_score
from distilvec.judging.scores import Outputs, grouped
from distilvec.judging.speed import MOST_PASSES
from distilvec.report.compare import compare_table
from distilvec.report.rows import ScoreEntry
from distilvec.report.sections.scores import comparisons

from .embedders import graded_pairs, noise, topic_texts, words


def _tasks() -> list[JudgingTask]:
    left, right, gold = graded_pairs(80)
    return [
        SimilarityTask("s", left, right, gold, domain="in"),
        PairTask("p", left, right, [score > 2 for score in gold], domain="out"),
        ClassificationTask("c", topic_texts(60, 1), topic_texts(50, 2), domain="out"),
        RetrievalTask.from_pairs("r", [text[::-1] for text in left], left),
    ]


@pytest.fixture(scope="module")
def judged() -> Judgement:
    return judge({"words": words, "noise": noise}, _tasks())


def test_each_text_is_encoded_once_across_tasks() -> None:
    seen: list[str] = []

    def encode(texts: Sequence[str]) -> np.ndarray:
        seen.extend(texts)
        return words(texts)

    told: list[tuple[str, str]] = []
    tasks = _tasks()
    found = judge({"m": encode}, tasks, progress=lambda model, score: told.append((model, score.task)))
    assert len(seen) == len(set(seen)) == len({text for task in tasks for text in task.texts()})
    assert found.texts == {"m": len(seen)}
    assert told == [("m", name) for name in "spcr"]


def test_averages_keep_retrieval_apart(judged: Judgement) -> None:
    scores = judged.scores["words"]
    averages = judged.averages("words")
    assert averages["in"] == scores["s"].value
    assert averages["out"] == pytest.approx((scores["p"].value + scores["c"].value) / 2)
    assert averages["all"] == pytest.approx(np.mean([scores[name].value for name in "spc"]))
    assert averages["retrieval"] == scores["r"].value


def test_retention(judged: Judgement) -> None:
    kept = judged.retention("noise", "words")
    assert kept["c"] == pytest.approx(100 * judged.scores["noise"]["c"].value / judged.scores["words"]["c"].value)
    assert kept["average:all"] < 70
    assert judged.retention("words", "words")["average:out"] == 100


def test_nothing_is_kept_of_what_may_be_next_to_nothing() -> None:
    for low, kept in ((0.001, False), (0.02, True)):
        teacher = Score("t", "classification", "accuracy", 0.05, (low, 0.1), 50)
        student = Score("t", "classification", "accuracy", 0.06, (0.01, 0.11), 50)
        found = Judgement({"teacher": {"t": teacher}, "student": {"t": student}})
        assert ("t" in found.retention("student", "teacher")) == kept


def test_differences_and_alarms(judged: Judgement) -> None:
    assert judged.difference("words", "noise").supported
    assert not judged.difference("words", "words", "r").supported
    assert judged.difference("words", "noise", "s").tasks == ("s",)
    assert [a for a in judged.alarms("words", ["noise"]) if "average" in a] == []
    worse = judged.alarms("noise", ["words", "noise"])
    assert any("On the average, noise is worse than words (−" in alarm for alarm in worse)
    assert any("noise cannot be told apart from noise (+0.0 points" in alarm for alarm in worse)
    with pytest.raises(DistilvecError, match=r'"word".*"words"'):
        judged.difference("word", "noise")
    with pytest.raises(DistilvecError, match='"al".*"all"'):
        judged.difference("words", "noise", "al")


def test_alarms_without_per_item_results() -> None:
    """As MTEB's scores are."""
    scores = {name: {"t": Score("t", "mteb", "m", value, None, 0)} for name, value in (("a", 0.5), ("b", 0.6))}
    found = Judgement(scores).alarms("a", ["b"])
    assert found == ["On the average, a is not shown to be better than b (−10.0 points, no interval)."]
    assert Judgement(scores).alarms("b", ["a"]) == []
    assert not Judgement(scores).paired("a", "b") and comparisons(Judgement(scores), "a", ["b"]) == []
    scores["a"]["t"] = Score("t", "regression", "r2", float("nan"), None, 0)
    assert "not shown to be better" in Judgement(scores).alarms("a", ["b"])[0], "a score that is no number proves none"


def test_no_alarm_is_about_the_search_of_a_student_that_starts_as_its_teacher() -> None:
    """By the teacher's own search it can only lose, and so it can to the baseline that is made of the teacher."""

    def scores(kind: str, value: float) -> dict[str, Score]:
        return {"near": Score("near", kind, "ndcg@10", value, None, 50)}

    def alarms(kind: str, untrained: float) -> list[str]:
        values = {"student": 0.9, "untrained": untrained, "free": 0.98}
        judged = Judgement({name: scores(kind, value) for name, value in values.items()})
        return judged.alarms("student", ["untrained", "free"])

    assert alarms("neighbours", 1.0) == []
    assert len(alarms("neighbours", 0.95)) == len(alarms("retrieval", 1.0)) == 2


def test_a_handful_of_items_proves_nothing() -> None:
    """One query has no interval, and five are on one side by chance too often."""

    def scores(value: float, items: int) -> dict[str, Score]:
        outputs = Outputs("ndcg@10", np.zeros(items, np.int8), np.full(items, value, np.float32))
        return {"r": make_score(task="r", kind="retrieval", domain=None, outputs=outputs)}

    for items, told in ((1, False), (5, False), (6, True)):
        judged = Judgement({"a": scores(0.6, items), "b": scores(1.0, items)})
        (alarm,) = judged.alarms("a", ["b"])
        assert ("is worse than b" in alarm) == told and ("no interval" in alarm) != told
        assert bool(comparisons(judged, "a", ["b"])) == told
        table = compare_table({"a": [judged.scores["a"]], "b": [judged.scores["b"]]}, "b")
        assert ("r" in table.differences["a"]) == told


def test_without_the_overlap(judged: Judgement) -> None:
    seen = [graded_pairs(80)[0][0], topic_texts(50, 2)[0][0]]
    rest = judged.without(_tasks(), seen)
    assert {name: score.n for name, score in rest.scores["words"].items()} == {
        "s": 79,
        "p": 79,
        "c": 49,
        "r": 80,
    }
    with pytest.raises(DistilvecError, match=r"\btasks r\b"):
        judged.without(_tasks()[:3], seen)


def test_a_task_of_which_nothing_is_left_costs_no_other(judged: Judgement, caplog: pytest.LogCaptureFixture) -> None:
    rest = judged.without(_tasks(), topic_texts(50, 2)[0])
    assert set(rest.scores["words"]) == {"s", "p", "r"} and "c is left out: all 50" in caplog.text
    assert all(np.isfinite(value) for value in rest.averages("words").values())
    everything = [text for task in _tasks() for item in task.test_items() for text in item]
    with pytest.raises(DistilvecError, match="test items are left out"):
        judged.without(_tasks(), everything)


def test_a_judgement_survives_json(judged: Judgement) -> None:
    again = Judgement.from_dict(json.loads(json.dumps(judged.to_dict(outputs=True))))
    assert again == judged
    assert again.difference("words", "noise") == judged.difference("words", "noise")


def test_no_tasks_and_equal_names() -> None:
    with pytest.raises(DistilvecError, match="^tasks: "):
        judge({"m": words}, [])
    with pytest.raises(DistilvecError, match=r": s\."):
        judge({"m": words}, [_tasks()[0]] * 2)


@pytest.fixture
def _many_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["distilvec.judging.speed"], "MOST_PASSES", MOST_PASSES)


@pytest.mark.usefixtures("_many_passes")
def test_speed_measures_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of its own: 2 ms a text, and 12 for the last one when it stands alone."""
    calls: list[int] = []
    now = [0.0]
    monkeypatch.setattr(
        importlib.import_module("distilvec.judging.speed"), "time", SimpleNamespace(perf_counter=lambda: now[0])
    )

    def encode(texts: Sequence[str]) -> np.ndarray:
        calls.append(len(texts))
        now[0] += 0.012 if texts == ["text 59"] else 0.002 * len(texts)
        return words(texts)

    texts = [f"text {i}" for i in range(60)]
    found = speed(encode, texts, singles=10, seconds=0)
    assert found["latency_p50_ms"] == pytest.approx(2)
    assert found["latency_p95_ms"] == pytest.approx(7.5)  # between the ninth and the tenth of ten
    assert found["texts_per_second"] == pytest.approx(500)
    assert found["texts"] == 60
    assert found["cores"] >= 1
    assert found["threads"] >= 1
    assert calls[0] == 32  # the warm-up
    assert calls.count(60) == 1
    calls.clear()
    speed(encode, texts, singles=10, seconds=0.5)
    assert calls.count(60) == 4  # of 0.12 s each
    with pytest.raises(DistilvecError, match="^texts: "):
        speed(encode, [])


@pytest.mark.usefixtures("_many_passes")
def test_speed_of_what_takes_no_time_is_measured_in_few_passes() -> None:
    calls: list[int] = []
    speed(lambda texts: calls.append(len(texts)), [f"text {i}" for i in range(60)], singles=10, seconds=30)
    assert calls.count(60) == MOST_PASSES


def test_the_real_teacher(real_teacher_folder: Path, sentences: list[str]) -> None:
    """Teacher, a student of its first 64 dimensions and the free baseline of that."""
    from sentence_transformers import SentenceTransformer

    teacher = CachedEncoder(SentenceTransformer(str(real_teacher_folder), device="cpu"))
    pairs = [
        ("A man is playing a guitar.", "Someone plays an instrument.", 4.0),
        ("A man is playing a guitar.", "A woman is slicing an onion.", 0.5),
        ("The stock market fell.", "Shares dropped sharply.", 4.5),
        ("The stock market fell.", "Two dogs run through snow.", 0.0),
        ("How do I change my PIN?", "I want a new PIN for my card.", 4.0),
        ("How do I change my PIN?", "Water boils at a lower temperature.", 0.2),
        ("The film was wonderful.", "I loved this movie.", 4.5),
        ("The film was wonderful.", "The battery lasts a day.", 0.3),
    ]
    left, right, gold = (list(column) for column in zip(*pairs, strict=True))
    tasks = [
        SimilarityTask("s", left, right, gold, domain="in"),
        PairTask("p", left, right, [score > 2 for score in gold], domain="out"),
        RetrievalTask.from_pairs("r", left[::2], right[::2]),
    ]

    def student(texts: Sequence[str]) -> np.ndarray:
        return teacher(texts)[:, :64]

    texts = sentences[:120]
    mapped = RidgeMapped(student, free_map(student(texts), teacher(texts)))
    found = judge({"teacher": teacher, "student": student, "mapped": mapped}, tasks)
    values = found.scores["teacher"]
    assert values["s"].value > 0.8
    assert (values["p"].value, values["r"].value) == (1.0, 1.0)
    assert found.averages("student")["all"] <= found.averages("teacher")["all"]
    close = agreement(teacher(texts), student(texts))
    assert 0.3 < close["similarity_pearson"] < 0.999
    assert agreement(teacher(texts), mapped(texts), shared_space=True)["index_recall"] > 0.3
    assert collapse(teacher(texts))["alarms"] == []


def test_judged_retrieval_is_not_averaged_with_the_teachers_neighbours() -> None:
    def score(task: str, kind: str, value: float) -> Score:
        return Score(task, kind, "ndcg_at_10", value, None, 10)

    both = {"judged": score("judged", "retrieval", 0.4), "near": score("near", "neighbours", 1.0)}
    assert Judgement({"teacher": both}).averages("teacher") == {"retrieval": 0.4}
    assert Judgement({"teacher": {"near": both["near"]}}).averages("teacher") == {"retrieval": 1.0}
    entries = {name: ScoreEntry(value=each.value, kind=each.kind) for name, each in both.items()}
    groups = grouped(entries.values())
    assert [each.value for each in groups["retrieval"]] == [0.4] and "all" not in groups


def test_tasks_are_read_as_evaluate_reads_them(tmp_path: Path) -> None:
    rows = [{"query": text[::-1], "document": text} for text in topic_texts(8)[0]]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    file = tmp_path / "task.yaml"
    file.write_text("{name: search, kind: retrieval, test: test.jsonl}", encoding="utf-8")
    other = {"name": "again", "kind": "retrieval", "test": rows}
    judgement = judge({"a": words, "b": noise}, [str(file), other])
    assert set(judgement.scores["a"]) == {"search", "again"}
    assert judgement.difference("a", "b", "search").value == judgement.difference("a", "b", "again").value
    assert judge({"a": words}, str(file)).scores["a"]["search"].value == judgement.scores["a"]["search"].value
