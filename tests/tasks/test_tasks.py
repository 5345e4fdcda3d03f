"""Losses and metrics against hand-computed values and sklearn, pairs within a batch, and what a section may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn import metrics as sk
from tests.tasks import labelled

from distilvec.corpus import read_corpus
from distilvec.corpus.groups import rows_with_companions
from distilvec.errors import DataError, DistilvecError
from distilvec.tasks.labels import encode_labels, teacher_order
from distilvec.tasks.scores import classification_scores, regression_scores
from distilvec.tasks.section import TaskSection
from distilvec.tasks.table import TABLE, build_task


def section(kind: str, **options: object) -> TaskSection:
    return TaskSection.model_validate({"kind": kind, **options})


def test_classification_is_cross_entropy_per_item_and_view() -> None:
    task = build_task(section("classification", alpha=0.3), 4, np.array([0, 1, 2, 1]), ["a", "b", "c"])
    logits, labels = torch.randn(2, 5, 3), torch.tensor([0, 2, 1, 1, 0])
    loss = task.loss(logits, labels)
    assert loss.shape == (2, 5) and task.alpha == 0.3
    expected = -logits.log_softmax(-1)[:, range(5), labels]
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(task.loss(logits[:, 1:2], labels[1:2]), loss[:, 1:2])
    embedding = torch.randn(2, 5, 4)
    assert task(embedding).shape == (2, 5, 3) and task.counted() is None


def test_dropout_of_a_recipe_reaches_the_head() -> None:
    assert build_task(section("classification"), 4, np.array([0, 1])).head.dropout == 0.0
    assert build_task(section("pairs", dropout=0.1), 4, np.array([0, 1])).head.dropout == 0.1
    assert build_task(section("similarity", dropout=0.2), 4, np.array([0.0, 1])).head.dropout == 0.2
    with pytest.raises(ValueError, match="cosine.*dropout"):
        section("similarity", encoding="separate", dropout=0.1)


def test_whole_number_labels_need_not_count_from_zero() -> None:
    task = build_task(section("classification"), 4, np.array([5, -1, 9, 5]))
    assert task.head.labels == ["-1", "5", "9"]
    logits = torch.randn(1, 3, 3)
    expected = -logits.log_softmax(-1)[:, range(3), [1, 0, 2]]
    torch.testing.assert_close(task.loss(logits, torch.tensor([5, -1, 9])), expected)
    assert not [name for name in task.state_dict() if "values" in name]


def test_similarity_is_learnt_in_units_of_its_spread() -> None:
    scores = np.array([0.0, 5.0, 2.0, 1.0], np.float32)
    joint = build_task(section("similarity"), 4, scores)
    assert (joint.head.shift, joint.head.scale) == pytest.approx((2.0, scores.std()))
    logits = torch.randn(2, 4, 1)
    expected = (logits[..., 0] - torch.from_numpy((scores - 2.0) / scores.std())).square()
    torch.testing.assert_close(joint.loss(logits, torch.from_numpy(scores)), expected)
    cosine = build_task(section("similarity", encoding="separate"), 4, scores)
    assert (cosine.head.shift, cosine.head.scale) == (0.0, 5.0)
    assert cosine.codes(torch.tensor([5.0, 2.5])).tolist() == [5.0, 2.5]
    assert cosine.loss(torch.tensor([[[1.0], [0.4]]]), torch.tensor([5.0, 2.0])).abs().max() < 1e-12


def test_metrics_are_those_of_sklearn_and_scipy() -> None:
    rng = np.random.default_rng(0)
    logits, truth = rng.normal(size=(60, 4)), rng.integers(0, 3, 60)
    predicted = logits.argmax(-1)
    found = classification_scores(truth, predicted)
    assert found["accuracy"] == pytest.approx(sk.accuracy_score(truth, predicted))
    assert found["macro_f1"] == pytest.approx(sk.f1_score(truth, predicted, average="macro"))
    assert found["macro_precision"] == pytest.approx(sk.precision_score(truth, predicted, average="macro"))
    assert found["macro_recall"] == pytest.approx(sk.recall_score(truth, predicted, average="macro", zero_division=0))
    scores = np.round(rng.normal(size=50), 1)
    guess = scores + rng.normal(size=50)
    ranked = regression_scores(scores, guess)
    assert ranked["spearman"] == pytest.approx(stats.spearmanr(scores, guess).statistic)
    assert ranked["pearson"] == pytest.approx(stats.pearsonr(scores, guess).statistic)


def test_a_separate_pair_is_found_in_its_batch() -> None:
    task = build_task(section("pairs", encoding="separate"), 3, np.array([0, 1]), ["no", "yes"])
    embedding = torch.randn(2, 5, 3, requires_grad=True)
    group, role = torch.tensor([7, 8, 7, 9, 8]), torch.tensor([1, 0, 0, 0, 1])
    logits = task(embedding, group, role)
    first = task.head(embedding[:, 2], embedding[:, 0])
    torch.testing.assert_close(logits[:, 2], first)
    torch.testing.assert_close(logits[:, 0], first)
    torch.testing.assert_close(logits[:, 1], task.head(embedding[:, 1], embedding[:, 4]))
    counted = task.counted(group, role)
    assert counted is not None and counted.tolist() == [False, True, True, False, False]
    task.loss(logits, torch.tensor([0, 1, 0, 1, 1]))[:, counted].sum().backward()
    assert embedding.grad is not None
    assert (embedding.grad.abs().sum((0, 2)) > 0).tolist() == [True, True, True, False, True]


def test_companions_of_a_real_corpus(tmp_path: Path) -> None:
    file = labelled.write(tmp_path / "pairs.jsonl", labelled.pairs(30))
    corpus = read_corpus(file, tmp_path / "out", text=["text1", "text2"], label="label", holdout=0)
    assert corpus.groups is not None and corpus.roles is not None and corpus.labels is not None
    rows, partners = rows_with_companions(corpus, corpus.train_rows, 1)
    assert partners is not None and partners.shape == (60, 1)
    assert (corpus.roles[rows] == 0).all() and (corpus.roles[partners[rows, 0]] == 1).all() and len(rows) == 30
    assert (corpus.groups[partners[rows, 0]] == corpus.groups[rows]).all()
    task = build_task(section("pairs", encoding="separate"), 4, corpus.labels, corpus.label_names)
    assert task.head.labels == ["0", "1"]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["9", "10", "9", "-3"], ["-3", "9", "10"]),
        (["no", "Yes", "10"], ["10", "Yes", "no"]),
        (["no", 1.0, True, 2.5], ["1", "2.5", "no"]),
        ([3, 1, 2], ["1", "2", "3"]),
        ([True, False], ["0", "1"]),
        (["007", "7", "12"], ["007", "12", "7"]),
    ],
)
def test_classes_are_in_the_order_of_the_corpus(tmp_path: Path, labels: list[Any], names: list[str]) -> None:
    rows = [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]
    corpus = read_corpus(rows, tmp_path / "out", label="label", holdout=0)
    assert corpus.labels is not None
    task = build_task(section("classification"), 4, corpus.labels, corpus.label_names)
    assert task.head.labels == names
    codes = task.codes(torch.from_numpy(np.array(corpus.labels)))
    assert codes.tolist() == encode_labels(labels, names, "here").tolist()


def test_whole_numbers_written_with_a_fraction_are_classes(tmp_path: Path) -> None:
    """As tables with gaps have them."""
    for labels in ([1.0, 0.0, 2.0], ["1.0", "0.0", "2.0"]):
        rows = [{"text": f"text {number}", "label": label} for number, label in enumerate(labels)]
        corpus = read_corpus(rows, tmp_path, label="label", holdout=0)
        assert corpus.labels is not None
        task = build_task(section("classification"), 4, corpus.labels, corpus.label_names)
        assert task.head.labels == ["0", "1", "2"]
        assert task.codes(torch.from_numpy(np.array(corpus.labels))).tolist() == [1, 0, 2]
        assert encode_labels(labels, ["0", "1", "2"], "here").tolist() == [1, 0, 2]
    assert encode_labels(["1.0", "1"], ["1", "1.0"], "here").tolist() == [1, 0], "as it is spelt, where there is such"


def test_a_teachers_columns_are_brought_into_the_students_order() -> None:
    order = teacher_order(["a", "b", "c"], ["c", "a", "b"], "teacher")
    assert np.array([0.3, 0.1, 0.2])[order].tolist() == [0.1, 0.2, 0.3]
    with pytest.raises(DistilvecError, match=r"^teacher: .*\b3 classes.*\b2 .*: d\).*distilvec finetune"):
        teacher_order(["a", "b"], ["a", "b", "d"], "teacher")


def test_every_task_has_its_name() -> None:
    assert sorted(TABLE) == ["classification", "generation", "pairs", "similarity"]
    assert all(cls.kind == kind for kind, cls in TABLE.items())


def test_sections_and_labels_that_do_not_go_together() -> None:
    assert section("pairs").joint and section("pairs").paired
    assert not section("similarity", encoding="separate").joint
    assert not section("classification").paired and section("classification").encoding is None
    again = TaskSection.model_validate(section("pairs").model_dump())
    assert again == section("pairs")
    for wrong in ({"encoding": "joint"}, {"alpha": 1.2}, {"colour": 1}):
        with pytest.raises(ValueError):
            section("classification", **wrong)
    with pytest.raises(DistilvecError, match=r"^task\.label: .*corpus\.label"):
        build_task(section("classification"), 4, None)
    with pytest.raises(DistilvecError, match=r"^task\.kind: .*kind: similarity"):
        build_task(section("pairs"), 4, np.array([0.5, 1.5], np.float32))
    with pytest.raises(DistilvecError, match=r"^task\.kind: .*\(no, yes\).*kind: pairs"):
        build_task(section("similarity"), 4, np.array([0, 1]), ["no", "yes"])
    with pytest.raises(DataError, match=r"^task\.label: all 3 labels are 1\b"):
        build_task(section("classification"), 4, np.array([1, 1, 1]))
    with pytest.raises(DataError, match=r'^task\.label: all 2 labels are "animal"'):
        build_task(section("classification"), 4, np.array([0, 0]), ["animal"])
    with pytest.raises(DataError, match=r'^test\.jsonl: "card_lst" .*\b2 classes.*"card_lost"'):
        encode_labels(["card_lst"], ["card_lost", "top_up"], "test.jsonl")


@pytest.mark.parametrize("label", ["007", "7e0", " 7", "7.5", "inf"])
def test_code_that_looks_like_a_number_is_not_another_class(label: str) -> None:
    with pytest.raises(DataError, match="is none of the 2 classes"):
        encode_labels([label], ["7", "8"], "f.csv")
    assert encode_labels(["7.0", 7.0, "8.00", 8, "7"], ["7", "8"], "f.csv").tolist() == [0, 0, 1, 1, 0]
