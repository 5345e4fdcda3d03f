"""Scores against scikit-learn, scipy and sentence-transformers' evaluators."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from distilvec.corpus.keys import join_pair
from distilvec.errors import DataError, DistilvecError
from distilvec.judging import ClassificationTask, ClusteringTask, PairTask, RegressionTask, SimilarityTask
from distilvec.judging.talas_sets import talas_spec
from distilvec.judging.tasks import unit

from .embedders import graded_pairs, noise, topic_texts, words

TRAIN, TEST, HELD = topic_texts(150, 1), topic_texts(120, 2), topic_texts(60, 3)


def test_talas_protocol_is_plain_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, f1_score

    score = ClassificationTask("topics", TRAIN, TEST, domain="out").score(words)
    reference = LogisticRegression(C=1, max_iter=200, random_state=42).fit(words(TRAIN[0]), TRAIN[1])
    predicted = reference.predict(words(TEST[0]))
    assert score.value == pytest.approx(f1_score(TEST[1], predicted, average="macro"))
    assert score.details["accuracy"] == pytest.approx(accuracy_score(TEST[1], predicted))
    assert (score.metric, score.kind, score.domain, score.n) == ("macro_f1", "classification", "out", 120)
    assert score.interval is not None
    assert 0.5 < score.interval[0] < score.value < score.interval[1] <= 1
    assert ClassificationTask("topics", TRAIN, TEST).score(noise).value < 0.5


def test_test_texts_in_the_training_data_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    twice = ([*TRAIN[0], *TEST[0][:12]], [*TRAIN[1], *TEST[1][:12]])
    task = ClassificationTask("topics", twice, TEST)
    assert "task topics: 12 of 120 test items are among the training items" in caplog.text
    assert task.score(words).details["known"] == 12
    caplog.clear()
    assert "known" not in ClassificationTask("topics", TRAIN, TEST).score(words).details and not caplog.text


def test_tuned_protocol_takes_the_best_on_validation() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(words(TRAIN[0]))
    train, held, test = (scaler.transform(words(split[0])) for split in (TRAIN, HELD, TEST))
    probes = {c: LogisticRegression(C=c, max_iter=1000).fit(train, TRAIN[1]) for c in (0.01, 0.1, 1, 10, 100)}
    found = {c: f1_score(HELD[1], probe.predict(held), average="macro") for c, probe in probes.items()}
    score = ClassificationTask("topics", TRAIN, TEST, HELD, protocol="tuned").score(words)
    chosen = score.details["C"]
    assert found[chosen] == pytest.approx(max(found.values()), abs=0.02) != pytest.approx(min(found.values()), abs=0.02)
    assert score.details["validation_macro_f1"] == pytest.approx(found[chosen], abs=0.02)
    expected = f1_score(TEST[1], probes[chosen].predict(test), average="macro")
    assert score.value == pytest.approx(expected, abs=0.02)


def test_tuned_without_validation_splits_the_training_rows() -> None:
    score = ClassificationTask("topics", TRAIN, TEST, protocol="tuned").score(words)
    assert score.details["C"] in (0.01, 0.1, 1.0, 10.0, 100.0)
    assert score.value == ClassificationTask("topics", TRAIN, TEST, protocol="tuned").score(words).value


def test_a_label_is_one_class_however_a_number_is_spelt() -> None:
    train, test = ([*TRAIN[1]], [*TEST[1]])
    names = sorted({*train})
    codes = {name: number for number, name in enumerate(names)}
    plain = ClassificationTask("t", TRAIN, TEST).score(words).value
    for spelt in (float, lambda code: f"{code}.0", str):
        as_numbers = [codes[name] for name in test]
        task = ClassificationTask("t", (TRAIN[0], [spelt(codes[name]) for name in train]), (TEST[0], as_numbers))
        assert task.score(words).value == pytest.approx(plain)


def test_labels_and_numbers_that_nothing_can_be_said_by_are_refused() -> None:
    with pytest.raises(DataError, match='task t: none of the test rows has a label of the training rows.*"other"'):
        ClassificationTask("t", TRAIN, (TEST[0], ["other"] * len(TEST[0])))
    numbers = [float(number) for number in range(len(TRAIN[0]))]
    with pytest.raises(DataError, match="task t: all test rows have one number"):
        RegressionTask("t", (TRAIN[0], numbers), (TEST[0], [1.0] * len(TEST[0])))


@pytest.mark.parametrize(("rows", "turns"), [(3, 3), (20, 5), (60, 5), (7000, 1), (1250, 2)])
def test_few_rows_are_all_chosen_on(rows: int, turns: int) -> None:
    texts = [f"text {number}" for number in range(rows)]
    found = ClassificationTask(
        "t", (texts, [("space", "car")[n % 2] for n in range(rows)]), TEST, protocol="tuned"
    )._turns()
    assert len(found) == turns
    for rest, part in found:
        assert sorted([*rest, *part]) == list(range(rows))
    assert len({row for _, part in found for row in part}) == sum(len(part) for _, part in found)


def test_a_strength_is_judged_by_fits_of_its_own() -> None:
    """Each from zero: from the solution of a weaker one lbfgs stops where it is, and all would say the same."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score
    from sklearn.preprocessing import StandardScaler

    task = ClassificationTask("topics", TRAIN, TEST, protocol="tuned")
    rows, labels = StandardScaler().fit_transform(words(TRAIN[0]).astype(np.float64)), np.array(TRAIN[1])
    found = {}
    for c in (0.01, 0.1, 1.0, 10.0, 100.0):
        told, truth = [], []
        for rest, part in task._turns():
            probe = LogisticRegression(C=c, max_iter=200, random_state=42).fit(rows[rest], labels[rest])
            told.extend(probe.predict(rows[part]))
            truth.extend(labels[part])
        found[c] = f1_score(truth, told, average="macro")
    details = task.score(words).details
    assert details["C"] == max(found, key=found.__getitem__)
    assert details["validation_macro_f1"] == pytest.approx(max(found.values()), abs=1e-9)
    assert len(set(found.values())) > 2


