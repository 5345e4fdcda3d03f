from __future__ import annotations

import numpy as np
import pytest

from distilvec.errors import DataError, DistilvecError
from distilvec.judging import Outputs, Score, paired_bootstrap
from distilvec.judging import bootstrap as module
from distilvec.judging.bootstrap import draws, make_score
from distilvec.judging.metrics import METRICS


def _score(outputs: Outputs, task: str = "t") -> Score:
    return make_score(task=task, kind="x", domain=None, outputs=outputs)


def _mean(values: np.ndarray, task: str = "t") -> Score:
    return _score(Outputs("ndcg@10", np.zeros(len(values), dtype=np.int8), values), task)


def test_interval_of_a_mean_is_the_textbook_one() -> None:
    values = np.random.default_rng(0).uniform(size=400)
    score = _mean(values)
    half = 1.96 * values.std() / np.sqrt(400)
    assert score.interval == pytest.approx((values.mean() - half, values.mean() + half), abs=0.004)


def test_draws_of_equal_numbers_say_nothing_of_r2() -> None:
    """Of 20 items 18 have one number: a draw in eight has no other, and rounding would make 1e17 of its error."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        truth = np.append(0.1 * rng.random(2), np.zeros(18)).astype(np.float32)
        predicted = (truth + 0.02 * rng.normal(size=20)).astype(np.float32)
        score = _score(Outputs("r2", truth, predicted))
        assert score.interval is not None
        assert -1e3 < score.interval[0] <= score.value <= score.interval[1] <= 1


def test_a_perfect_r2_has_no_wider_interval_than_itself() -> None:
    truth = np.arange(8, dtype=np.float32)
    assert _score(Outputs("r2", truth, truth)).interval == (1.0, 1.0)


def test_coverage() -> None:
    """Over 200 samples of a known population, 95 % intervals hold the true Spearman about 95 times in 100."""
    rng = np.random.default_rng(3)
    rho = 0.6
    true = 6 / np.pi * np.arcsin(rho / 2)  # Spearman of a bivariate normal
    inside = 0
    for _ in range(200):
        x = rng.normal(size=150)
        y = rho * x + np.sqrt(1 - rho**2) * rng.normal(size=150)
        values = draws(Outputs("spearman", x, y), "t", resamples=300, seed=int(rng.integers(2**31)))
        low, high = np.quantile(values, [0.025, 0.975])
        inside += low <= true <= high
    assert 178 <= inside <= 199


@pytest.mark.parametrize(
    ("metric", "classes"), [("macro_f1", 40), ("v_measure", 40), ("accuracy", 3), ("average_precision", 2)]
)
def test_interval_holds_the_value(metric: str, classes: int) -> None:
    """Also where samples with repeated items are biased: many classes, few items each."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, classes, 200)
    predicted = np.where(rng.random(200) < 0.7, truth, rng.integers(0, classes, 200))
    score = _score(Outputs(metric, truth, predicted))
    assert score.interval is not None
    assert 0 <= score.interval[0] < score.value < score.interval[1] <= 1


def test_same_numbers_every_time() -> None:
    values = np.random.default_rng(0).uniform(size=50)
    assert _mean(values).interval == _mean(values).interval
    assert _mean(values, "other task").interval != _mean(values).interval


def test_pairing_sees_a_small_but_steady_difference() -> None:
    rng = np.random.default_rng(0)
    base = rng.uniform(0, 0.9, size=300)
    better = base + rng.uniform(0.0, 0.02, size=300)
    difference = paired_bootstrap(_mean(better), _mean(base))
    assert difference.supported
    assert difference.value == pytest.approx(0.01, abs=0.002)
    own = _mean(base).interval
    assert own is not None
    assert own[1] - own[0] > 10 * (difference.interval[1] - difference.interval[0])
    opposite = paired_bootstrap(_mean(base), _mean(better))
    assert opposite.interval == pytest.approx((-difference.interval[1], -difference.interval[0]))


