"""The map into the teacher's space, as it is shipped: flatter than it was trained, where that loses no neighbours."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense

from distilvec.corpus import Corpus
from distilvec.errors import DistilvecError
from distilvec.flow.fit import MISSED, POWERS, fit, interpolated, ship_student
from distilvec.flow.lessons import teach
from distilvec.flow.run import train
from distilvec.flow.settle import prepare
from distilvec.judging.agreement import likeness
from distilvec.modules.projection import flattened
from distilvec.recipe import Recipe


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
def test_flattening_keeps_directions_and_norm(shape: tuple[int, int]) -> None:
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    torch.testing.assert_close(flattened(weight, 1.0), weight)
    for power in (0.0, 0.25, 0.5):
        flat = flattened(weight, power)
        assert flat.norm().item() == pytest.approx(weight.norm().item(), rel=1e-5)
        expected = values**power / (values**power).norm() * values.norm()
        torch.testing.assert_close(left.T @ flat @ right.T, torch.diag(expected), atol=1e-5, rtol=1e-5)


def made(folder: Path, sentences: list[str], teacher: Path, count: int = 400, **method: Any) -> Recipe:
    texts = [" ".join(text.split()[:8]) + f" {row}" for row, text in enumerate(sentences * 9)][:count]
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    return Recipe.build(
        {
            "corpus": {"path": str(folder / "texts.txt"), "holdout": 0.1},
            "teachers": [{"name": "tiny", "model": str(teacher)}],
            "student": {"shrink": {"of": "tiny", "layers": 1}, "space": "teacher"},
            "method": {"name": "cosine", **method},
            "training": {"epochs": 1, "batch_size": 16, "use_cpu": True},
            "output": str(folder / "out"),
        }
    )


def is_dense(module: torch.nn.Module) -> bool:
    return type(module).__name__ == "Dense"


def trained_and_shipped(out: Path) -> tuple[torch.Tensor, torch.Tensor]:
    last = max((out / "checkpoints").glob("checkpoint-*"), key=lambda each: int(each.name.rpartition("-")[2]))
    shipped = SentenceTransformer(str(out / "student"), device="cpu")
    dense = next(each for each in shipped if is_dense(each))
    return load_file(last / "model.safetensors")["method.heads.0.weight"], dense.linear.weight.detach()


def test_a_map_is_as_flat_as_it_may_be(
    tmp_path: Path, sentences: list[str], tiny_bert: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    recipe = made(tmp_path, sentences, tiny_bert)
    train(recipe)
    weight, shipped = trained_and_shipped(tmp_path / "out")

    corpus = Corpus.open(tmp_path / "out/corpus")
    texts = corpus.texts(corpus.train_rows)
    teacher = SentenceTransformer(str(tiny_bert), device="cpu")
    student = SentenceTransformer(str(tmp_path / "out/student"), device="cpu")
    own = SentenceTransformer(
        modules=[each for each in student if type(each).__name__ not in ("Dense", "Normalize")], device="cpu"
    )
    told, said = teacher.encode(texts), own.encode(texts)
    found = {power: likeness(told, said @ flattened(weight, power).numpy().T)["neighbours"] for power in POWERS}
    enough = max(found.values()) - MISSED
    chosen = next(power for power in POWERS if torch.allclose(flattened(weight, power), shipped, atol=1e-5))
    near = 4e-3  # the store is in float16, and there are few texts
    assert found[chosen] >= enough - near
    assert all(found[power] < enough + near for power in POWERS if power < chosen)
    told_so = "the map into the teacher's space is flattened" in caplog.text
    assert told_so == (chosen < 1)


@pytest.mark.parametrize("few", [True, False])
def test_a_map_stays_as_it_was_trained(tmp_path: Path, sentences: list[str], tiny_bert: Path, few: bool) -> None:
    """With too few texts to try it on, and where the teacher's lengths mean something."""
    teacher = tiny_bert
    if not few:
        model = SentenceTransformer(str(tiny_bert), device="cpu")
        bare = SentenceTransformer(modules=[each for each in model if type(each).__name__ != "Normalize"], device="cpu")
        teacher = tmp_path / "bare"
        bare.save(str(teacher))
    train(made(tmp_path, sentences, teacher, 60 if few else 400))
    weight, shipped = trained_and_shipped(tmp_path / "out")
    torch.testing.assert_close(shipped, weight)