def test_scaling_the_vectors_changes_only_the_untuned_protocol() -> None:
    def scaled(texts: list[str]) -> np.ndarray:
        return words(texts) * 1e-3

    def of(protocol: str, encode: object) -> float:
        return ClassificationTask("t", TRAIN, TEST, HELD, protocol=protocol).score(encode).value  # type: ignore

    assert of("tuned", scaled) == pytest.approx(of("tuned", words), abs=0.02)
    assert of("talas", scaled) < of("talas", words) - 0.05


def test_the_cap_on_training_rows_is_seeded() -> None:
    first = ClassificationTask("t", TRAIN, TEST, max_train=40)
    assert len(first.texts()) == 40 + len(set(TEST[0]))
    assert first.texts() == ClassificationTask("t", TRAIN, TEST, max_train=40).texts()
    assert first.texts() != ClassificationTask("t", TRAIN, TEST, max_train=40, seed=1).texts()
    assert first.score(words).details["train_rows"] == 40


def test_a_test_class_without_training_rows_counts_as_wrong() -> None:
    texts, labels = TEST
    strange = ClassificationTask("t", TRAIN, ([*texts, "a b"], [*labels, "unseen"])).score(words)
    plain = ClassificationTask("t", TRAIN, TEST).score(words)
    assert strange.value == pytest.approx(plain.value * 3 / 4, abs=0.02)


def test_regression_is_ridge() -> None:
    from sklearn.linear_model import Ridge
    from sklearn.metrics import r2_score
    from sklearn.preprocessing import StandardScaler

    weight = np.random.default_rng(0).normal(size=48)
    train, test = (TRAIN[0], words(TRAIN[0]) @ weight), (TEST[0], words(TEST[0]) @ weight)
    score = RegressionTask("r", train, test).score(words)
    scaler = StandardScaler().fit(words(TRAIN[0]))
    ridge = Ridge(alpha=1.5).fit(scaler.transform(words(TRAIN[0])), train[1])
    expected = r2_score(test[1], ridge.predict(scaler.transform(words(TEST[0]))))
    assert score.value == pytest.approx(expected, abs=1e-4)
    assert score.details["spearman"] > 0.9
    tuned = RegressionTask("r", train, test, protocol="tuned").score(words)
    assert tuned.value >= score.value
    assert tuned.details["penalty_per_row"] == 1e-4  # the truth is linear: the smallest penalty is best
    # Milliseconds since 1970 lie closer together than half the digits of a number tell.
    moved = [(texts, 1.7e12 + 1_000 * np.asarray(values)) for texts, values in (train, test)]
    assert RegressionTask("r", *moved).score(words).value == pytest.approx(score.value, abs=1e-3)


