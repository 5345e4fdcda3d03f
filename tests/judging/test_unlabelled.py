"""Judging without labels: the teacher's search as truth, the hardest items, drift."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from distilvec.errors import DataError, DistilvecError
from distilvec.judging import (
    CachedEncoder,
    NeighbourTask,
    RetrievalTask,
    drift,
    hardest,
    judge,
    load_task,
    paired_bootstrap,
    settle_tasks,
)
from distilvec.students import load_student, shrink

WORDS = ["cat", "dog", "train", "bridge", "bread", "soup", "violin", "drum", "river", "cloud"]


class Planted:
    """Vectors by text, from a generator that the text seeds; noise as wished."""

    def __init__(self, noise: float = 0.0, width: int = 12) -> None:
        self.noise, self.width, self.asked = noise, width, 0

    def encode(self, texts: list[str]) -> np.ndarray:
        self.asked += len(texts)
        found = []
        for text in texts:
            seed = sum(ord(letter) * (place + 1) for place, letter in enumerate(text))
            true = np.random.default_rng(seed).normal(size=self.width)
            found.append(true + self.noise * np.random.default_rng(seed + 1).normal(size=self.width))
        return np.array(found, dtype=np.float32)


def documents(count: int = 60) -> list[str]:
    return [f"{WORDS[i % 10]} number {i}" for i in range(count)]


def test_the_teacher_finds_everything_and_noise_costs() -> None:
    tasks = [NeighbourTask("search", documents(), max_queries=40)]
    teacher = Planted()
    settle_tasks(tasks, _encoder(teacher))
    models = {"teacher": teacher, "near": Planted(0.3), "far": Planted(3.0), "random": Planted(1e6)}
    found = judge(models, tasks)
    values = [found.scores[name]["search"].value for name in models]
    assert values[0] == 1.0
    assert values[0] > values[1] > values[2] > values[3] - 0.05 and values[3] < 0.4
    assert found.scores["near"]["search"].kind == "neighbours"
    assert found.scores["near"]["search"].details["documents"] == 60
    assert "retrieval" in found.averages("near") and "all" not in found.averages("near")


def _encoder(model: Planted):
    from distilvec.judging import CachedEncoder

    return CachedEncoder(model)


@pytest.mark.parametrize("depth", [0, 101])
def test_a_depth_that_is_not_looked_up_is_refused(depth: int) -> None:
    with pytest.raises(DistilvecError, match=rf"task search: a depth of {depth} is not 1 to 100"):
        NeighbourTask("search", documents(300), depth=depth)


def test_a_query_never_finds_itself() -> None:
    """By hand: the right answers are the ten documents with the highest cosine, the query left out."""
    task = NeighbourTask("search", documents(30), max_queries=5, seed=3)
    teacher = Planted()
    task.settle(_encoder(teacher))
    vectors = teacher.encode(task.documents)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for query, right in zip(task.queries, task.relevance, strict=True):
        row = task.documents.index(query)
        order = [i for i in np.argsort(-(vectors @ vectors[row])) if i != row][:10]
        assert set(right) == set(order)


def test_real_queries_are_looked_up_as_they_are() -> None:
    log = ["where is the cat?", "a loud drum", "where is the cat?", "cat number 0"]
    task = NeighbourTask("search", documents(40), log, depth=3)
    task.settle(_encoder(Planted()))
    assert task.queries == log[:2] + log[3:]
    assert [len(right) for right in task.relevance] == [3, 3, 3]
    assert task.documents.index("cat number 0") not in task.relevance[2]
    score = judge({"teacher": Planted()}, [task]).scores["teacher"]["search"]
    assert (score.details["recall@10"] == 1.0 and score.details["bm25"] is None) or score.details["bm25"]["ndcg@10"] < 1


def test_a_query_that_is_a_document_with_more_white_space_does_not_find_itself() -> None:
    task = NeighbourTask("search", documents(40), [f"{text} " for text in documents(5)], depth=3)
    task.settle(_encoder(Planted()))
    assert not task.facts
    for row, right in enumerate(task.relevance):
        assert len(right) == 3 and row not in right


def test_without_a_teacher_it_says_so() -> None:
    with pytest.raises(DistilvecError, match="^task search: .*teacher: FOLDER") as caught:
        judge({"model": Planted()}, [NeighbourTask("search", documents())])
    assert "teacher: FOLDER" in str(caught.value.remedy)

    def encode(texts: Sequence[str]) -> np.ndarray:
        pytest.fail("texts are encoded though the last task cannot be scored")

    near = RetrievalTask.from_pairs("pairs", documents(), documents())
    with pytest.raises(DistilvecError, match="^task search: "):
        judge({"model": encode}, [near, NeighbourTask("search", documents())])
    with pytest.raises(DataError, match=r"^task search: 10 .*\b10 of them"):
        NeighbourTask("search", documents(10) * 3)


def test_from_files_with_a_real_teacher(tmp_path: Path, real_teacher_folder: Path, sentences: list[str]) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(text.replace("\n", " ") for text in sentences[:40]) + "\n\n")
    (tmp_path / "log.jsonl").write_text('{"query": "how do I open a file?"}\n{"query": "sort a list"}\n')
    spec = {"name": "own", "kind": "neighbours", "corpus": "texts.txt", "queries": "log.jsonl", "depth": 3}
    task = load_task({**spec, "teacher": str(real_teacher_folder)}, tmp_path)
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(real_teacher_folder), device="cpu")
    task.settle(_encoder(Planted()))  # the task's own teacher stands
    assert judge({"itself": model}, [task]).scores["itself"]["own"].value == pytest.approx(1.0)
    assert load_task(spec, tmp_path).queries == ["how do I open a file?", "sort a list"]


def test_the_hardest_item_is_the_one_that_moved() -> None:
    rng = np.random.default_rng(0)
    centres = 5 * np.eye(8)
    vectors = np.concatenate([centres[i] + 0.3 * rng.normal(size=(15, 8)) for i in range(4)]).astype(np.float32)
    texts = [f"group {i // 15}, text {i}" for i in range(60)]
    student = vectors @ rng.normal(size=(8, 8)).astype(np.float32) * 0 + vectors
    student = student.copy()
    student[7] = centres[3]
    found = hardest(texts, vectors, student, count=3)
    assert found[0].text == texts[7] and found[0].overlap == 0
    assert found[0].teacher.startswith("group 0") and found[0].student.startswith("group 3")
    assert found[0].overlap <= found[1].overlap <= found[2].overlap
    same = hardest(texts, vectors, 3 * vectors, count=60)
    assert len(same) == 60 and all(item.overlap == 1 and item.teacher == item.student for item in same)


def test_hardest_with_few_equal_or_mismatched_items() -> None:
    assert hardest(["a", "b"], np.eye(2), np.eye(2)) == []
    equal = hardest(["a", "b", "c", "d"], np.ones((4, 3)), np.ones((4, 3)))
    assert len(equal) == 4 and all(0 <= item.overlap <= 1 and item.teacher != item.text for item in equal)
    with pytest.raises(DataError, match=r"\b3 vectors .*\b2\b"):
        hardest(["a", "b", "c"], np.eye(3), np.eye(2))
    with pytest.raises(DataError, match=r"\b2 texts and 3 vectors"):
        hardest(["a", "b"], np.eye(3), np.eye(3))


def test_drift_of_the_same_kind_of_text_is_not_shown() -> None:
    texts = [f"{WORDS[i % 10]} {i}" for i in range(400)]
    found = drift(Planted(), texts[:200], texts[200:])
    assert found.interval[0] <= 0.5 <= found.interval[1] + 0.03
    assert found.novel < 0.15 and found.shared == 0
    assert "No drift is shown" in found.sentence() or "slightly" in found.sentence()


def test_halves_of_one_corpus_seldom_seem_to_differ() -> None:
    """As those of five folds do, which share what they are fitted on."""
    rng = np.random.default_rng(0)
    vectors: dict[str, np.ndarray] = {}
    different = 0
    for number in range(150):
        texts = [f"{number} {i}" for i in range(120)]
        vectors = dict(zip(texts, rng.standard_normal((120, 64)), strict=True))
        found = drift(lambda asked, known=vectors: np.array([known[each] for each in asked]), texts[:60], texts[60:])
        different += found.interval[0] > 0.5
    assert different <= 10


def test_scores_of_another_teachers_neighbours_are_not_paired() -> None:
    texts = [f"{WORDS[i % 10]} {i}" for i in range(60)]
    rng = np.random.default_rng(0)
    scores = []
    for _ in range(2):
        task, seen = NeighbourTask("near", texts), rng.standard_normal((60, 8))
        task.settle(lambda asked, seen=seen: seen[[texts.index(each) for each in asked]])
        scores.append(task.score(CachedEncoder(Planted())))
    with pytest.raises(DataError, match="task near"):
        paired_bootstrap(*scores)


def test_drift_counts_all_texts_whatever_is_compared() -> None:
    texts = [f"{WORDS[i % 10]} {i}" for i in range(200)]
    found = drift(Planted(), texts[:120], texts[100:], sample=30)
    assert drift(Planted(), iter(texts[:120]), iter(texts[100:]), sample=30) == found  # type: ignore[arg-type]
    assert (found.old, found.new, found.shared) == (120, 100, 20)


def test_drift_of_items_that_are_not_texts_is_refused() -> None:
    texts = [f"text {n}" for n in range(40)]
    for old, new in (("old.txt", texts), (texts, "new.txt"), (texts, [*texts, None])):
        with pytest.raises(DistilvecError, match="a list of texts is needed"):
            drift(Planted(), old, new)  # type: ignore[arg-type]
    with pytest.raises(DistilvecError, match="a str cannot be judged"):
        drift("a/student", texts, [f"other {n}" for n in range(40)])


def test_drift_that_is_the_models_own_is_called_so(real_teacher_folder: Path, sentences: list[str]) -> None:
    """A student that kept the word pieces of one half only sees a difference that its teacher does not see."""
    texts = [" ".join(text.split()[:12]) for text in sentences]
    old, new = texts[0::2], texts[1::2]
    teacher = load_student(real_teacher_folder)
    found = drift(shrink(teacher, layers=1, vocabulary=2500, texts=old)[0], old, new)
    assert found.pieces is not None and found.pieces[1] > 1.1 * found.pieces[0] and found.interval[0] > 0.5
    assert "more word pieces" in found.sentence() and "ask its teacher" in found.sentence()
    asked = drift(teacher, old, new)
    assert asked.pieces == pytest.approx((asked.pieces[0],) * 2, rel=0.1) and asked.separability < found.separability
    assert "word pieces" not in asked.sentence()


def test_drift_of_another_kind_of_text_is(real_teacher_folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    old = [f"The {word} was seen near the {other} today." for word in WORDS for other in WORDS[:3]]
    new = [f"Error {i}: connection to host db{i} refused after {i} retries" for i in range(28)] + old[:4]
    model = SentenceTransformer(str(real_teacher_folder), device="cpu")
    found = drift(model, old, new)
    assert found.shared == 4 and found.separability == 1
    assert found.interval == pytest.approx((0.025 ** (1 / 14), 1.0)), "of 14 texts a side nobody knows it better"
    assert found.novel == pytest.approx(28 / 32) and len(found.examples) == 10
    assert found.examples[0][2] <= found.examples[-1][2] and found.examples[0][0].startswith("Error")
    assert "entirely" in found.sentence()
    assert "88 % of the new texts" in found.sentence()
    assert drift(model, old, old).sentence() == "No drift: all new texts are among the old ones."
    few = drift(model, old, new[10:] + old[4:12])
    assert few.interval == (0, 1) and len(few.examples) == 10 and "Only 18 of 30" in few.sentence()
    with pytest.raises(DistilvecError, match=r"^sample: .*\b19\b"):
        drift(model, old, new, sample=19)
    with pytest.raises(DataError, match=r"\b5 and 32 .*\b20\b"):
        drift(model, old[:5], new)