def test_a_model_against_itself() -> None:
    values = np.random.default_rng(0).uniform(size=60)
    difference = paired_bootstrap(_mean(values), _mean(values.copy()))
    assert (difference.value, difference.interval) == (0.0, (0.0, 0.0))
    assert not difference.supported


def test_false_alarms_are_rare() -> None:
    rng = np.random.default_rng(1)
    supported = 0
    for _ in range(100):
        first, second = rng.normal(0.5, 0.1, 80), rng.normal(0.5, 0.1, 80)
        supported += paired_bootstrap(_mean(first), _mean(second), resamples=300).supported
    assert supported <= 13


def test_mean_over_tasks() -> None:
    rng = np.random.default_rng(0)
    ours = [_mean(rng.uniform(size=100), "a"), _mean(rng.uniform(size=200), "b")]
    theirs = [_mean(rng.uniform(size=100), "a"), _mean(rng.uniform(size=200), "b")]
    difference = paired_bootstrap(ours, theirs)
    assert difference.value == pytest.approx(np.mean([o.value - t.value for o, t in zip(ours, theirs, strict=True)]))
    assert (difference.tasks, difference.n) == (("a", "b"), 300)
    single = paired_bootstrap(ours[0], theirs[0])
    # The mean of two independent differences varies less than one of them.
    assert difference.interval[1] - difference.interval[0] < single.interval[1] - single.interval[0]


def test_seeds_of_one_task_share_the_draws() -> None:
    """Three copies of one difference are not three independent tasks: the interval must not shrink."""
    rng = np.random.default_rng(0)
    a, b = _mean(rng.uniform(size=100)), _mean(rng.uniform(size=100))
    assert paired_bootstrap([a] * 3, [b] * 3).interval == pytest.approx(paired_bootstrap(a, b).interval)


def test_only_equal_items_are_paired() -> None:
    truth = np.arange(10.0)
    one = _score(Outputs("spearman", truth, truth))
    with pytest.raises(DataError, match=r"^task t: .*\bspearman of 10 items and spearman of 10\b"):
        paired_bootstrap(one, _score(Outputs("spearman", truth[::-1].copy(), truth)))
    with pytest.raises(DataError, match=r"^task t: .*\bspearman of 10 items and spearman of 9\b"):
        paired_bootstrap(one, _score(Outputs("spearman", truth[:9], truth[:9])))
    with pytest.raises(DistilvecError, match=r"\['t'\] and \['u'\]"):
        paired_bootstrap(one, _score(Outputs("spearman", truth, truth), "u"))
    with pytest.raises(DistilvecError, match=r"\[\] and \[\]"):
        paired_bootstrap([], [])
    bare = Score("t", "x", "spearman", 0.5, None, 10)
    with pytest.raises(DataError, match="^task t: .*outputs=None"):
        paired_bootstrap(one, bare)


def test_the_cap_keeps_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).uniform(size=3000)
    whole = _mean(values)
    monkeypatch.setattr(module, "ITEM_CAP", 1000)
    capped = _mean(values)
    assert (whole.details, capped.details) == ({}, {"interval_items": 1000})
    assert capped.value == whole.value
    assert capped.interval == pytest.approx(whole.interval, abs=0.003)