def test_labels_that_no_training_row_has_are_counted() -> None:
    other = (TEST[0], ["other", "another", *TEST[1][2:]])
    assert ClassificationTask("t", TRAIN, other).score(words).details["unknown_labels"] == 2
    assert "unknown_labels" not in ClassificationTask("t", TRAIN, TEST).score(words).details


def test_similarity_against_scipy_and_sentence_transformers(tiny_bert: Path, sentences: list[str]) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    model = SentenceTransformer(str(tiny_bert), device="cpu")
    left, right = sentences[:80], sentences[80:160]
    gold = np.random.default_rng(0).integers(0, 6, 80).astype(float)
    score = SimilarityTask("s", left, right, gold.tolist()).score(model.encode)
    theirs = EmbeddingSimilarityEvaluator(left, right, (gold / 5).tolist())(model)
    assert score.value == pytest.approx(theirs["spearman_cosine"], abs=1e-4)
    assert score.details["pearson"] == pytest.approx(theirs["pearson_cosine"], abs=1e-4)


def test_similarity_of_graded_pairs() -> None:
    left, right, gold = graded_pairs(200)
    score = SimilarityTask("s", left, right, gold).score(words)
    a, b = words(left), words(right)
    cosine = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    # Pairs of equal texts have cosine 1 up to rounding: ties, whose order must not depend on the machine.
    assert (cosine > 1 - 1e-9).sum() > 20
    assert score.value == pytest.approx(stats.spearmanr(gold, cosine.round(9)).statistic, abs=1e-6)
    assert score.value > 0.9


def test_a_collapsed_model_has_no_similarity() -> None:
    left, right, gold = graded_pairs(50)
    score = SimilarityTask("s", left, right, gold).score(lambda texts: np.ones((len(texts), 4)))
    assert score.value == 0.0
    assert np.isfinite(score.details["pearson"])


def test_zero_vectors_have_no_similarity() -> None:
    left, right, gold = graded_pairs(50)
    assert SimilarityTask("s", left, right, gold).score(lambda texts: np.zeros((len(texts), 4))).value == 0.0


def test_pairs_against_sentence_transformers(tiny_bert: Path, sentences: list[str]) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import BinaryClassificationEvaluator

    model = SentenceTransformer(str(tiny_bert), device="cpu")
    left, right = sentences[:60], sentences[60:120]
    labels = np.random.default_rng(0).integers(0, 2, 60).tolist()
    score = PairTask("p", left, right, [bool(label) for label in labels]).score(model.encode)
    theirs = BinaryClassificationEvaluator(left, right, labels)(model)
    assert score.value == pytest.approx(theirs["cosine_ap"], abs=1e-4)
    assert score.details["best_accuracy"] == pytest.approx(theirs["cosine_accuracy"], abs=1e-9)
    assert score.details["base_rate"] == pytest.approx(np.mean(labels))


def test_best_threshold_is_one_that_can_be_used() -> None:
    """Equal cosines cannot be parted by a threshold."""
    vectors = {"a": [1.0, 0.0], "b": [0.0, 1.0]}

    def encode(texts: list[str]) -> np.ndarray:
        return np.array([vectors[text] for text in texts])

    left, right, labels = ["a"] * 5, ["a", "a", "a", "b", "b"], [True, False, True, True, False]
    score = PairTask("p", left, right, labels).score(encode)
    cosine = np.array([1, 1, 1, 0, 0])
    assert score.details["best_accuracy"] == pytest.approx(0.6)
    assert ((cosine > score.details["threshold"]) == np.array(labels)).mean() == pytest.approx(0.6)


def test_clustering_against_sklearn() -> None:
    from sklearn.cluster import MiniBatchKMeans
    from sklearn.metrics import v_measure_score

    topics = topic_texts(150, strange=1)
    score = ClusteringTask("c", *topics, starts=2).score(words)
    found = [
        MiniBatchKMeans(3, batch_size=1024, n_init=3, random_state=start).fit_predict(unit(words(topics[0])))
        for start in (0, 1)
    ]
    assert score.value == pytest.approx(np.mean([v_measure_score(topics[1], row) for row in found]))
    assert score.details["clusters"] == 3
    assert score.value > 0.3 > ClusteringTask("c", *topics).score(noise).value
    assert ClusteringTask("c", *TRAIN).score(lambda texts: np.ones((len(texts), 3))).value == 0.0


def test_clustering_cap() -> None:
    assert ClusteringTask("c", *TRAIN, max_items=50).score(words).n == 50


