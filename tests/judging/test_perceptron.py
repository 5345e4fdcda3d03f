"""The perceptron probe: what it learns, how it splits, and that its seeds do not disturb one another."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

from distilvec.errors import DataError, DistilvecError
from distilvec.judging import load_task, paired_bootstrap
from distilvec.judging.metrics import auroc, measure, over_repetitions, r2
from distilvec.judging.perceptron import IMAGES, MOLECULES, PerceptronTask, disagreement
from distilvec.judging.perceptron_fit import Parts, PerceptronSettings, fit_perceptrons
from distilvec.judging.scores import Score

FEW = dataclasses.replace(MOLECULES, epochs=8)
MORE = dataclasses.replace(MOLECULES, epochs=30)


class World:
    """Items "0", "1", ... with features [n, 4]; the answers follow from them by a curved rule."""

    def __init__(self, items: int = 400, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.features = rng.normal(size=(items, 4)).astype(np.float32)
        self.items = [str(n) for n in range(items)]
        self.curve = np.abs(self.features[:, 0]) + self.features[:, 1] * self.features[:, 2]

    def encode(self, items: Sequence[str]) -> np.ndarray:
        return self.features[[int(item) for item in items]]

    def constant(self, items: Sequence[str]) -> np.ndarray:
        return np.full((len(items), 3), 0.7, dtype=np.float32)


def test_auroc_is_that_of_sklearn_also_with_weights_and_ties() -> None:
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(0, 2, 60), rng.integers(0, 9, 60) / 3
    weights = rng.integers(0, 4, (5, 60)).astype(float)
    expected = [roc_auc_score(truth, predicted, sample_weight=row) for row in weights]
    np.testing.assert_allclose(auroc(truth, predicted, weights), expected, rtol=1e-12)
    assert np.isnan(auroc(np.ones(3), np.arange(3), np.ones((1, 3))))[0]


def test_repetitions_are_averaged_each_over_its_own_items() -> None:
    truth = np.array([1.0, 2, 3, 4])
    predicted = np.array([[1.0, 2.5, 3, np.nan], [np.nan, 2, 2, 5]])
    rows = [r2(truth[:3], predicted[0, :3], np.ones((1, 3)))[0], r2(truth[1:], predicted[1, 1:], np.ones((1, 3)))[0]]
    assert measure("r2", truth, predicted) == pytest.approx(np.mean(rows))
    # A resample of one item has no R2 in the first line, and the value of the second is left.
    weights = np.array([[0.0, 0, 1, 1]])
    (value,) = over_repetitions(r2)(truth, predicted, weights)
    assert value == pytest.approx(r2(truth[1:], predicted[1, 1:], np.array([[0.0, 1, 1]]))[0])


@pytest.mark.parametrize("settings", [MORE, dataclasses.replace(IMAGES, lr=1e-2)], ids=["adam", "sgd"])
def test_learns_a_curved_rule_that_no_line_finds(settings: PerceptronSettings) -> None:
    world = World(1500)
    labels = np.digitize(np.abs(world.features[:, 0]), [0.4, 1.0])
    score = PerceptronTask("a", (world.items, labels), settings=settings).score(world.encode)
    assert score.metric == "accuracy"
    assert score.value > 0.75  # chance 0.36
    assert score.interval is not None
    assert score.interval[0] < score.value < score.interval[1]
    chance = PerceptronTask("a", (world.items, labels), settings=settings).score(world.constant)
    assert chance.value < 0.45


def test_binary_and_regression() -> None:
    world = World(1500)
    binary = PerceptronTask("a", (world.items, world.curve > 1), target="binary", settings=MORE)
    score = binary.score(world.encode)
    assert (score.metric, score.kind, binary.label_names) == ("auroc", "classification", ["False", "True"])
    assert score.value > 0.9
    numbers = 1000 + 50 * world.curve
    task = PerceptronTask("a", (world.items, numbers), target="regression", settings=MORE)
    found = task.score(world.encode)
    assert (found.metric, found.kind) == ("r2", "regression")
    assert found.value > 0.75
    assert np.nanmean(found.outputs.predicted) == pytest.approx(numbers.mean(), rel=0.02)
    assert task.score(world.constant).value == pytest.approx(0, abs=0.05)


def test_random_splits_are_70_10_20_and_differ_by_seed() -> None:
    world = World(400)
    task = PerceptronTask("a", (world.items, world.curve > 1), target="binary", settings=FEW)
    assert [rows.shape for rows in task._parts] == [(5, 280), (5, 40), (5, 80)]
    for seed in range(5):
        assert sorted(np.concatenate([rows[seed] for rows in task._parts]).tolist()) == list(range(400))
    assert not np.array_equal(np.sort(task._parts.test[0]), np.sort(task._parts.test[1]))
    score = task.score(world.encode)
    assert len(score.outputs) == len(task.test_items()) == len(np.unique(task._parts.test))
    assert np.isfinite(score.outputs.predicted).sum(axis=1).tolist() == [80] * 5
    assert score.value == pytest.approx(np.mean(score.details["values"]))
    assert score.details["train_rows"] == 280
    for row in range(5):  # every number is that of its own item
        there = np.isfinite(score.outputs.predicted[row])
        own = roc_auc_score(score.outputs.truth[there], score.outputs.predicted[row, there])
        assert own == pytest.approx(score.details["values"][row])


def test_repeated_items_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """One of them may be trained on and the other tested."""
    world = World(100)
    task = PerceptronTask(
        "a", ([*world.items, "3", "4"], np.append(world.curve, [0, 1]) > 1), target="binary", settings=FEW
    )
    assert "task a: 2 of 102 items are there before" in caplog.text
    assert task.score(world.encode).details["repeated"] == 2
    assert PerceptronTask("b", (world.items, world.curve > 1), target="binary", settings=FEW).repeated == 0


def test_test_items_in_the_training_data_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    world = World(100)
    train, test = (world.items[:80], world.curve[:80] > 1), (world.items[70:], world.curve[70:] > 1)
    task = PerceptronTask("a", train, test, target="binary", settings=FEW)
    assert "task a: 10 of 30 test items are among the training items" in caplog.text
    assert task.score(world.encode).details["known"] == 10
    caplog.clear()
    apart = PerceptronTask("b", train, (world.items[80:], world.curve[80:] > 1), target="binary", settings=FEW)
    assert not caplog.text and "known" not in apart.score(world.encode).details


def test_a_molecule_written_in_two_ways_is_there_twice(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    smiles = ["C" * length + "O" for length in range(1, 12)]
    rows = [{"smiles": each, "label": row % 2} for row, each in enumerate([*smiles, "OCC", "no SMILES", "C(O)CC"])]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {"name": "a", "kind": "perceptron", "train": "rows.jsonl", "text": "smiles"}
    task = load_task(spec, tmp_path)
    assert isinstance(task, PerceptronTask) and task.repeated == 2
    assert len(task.texts()) == 13


def test_molecules_are_excluded_however_they_are_written() -> None:
    """In SMILES case is chemistry: c1ccccc1 is benzene, C1CCCCC1 cyclohexane."""
    pytest.importorskip("rdkit")
    train = [{"smiles": "C" * length + "O", "label": length % 2} for length in range(4, 16)]
    names = ["c1ccccc1", "C1CCCCC1", "OCCC", "CCBr"]
    test = [{"smiles": each, "label": row % 2} for row, each in enumerate(names)]
    spec = {"name": "a", "kind": "perceptron", "target": "binary", "text": "smiles", "train": train, "test": test}
    whole, away = load_task(spec), ["C1CCCCC1", "CCCO"]
    assert dict(zip(names, whole.keep(away).tolist(), strict=True)) == {
        "c1ccccc1": True,
        "C1CCCCC1": False,
        "OCCC": False,
        "CCBr": True,
    }
    assert load_task({**spec, "exclude": away}).test_items() == [("c1ccccc1",), ("CCBr",)]
    with pytest.raises(DataError, match="all 4 test items are excluded"):
        load_task({**spec, "exclude": ["C1=CC=CC=C1", "BrCC", *away]})


def test_given_splits() -> None:
    world = World(300)
    labels = (world.curve > 1).astype(int)
    parts = [(world.items[a:b], labels[a:b]) for a, b in ((0, 200), (200, 260), (260, 300))]
    task = PerceptronTask("a", *parts, settings=FEW, seeds=(3, 4))
    assert [rows.shape for rows in task._parts] == [(2, 200), (2, 40), (2, 60)]
    assert task.test_items() == [(item,) for item in world.items[200:260]]
    score = task.score(world.encode)
    assert score.outputs.predicted.shape == (2, 60)
    assert task.without(score, world.items[200:230]).n == 30
    held = PerceptronTask("a", *parts[:2], settings=FEW, seeds=(3, 4))
    assert [rows.shape for rows in held._parts] == [(2, 180), (2, 20), (2, 60)]
    assert not set(held._parts.held[0]) & set(held._parts.train[0])


def test_a_seed_gives_the_same_result_with_any_other_seeds() -> None:
    world = World(300)
    columns = (world.items, world.curve)
    before = torch.random.get_rng_state()
    both = PerceptronTask("a", columns, target="regression", seeds=(0, 7), settings=FEW)
    first, second = both.score(world.encode), both.score(world.encode)
    assert np.array_equal(first.outputs.predicted, second.outputs.predicted, equal_nan=True)
    assert torch.equal(before, torch.random.get_rng_state())
    alone = PerceptronTask("a", columns, target="regression", seeds=(7,), settings=FEW).score(world.encode)
    assert alone.value == pytest.approx(first.details["values"][1], abs=1e-4)
    assert first.details["values"][0] != first.details["values"][1]


def reference(features: np.ndarray, answers: np.ndarray, parts: Parts, seed: int, settings: PerceptronSettings):
    """One perceptron of torch's own layers, in a loop, with the same start and the same order of items."""
    train, held, test = (rows[0] for rows in parts)
    shift, scale = features[train].mean(0), features[train].std(0)
    x, y = torch.from_numpy((features - shift) / scale), torch.from_numpy(answers.astype(np.int64))
    net = torch.nn.Sequential(
        torch.nn.Linear(features.shape[1], settings.hidden or features.shape[1]),
        torch.nn.LeakyReLU(0.01) if settings.activation == "leaky_relu" else torch.nn.ReLU(),
        torch.nn.Linear(settings.hidden or features.shape[1], 3),
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in (net[0], net[2]):
            bound = layer.in_features**-0.5
            weight = torch.empty(layer.in_features, layer.out_features)
            layer.weight.copy_(weight.uniform_(-bound, bound, generator=generator).T)
            layer.bias.uniform_(-bound, bound, generator=generator)
    if settings.optimizer == "sgd":
        optimizer = torch.optim.SGD(net.parameters(), 1e-3, 0.9, weight_decay=settings.weight_decay, nesterov=True)
    else:
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    rng, best, kept = np.random.default_rng([seed, 1]), float("inf"), None
    for _ in range(settings.epochs_for(len(train))):
        for rows in np.split(train[rng.permutation(len(train))], range(settings.batch_size, len(train), 64)):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            loss = float(torch.nn.functional.cross_entropy(net(x[held]), y[held]))
            if loss < best:
                best, kept = loss, net(x[test]).numpy()
    return kept


@pytest.mark.parametrize("settings", [FEW, dataclasses.replace(IMAGES, epochs=5)], ids=["adam", "sgd"])
def test_the_batched_fit_is_a_loop_of_single_ones(settings: PerceptronSettings) -> None:
    world = World(230)
    answers = np.digitize(world.curve, [0.3, 1.2])
    orders = np.stack([np.random.default_rng(seed).permutation(230) for seed in range(2)])
    parts = Parts(orders[:, :150], orders[:, 150:180], orders[:, 180:])
    fitted = fit_perceptrons(
        world.features, answers, parts, (0, 1), target="classification", width=3, settings=settings
    )
    for seed in range(2):
        own = Parts(*(rows[seed : seed + 1] for rows in parts))
        expected = reference(world.features, answers, own, seed, settings)
        np.testing.assert_allclose(fitted.outputs[seed], expected, rtol=1e-3, atol=1e-4)


def test_the_best_epoch_is_kept_not_the_last() -> None:
    world = World(60)
    noise = np.random.default_rng(1).integers(0, 2, 60)
    settings = dataclasses.replace(MOLECULES, epochs=60, lr=1e-2)
    score = PerceptronTask("a", (world.items, noise), settings=settings).score(world.encode)
    assert max(score.details["best_epochs"]) < 50
    assert score.details["epochs"] == 60


def test_the_rule_for_epochs() -> None:
    found = [MOLECULES.epochs_for(items) for items in (10, 5000, 10_000, 20_000, 50_000, 10**7)]
    assert found == [100, 100, 100, 50, 20, 1]
    assert IMAGES.epochs_for(10) == IMAGES.epochs


def test_constant_coordinates_and_huge_scales_do_no_harm() -> None:
    world = World(600)
    labels = (np.abs(world.features[:, 0]) > 0.7).astype(int)
    plain = PerceptronTask("a", (world.items, labels), settings=MORE).score(world.encode)

    def awkward(items: Sequence[str]) -> np.ndarray:
        vectors = world.encode(items) * np.logspace(-6, 6, 4, dtype=np.float32)
        return np.concatenate([vectors, np.full((len(items), 5), 0.3, np.float32), np.zeros((len(items), 2))], axis=1)

    other = PerceptronTask("a", (world.items, labels), settings=MORE).score(awkward)
    assert other.value == pytest.approx(plain.value, abs=0.06)
    assert plain.value > 0.75


def test_seeds_with_one_class_are_left_out_with_a_reason() -> None:
    world = World(40)
    labels = np.zeros(40)
    labels[[3, 17]] = 1.0
    task = PerceptronTask("a", (world.items, labels), target="binary", seeds=range(12), settings=FEW)
    assert task.skipped
    assert task.seeds
    assert set(task.seeds) | set(task.skipped) == set(range(12))
    assert set(task.skipped.values()) <= {
        "all test items have the same answer",
        "all training items have the same answer",
    }
    details = task.score(world.encode).details
    assert len(details["values"]) == len(task.seeds)
    assert details["skipped"] == {str(seed): reason for seed, reason in task.skipped.items()}
    with pytest.raises(DataError, match=r"^task a: .*\btest items"):
        test = (world.items[:5], [0.0] * 5)
        PerceptronTask("a", (world.items, labels), test, target="binary", settings=FEW)


def test_logarithms() -> None:
    world = World(600)
    numbers = np.exp(2 * world.features[:, 0])
    task = PerceptronTask("a", (world.items, numbers), target="regression", log=True, settings=MORE)
    score = task.score(world.encode)
    assert score.value > 0.9
    np.testing.assert_allclose(score.outputs.truth, 2 * world.features[task._tested, 0], rtol=1e-4, atol=1e-5)
    with pytest.raises(DataError, match=r"^task a: -0\.5 .*logarithm"):
        PerceptronTask("a", (world.items, [-0.5, *numbers[1:]]), target="regression", log=True)


@pytest.mark.parametrize(
    ("answers", "options", "message"),
    [
        ([0, 1, 2] * 10, {"target": "binary"}, r"\b3 \(0, 1, 2\)"),
        (["x"] * 30, {"target": "regression"}, "numbers .*'x'"),
        ([0] * 30, {}, "training items"),
        ([0, 1] * 15, {"target": "binari"}, '"binari".*"binary"'),
        ([0, 1] * 15, {"seeds": ()}, r"seeds .*\[\]"),
        ([0, 1] * 15, {"seeds": (1, 1)}, r"seeds .*\[1, 1\]"),
        ([0, 1] * 15, {"validation": (["0"], [1])}, "validation .*test"),
        ([0, 1] * 10, {}, "train item 30, train answer 20"),
    ],
)
def test_what_cannot_be_is_refused(answers, options, message) -> None:
    with pytest.raises(DistilvecError, match=f"^task a: .*{message}"):
        PerceptronTask("a", (World(30).items, answers), **options)
    with pytest.raises(DataError, match=r"^task a: 2 items"):
        PerceptronTask("a", (["0", "1"], [0, 1]))


def test_labels_that_are_spelt_otherwise_are_refused_and_unknown_ones_counted() -> None:
    world = World(60)
    train, test = (world.items[:40], [1, 0] * 20), world.items[40:]
    with pytest.raises(DataError, match='^task a: none of the test rows has a label .*"True"'):
        PerceptronTask("a", train, (test, ["True", "False"] * 10))
    score = PerceptronTask("a", train, (test, [1, 0] * 9 + ["?", "!"]), seeds=(0,)).score(world.encode)
    assert score.details["unknown_labels"] == 2


def test_disagreement_counts_items_with_different_predictions() -> None:
    world = World(500)
    labels = np.digitize(world.curve, [0.3, 1.2])
    task = PerceptronTask("a", (world.items, labels), settings=MORE, seeds=(0, 1))
    one, blind = task.score(world.encode), task.score(world.constant)
    assert disagreement(one, one) == 0
    shares = [
        np.mean(a[np.isfinite(a)] != b[np.isfinite(b)]) for a, b in zip(one.outputs.predicted, blind.outputs.predicted)
    ]
    assert disagreement(one, blind) == pytest.approx(np.mean(shares)) == disagreement(blind, one)
    assert 0.2 < disagreement(one, blind) < 1
    assert paired_bootstrap(one, blind).supported


def test_disagreement_of_binary_probes_is_about_the_class_not_the_logit() -> None:
    world = World(500)
    task = PerceptronTask("a", (world.items, world.curve > 1), target="binary", settings=FEW, seeds=(0, 1))
    one = task.score(world.encode)
    stretched = dataclasses.replace(one, outputs=dataclasses.replace(one.outputs, predicted=3 * one.outputs.predicted))
    assert disagreement(one, stretched) == 0
    turned = dataclasses.replace(one, outputs=dataclasses.replace(one.outputs, predicted=-one.outputs.predicted))
    assert disagreement(one, turned) == 1


def test_disagreement_needs_the_same_items_and_classes() -> None:
    world = World(100)
    task = PerceptronTask("a", (world.items, world.curve > 1), seeds=(0,), settings=FEW)
    other = PerceptronTask("a", (world.items, world.curve > 1), seeds=(1,), settings=FEW)
    with pytest.raises(DataError, match=r"^task a: .*\[1, \d+\] and \[1, \d+\]"):
        disagreement(task.score(world.encode), other.score(world.encode))
    numbers = PerceptronTask("a", (world.items, world.curve), target="regression", seeds=(0,), settings=FEW)
    with pytest.raises(DataError, match="^task a: .*not r2 and r2"):
        disagreement(numbers.score(world.encode), numbers.score(world.encode))
    score = task.score(world.encode)
    with pytest.raises(DataError, match="^task a: .*outputs=None"):
        disagreement(score, dataclasses.replace(score, outputs=None))


def test_scores_survive_json() -> None:
    world = World(100)
    score = PerceptronTask("a", (world.items, world.curve > 1), target="binary", settings=FEW).score(world.encode)
    again = Score.from_dict(score.to_dict(outputs=True))
    assert measure("auroc", again.outputs.truth, again.outputs.predicted) == pytest.approx(score.value)
    assert again == score


def test_from_a_description(tmp_path: Path) -> None:
    world = World(60)
    rows = "\n".join(f"{item},{value:.4f},{int(value > 1)}" for item, value in zip(world.items, np.exp(world.curve)))
    (tmp_path / "all.csv").write_text("smiles,activity,label\n" + rows + "\n")
    spec = {
        "name": "activity",
        "kind": "perceptron",
        "train": "all.csv",
        "text": "smiles",
        "score": "activity",
        "target": "regression",
        "log": True,
        "seeds": 3,
    }
    task = load_task(spec, tmp_path)
    assert isinstance(task, PerceptronTask)
    assert (task.kind, task.seeds, task.settings) == ("regression", (0, 1, 2), MOLECULES)
    np.testing.assert_allclose(task._answers, world.curve, atol=1e-3)
    spec |= {"target": "binary", "test": "all.csv"}
    given = load_task({key: value for key, value in spec.items() if key not in ("log", "score")}, tmp_path)
    assert len(given.test_items()) == 60
    with pytest.raises(DistilvecError, match="task activity: exclude .*test file"):
        load_task({**spec, "target": "regression", "test": None, "exclude": ["0"]}, tmp_path)
    with pytest.raises(DistilvecError, match='^task a: .*"train".*perceptron'):
        load_task({"name": "a", "kind": "perceptron"}, tmp_path)


def test_a_description_of_images_names_files_next_to_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From a table, a folder of folders and an .npz file; what cannot be read is left out and counted."""
    pixels = np.random.default_rng(0).integers(0, 255, (24, 8, 8, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        place = tmp_path / "kinds" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number}.{'PNG' if number % 3 else 'png'}")
    (tmp_path / "kinds/a/broken.png").write_bytes(b"\x89PNG and no more")
    rows = [{"image": f"kinds/{'ab'[n % 2]}/{n}.{'PNG' if n % 3 else 'png'}", "label": n % 2} for n in range(24)]
    rows += [{"image": "kinds/gone.png", "label": 1}, {"image": "kinds/a/broken.png", "label": 0}]
    rows += [{"image": "kinds/a/0.png", "label": None}]
    np.savez(tmp_path / "kinds.npz", image=pixels, label=np.arange(24) % 2)
    spec = {"name": "kinds", "kind": "perceptron", "probe": "images"}
    table = load_task({**spec, "train": rows}, tmp_path)
    assert table.settings == IMAGES and table.texts()[0] == str(tmp_path / "kinds/a/0.png")
    assert table.rejected == {"no label": 1, "no such file": 1, "damaged image": 1}
    assert "1 rows left out, no such file (rows, row 25)" in caplog.text
    folder = load_task({**spec, "train": "kinds", "label": "folder"}, tmp_path)
    assert set(folder.texts()) == set(table.texts()) and folder.rejected == {"damaged image": 1}
    assert folder.label_names == ["a", "b"]
    packed = load_task({**spec, "train": "kinds.npz"}, tmp_path)
    assert len(packed.texts()) == 24 and not packed.rejected and packed.texts()[0].startswith("data:image/png;base64,")
    with pytest.raises(DataError, match=r"^rows, column picture: .*missing image \(27\)"):
        load_task({**spec, "train": [{**row, "picture": None} for row in rows], "text": "picture", "label": "image"})


def test_a_description_of_molecules_leaves_out_invalid_rows(caplog: pytest.LogCaptureFixture) -> None:
    """Blank cells of a table of several tasks, strings that are no SMILES, and texts that are none at all."""
    pytest.importorskip("rdkit")
    smiles = ["C" * n + "O" for n in range(1, 20)]
    rows = [{"text": text, "label": str(n % 2)} for n, text in enumerate(smiles)]
    rows += [{"text": "C1CC", "label": "1"}, {"text": "CCN", "label": ""}, {"text": "C" * 2000, "label": "0"}]
    spec = {"name": "barrier", "kind": "perceptron", "target": "binary"}
    task = load_task({**spec, "train": rows})
    assert task.texts() == smiles
    assert task.rejected == {"no label": 1, "not a valid SMILES": 1, "too long": 1}
    assert "1 rows left out, not a valid SMILES (rows, row 20)" in caplog.text
    world = World(20)
    vectors = {text: world.features[n] for n, text in enumerate(smiles)}
    score = task.score(lambda items: np.stack([vectors[item] for item in items]))
    assert score.details["rejected"] == task.rejected
    words = [{"text": f"word {n}", "label": str(n % 2)} for n in range(20)]
    assert len(load_task({**spec, "train": words}).texts()) == 20
    with pytest.raises(DataError, match=r"^rows, row 1, column label: .*\binf\b"):
        load_task({**spec, "train": [{"text": "CCO", "label": float("inf")}, *rows]})


def test_a_pretrained_network_on_cifar10() -> None:
    """ResNet-20's features (tests/data): the probe gets what a least-squares probe gets on the same rows."""
    data = np.load(Path(__file__).parents[1] / "data" / "resnet20_features.npz")
    vectors = {part: data[part].astype(np.float32) / 64 for part in ("train", "test")}
    labels = {part: data[f"{part}_labels"] for part in vectors}
    known = {f"{part} {n}": vector for part, found in vectors.items() for n, vector in enumerate(found)}
    parts = ((([item for item in known if item.startswith(part)]), labels[part]) for part in vectors)
    score = PerceptronTask("c", *parts, settings=IMAGES).score(lambda items: np.stack([known[item] for item in items]))
    inputs = {part: np.c_[found, np.ones(len(found))] for part, found in vectors.items()}
    weights = np.linalg.lstsq(inputs["train"], np.eye(10)[labels["train"]], rcond=None)[0]
    linear = ((inputs["test"] @ weights).argmax(1) == labels["test"]).mean()
    assert linear > 0.88
    assert linear - 0.01 < score.value < linear + 0.03


def test_differently_spelt_numbers_are_one_class() -> None:
    items = [f"item {number}" for number in range(12)]
    train_part = items, ["0.0", "1.0", "2.0"] * 4
    test_part = [f"test {number}" for number in range(6)], ["0", "1", "2"] * 2
    task = PerceptronTask("spelt", train_part, test_part)
    assert task.label_names == ["0.0", "1.0", "2.0"], "as they were spelt first"