def test_draws_are_scored_many_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 items and 1,000 draws: three calls of the metric, and counts of 16 MB at a time."""
    shapes = []
    metric, *limits = METRICS["spearman"]

    def counted(truth: np.ndarray, predicted: np.ndarray, counts: np.ndarray | None = None) -> object:
        shapes.append(None if counts is None else counts.shape)
        return metric(truth, predicted, counts)

    monkeypatch.setitem(METRICS, "spearman", (counted, *limits))
    truth = np.random.default_rng(0).normal(size=5000)
    _score(Outputs("spearman", truth, truth[::-1].copy()))
    drawn = [shape for shape in shapes if shape is not None and len(shape) == 2 and shape[0] > 1]
    assert drawn == [(400, 5000), (400, 5000), (200, 5000)]
    assert len(shapes) - len(drawn) <= 2  # the value on all items


@pytest.mark.parametrize("dtype", [np.int16, np.float32, bool])
def test_scores_survive_json(dtype: type) -> None:
    import json

    predicted = np.random.default_rng(0).integers(0, 2, size=(3, 50)).astype(dtype)
    score = _score(Outputs("v_measure", np.arange(50, dtype=np.int32) % 4, predicted.astype(np.int16)))
    again = Score.from_dict(json.loads(json.dumps(score.to_dict(outputs=True))))
    assert again == score
    assert again.outputs is not None
    assert score.outputs is not None
    assert np.array_equal(again.outputs.predicted, score.outputs.predicted)
    assert not paired_bootstrap(score, again).supported
    assert Score.from_dict(score.to_dict()).outputs is None
    with pytest.raises(DataError, match="'kind', 'metric'"):
        Score.from_dict({"task": "t"})


@pytest.mark.parametrize("items", [6, 10, 20])
def test_winners_are_rare_with_few_items(items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn items alone call too many differences supported where there are none."""
    rng = np.random.default_rng(items)
    gaps = rng.normal(0, 0.1, (400, items))
    nothing = _mean(np.full(items, 0.5))

    def supported() -> int:
        return sum(paired_bootstrap(_mean(0.5 + gap), nothing, resamples=400).supported for gap in gaps)

    widened = supported()
    monkeypatch.setattr(module, "_student", lambda n: 1.0)
    assert widened <= 0.085 * 400 and supported() > 1.2 * widened


def test_equal_outcomes_of_few_items_are_not_sure() -> None:
    """Clopper and Pearson: three right of three may be 29 % of all; a hundred of a hundred at least 96 %."""
    for items, low in ((3, 0.025 ** (1 / 3)), (100, 0.025**0.01)):
        right = _score(Outputs("accuracy", np.zeros(items, np.int32), np.zeros(items, np.int32)))
        assert right.interval == pytest.approx((low, 1.0))
        wrong = _score(Outputs("accuracy", np.zeros(items, np.int32), np.ones(items, np.int32)))
        assert wrong.interval == pytest.approx((0.0, 1 - low))


def test_tasks_about_the_same_items_share_the_draws() -> None:
    """Two tasks that say the same are no surer together than one."""
    values = np.random.default_rng(0).uniform(size=(2, 100))

    def score(column: np.ndarray, task: str, items: str) -> Score:
        return make_score(
            task=task, kind="x", domain=None, items=items, outputs=Outputs("ndcg@10", np.zeros(100, np.int8), column)
        )

    def width(items: str) -> float:
        ours, theirs = ([score(column, task, items) for task in ("label", "domain")] for column in values)
        low, high = paired_bootstrap(ours, theirs).interval
        return high - low

    alone = paired_bootstrap(score(values[0], "label", "x"), score(values[1], "label", "x")).interval
    assert width("held-out items") == pytest.approx(alone[1] - alone[0], rel=0.1)
    assert width("") == pytest.approx((alone[1] - alone[0]) / 2**0.5, rel=0.1)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_methods_rarely_differ_over_seeds(seeds: int) -> None:
    """Of seeds alone, without errors of items: at most every twentieth interval of two equal methods leaves 0 out."""
    draw = np.random.default_rng(seeds)
    truth = np.arange(40) % 2
    outputs = Outputs("accuracy", truth, truth)
    same = make_score(task="t", kind="classification", domain=None, outputs=outputs)
    won = 0
    for trial in range(200):
        group = draw.normal(size=seeds)
        centre = float(group.mean())
        found = paired_bootstrap(same, same, resamples=400, seed=trial, runs=[group.tolist()])
        low, high = (edge + centre for edge in found.interval)
        won += low > 0 or high < 0
    assert won <= 20