def test_without_overlap_is_the_score_of_the_other_rows() -> None:
    seen = [TEST[0][3].upper(), TEST[0][17], "not there"]
    task = ClassificationTask("t", TRAIN, TEST)
    rest = [row for row in range(120) if row not in (3, 17)]
    smaller = ClassificationTask("t", TRAIN, ([TEST[0][r] for r in rest], [TEST[1][r] for r in rest]))
    found = task.without(task.score(words), seen)
    assert found.value == pytest.approx(smaller.score(words).value)
    assert (found.n, found.details["left_out"]) == (118, 2)
    left, right, gold = graded_pairs(40)
    pairs = SimilarityTask("s", left, right, gold)
    assert pairs.without(pairs.score(words), [right[5]]).n == 39  # on both sides of one pair
    joint = [join_pair(left[8], right[9]), "not there"]  # of a corpus of joint pairs
    assert np.flatnonzero(~pairs.keep(joint)).tolist() == [8, 9]
    clusters = ClusteringTask("c", *TRAIN)
    assert clusters.without(clusters.score(words), TRAIN[0][:10]).n == 140
    with pytest.raises(DistilvecError, match=rf"^task t: all {len(TEST[0])} test items"):
        task.without(task.score(words), TEST[0])


def test_unusable_tasks_are_refused() -> None:
    with pytest.raises(DataError, match='^task t: .*"x"'):
        ClassificationTask("t", (["a", "b"], ["x", "x"]), TEST)
    with pytest.raises(DistilvecError, match='^task t: .*"tunned".*"tuned"'):
        ClassificationTask("t", TRAIN, TEST, protocol="tunned")
    with pytest.raises(DistilvecError, match="^task t: .*train text 2, train label 1"):
        ClassificationTask("t", (["a", "b"], ["x"]), TEST)
    with pytest.raises(DistilvecError, match="^task s: .*text1 0, text2 0, score 0"):
        SimilarityTask("s", [], [], [])
    with pytest.raises(DataError, match=r"^task s: .*item 0 is nan\b"):
        SimilarityTask("s", ["a"], ["b"], [float("nan")])
    with pytest.raises(DataError, match="^task r: .*numbers .*'x'"):
        RegressionTask("r", (["a", "b"], ["1", "x"]), (["a"], [1]))
    with pytest.raises(DataError, match=r"^task p: all 2 pairs .*\bTrue\b"):
        PairTask("p", ["a", "b"], ["c", "d"], [True, True])
    with pytest.raises(DataError, match='^task c: all 2 items .*"x"'):
        ClusteringTask("c", ["a", "b"], ["x", "x"])
    with pytest.raises(DistilvecError, match="""^task s: .*"in" or "out".*'inside'"""):
        SimilarityTask("s", ["a"], ["b"], [1.0], domain="inside")


def test_codes_that_look_like_numbers_are_separate_classes() -> None:
    texts = [f"text {number}" for number in range(8)]
    labels = ["007", "7", "1e3", "1000", "1234567890123456789", "1234567890123456790", "1_0", "10"]
    task = ClassificationTask("codes", (texts, labels), (texts, labels))
    assert sorted(task.label_names) == sorted(labels)
    same: list[Any] = [1, 1.0, "1", "1.0", True, 2, "2.0", 2.0]
    assert ClassificationTask("numbers", (texts, same), (texts, same)).label_names.tolist() == ["1", "2"]


def test_tasks_without_information_are_refused() -> None:
    with pytest.raises(DataError, match="all scores are 3"):
        SimilarityTask("flat", ["a", "b"], ["c", "d"], [3, 3])
    with pytest.raises(DataError, match="1 training rows"):
        RegressionTask("one", (["a"], [1.0]), (["b", "c"], [1.0, 2.0]), protocol="tuned")


def test_unused_validation_rows_are_warned_about(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    rows = (["a", "b", "c", "d"], ["x", "y", "x", "y"])
    with caplog.at_level(logging.WARNING):
        ClassificationTask("t", rows, rows, rows, protocol="tuned")
        assert "validation" not in caplog.text
        ClassificationTask("t", rows, rows, rows)
    assert 'task t: nothing is chosen on its validation rows; `protocol: "tuned"`' in caplog.text
    for split in ("train", "validation", "test"):
        (tmp_path / f"banking77.{split}.jsonl.gz").touch()
    assert "validation" not in talas_spec("banking77", tmp_path)
    assert "validation" in talas_spec("banking77", tmp_path, protocol="tuned")