def test_interpolated_weights_are_between(tmp_path: Path, sentences: list[str], tiny_bert: Path) -> None:
    given = made(tmp_path, sentences, tiny_bert).model_dump(mode="json", exclude_defaults=True)
    states = {}
    for share in (None, 0.25):
        student = {"model": str(tiny_bert), "space": "own", "interpolate": share}
        recipe = Recipe.build({**given, "student": student, "output": str(tmp_path / f"out-{share}")})
        states[share] = SentenceTransformer(str(train(recipe)), device="cpu").state_dict()
    before = SentenceTransformer(str(tiny_bert), device="cpu").state_dict()
    moved = 0
    for name, between in states[0.25].items():
        old, new = before[name], states[None][name]
        torch.testing.assert_close(between, 0.75 * old + 0.25 * new, atol=1e-6, rtol=1e-5)
        moved += int(not torch.equal(old, new))
    assert moved > 10


def test_an_interpolated_map_is_between_ridge_and_trained(
    tmp_path: Path, sentences: list[str], tiny_bert: Path, tiny_model_folders: dict[str, Path]
) -> None:
    given = made(tmp_path, sentences, tiny_bert, 60).model_dump(mode="json", exclude_defaults=True)
    student = {"model": str(tiny_model_folders["xlmr"]), "space": "teacher", "interpolate": 0.25}
    training = {**given["training"], "bf16": False}
    prepared = prepare(Recipe.build({**given, "student": student, "training": training, "optimizer": {"lr": 0.01}}))
    lessons = teach(prepared)
    trained = fit(prepared, lessons)
    ridge, weight = torch.from_numpy(trained.fitted.free_map[0].T), trained.fitted.method.teacher_map().weight
    ship_student(prepared, lessons, trained, tmp_path / "shipped")
    shipped = next(each for each in SentenceTransformer(str(tmp_path / "shipped"), device="cpu") if is_dense(each))
    assert (weight - ridge).abs().max() > 0.01
    torch.testing.assert_close(shipped.linear.weight, 0.75 * ridge + 0.25 * weight, atol=1e-5, rtol=1e-4)


def test_an_interpolated_student_in_its_teachers_space_gets_no_map(
    tmp_path: Path, sentences: list[str], tiny_bert: Path
) -> None:
    given = made(tmp_path, sentences, tiny_bert, 60, map=False).model_dump(mode="json", exclude_defaults=True)
    student = {"model": str(tiny_bert), "space": "teacher", "interpolate": 0.5}
    shipped = SentenceTransformer(str(train(Recipe.build({**given, "student": student}))), device="cpu")
    assert not any(is_dense(each) for each in shipped)


def test_a_module_that_the_training_added_stays_as_it_was_trained() -> None:
    before = SentenceTransformer(modules=[Dense(4, 4, activation_function=None)], device="cpu")
    added = Dense(4, 4, activation_function=None)
    between = interpolated(before, SentenceTransformer(modules=[before[0], added], device="cpu"), 0.5)
    torch.testing.assert_close(between[1].linear.weight, added.linear.weight)


def test_shared_weights_go_as_far_as_others() -> None:
    """A T5, say, lists its table of word pieces under two names."""

    def tied(value: float) -> SentenceTransformer:
        first, second = (Dense(4, 4, activation_function=None) for _ in range(2))
        second.linear = first.linear
        torch.nn.init.constant_(first.linear.weight, value)
        return SentenceTransformer(modules=[first, second, Dense(4, 4, activation_function=None)], device="cpu")

    between = interpolated(tied(0.0), tied(1.0), 0.5)
    assert between[0].linear.weight is between[1].linear.weight
    torch.testing.assert_close(between[0].linear.weight.detach(), torch.full((4, 4), 0.5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"student": {"shrink": {"of": "tiny", "layers": 1}, "interpolate": 0.5}}, "interpolate is for a student"),
        (
            {"student": {"model": "BERT", "interpolate": 0.5}, "task": {"kind": "classification"}},
            "the task's head",
        ),
        (
            {"student": {"model": "BERT", "interpolate": 0.5}, "method": {"name": "distillmoe"}},
            "the head of distillmoe",
        ),
        (
            {"student": {"model": "BERT", "interpolate": 0.5}, "method": {"name": "gaussian", "keep_kernels": True}},
            "kernels of gaussian",
        ),
        (
            {
                "student": {"model": "BERT", "interpolate": 0.5},
                "method": {"name": "matryoshka", "dims": [8], "of": {"name": "gaussian", "keep_kernels": True}},
            },
            "kernels of gaussian",
        ),
    ],
)
def test_interpolation_is_refused(
    tmp_path: Path, sentences: list[str], tiny_bert: Path, change: dict[str, Any], message: str
) -> None:
    given = made(tmp_path, sentences, tiny_bert).model_dump(mode="json", exclude_defaults=True)
    if "task" in change:
        rows = ({"text": text, "label": str(row % 2)} for row, text in enumerate(sentences[:60]))
        (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        given["corpus"] = {"path": str(tmp_path / "texts.jsonl"), "label": "label"}
        change["student"]["model"] = str(tiny_bert)
    with pytest.raises(DistilvecError, match=message):
        train(Recipe.build({**given, **change}))
