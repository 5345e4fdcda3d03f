"""Gradient caching: the gradients of the whole batch, with the activations of a part of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from tests import tiny_models
from torch import Tensor, nn

from distilvec.errors import DistilvecError
from distilvec.functional import info_nce
from distilvec.methods.base import Needs
from distilvec.methods.table import build_method
from distilvec.modules.cifar_resnet import CifarResNet, image_model
from distilvec.students import StudentTap, load_student
from distilvec.students.output import StudentOutput
from distilvec.students.upcycling import upcycle
from distilvec.teachers import TeacherInfo
from distilvec.training.caching import in_mini_batches
from distilvec.training.step import Distiller, Extras


def opened(folder: Path) -> tuple[SentenceTransformer, StudentTap]:
    student = load_student(folder, device="cpu")
    return student, StudentTap(student)


def coupled_loss(output: StudentOutput) -> Tensor:
    """Every row enters every other row's loss."""
    value = info_nce(output.embedding[0], output.embedding[-1].roll(1, 0), 0.1).mean()
    return value if output.layers is None else value + output.layers.pow(2).mean(-1).std()


def gradients(student: nn.Module, observe: Callable[[], StudentOutput]) -> tuple[Tensor, list[Tensor]]:
    student.zero_grad()
    loss = coupled_loss(observe())
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in student.parameters() if p.grad is not None]


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
@pytest.mark.parametrize("layers", [False, True])
def test_the_gradients_are_those_of_the_whole_batch(
    tiny_model_folders: dict[str, Path], sentences: list[str], kind: str, layers: bool
) -> None:
    student, tap = opened(tiny_model_folders[kind])
    features = student.preprocess([text[:200] for text in sentences[:13]])
    student.eval()
    whole = gradients(student, lambda: tap(features, 1, layers))
    for size in (1, 4, 12, 13, 100):
        cached = gradients(student, lambda size=size: in_mini_batches(tap, features, size, 1, layers))
        torch.testing.assert_close(cached[0], whole[0], rtol=1e-5, atol=1e-6)
        assert len(cached[1]) == len(whole[1])
        for found, expected in zip(cached[1], whole[1], strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-5)


def test_masks_and_order_are_those_of_the_batch(tiny_bert: Path, sentences: list[str]) -> None:
    student, tap = opened(tiny_bert)
    features = student.preprocess(sentences[:10])
    student.eval()
    whole, cached = tap(features, 2, True), in_mini_batches(tap, features, 3, 2, True)
    for name in ("embedding", "layers", "mask", "content"):
        torch.testing.assert_close(getattr(cached, name), getattr(whole, name), rtol=1e-4, atol=1e-5)


def test_both_passes_have_the_same_dropout(tmp_path: Path, sentences: list[str]) -> None:
    """The gradient is the derivative of the value: a step against it does what the gradient says."""
    student, tap = opened(tiny_models.build("bert", tmp_path / "bert"))
    features = student.preprocess(sentences[:9])
    student.train()
    parameters = list(student.parameters())

    def value() -> Tensor:
        torch.manual_seed(3)
        return coupled_loss(in_mini_batches(tap, features, 2, 2))

    before = value()
    before.backward()
    with torch.no_grad():
        squared = sum(float(p.grad.double().pow(2).sum()) for p in parameters if p.grad is not None)
        step = 1e-3 / squared
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.sub_(step * parameter.grad)
        after = value()
    assert float((before - after).detach()) == pytest.approx(1e-3, rel=0.05)
    # Two views of one text differ, so dropout is really there.
    output = in_mini_batches(tap, features, 2, 2)
    assert (output.embedding[0] - output.embedding[1]).abs().max() > 1e-3


def test_less_is_kept_for_the_backward_pass(tiny_bert: Path, sentences: list[str]) -> None:
    student, tap = opened(tiny_bert)
    features = student.preprocess([text[:200] for text in sentences[:32]])

    def kept(observe: Callable[[], StudentOutput]) -> int:
        sizes: list[int] = []

        def pack(tensor: Tensor) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            observe()
        return sum(sizes)

    assert kept(lambda: in_mini_batches(tap, features, 4)) < 0.05 * kept(lambda: tap(features, 1))


def distiller(folder: Path, method: str, size: int | None, router_balance: float = 0.0, **options: Any) -> Distiller:
    student = load_student(folder, device="cpu")
    made = build_method(method, options)
    info = TeacherInfo("teacher", 24, layers=2, hidden=24)
    needs = made.needs(StudentTap(student).info, [info])
    return Distiller(student, made, needs, extras=Extras(router_balance, size))


def trained_gradients(model: Distiller, loss: Tensor) -> list[Tensor]:
    model.student.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.student.parameters() if parameter.grad is not None]


def distinct(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.uint8)[:, None].expand(-1, 16)


def test_ranking_is_that_of_sentence_transformers_cached_loss(tiny_bert: Path, sentences: list[str]) -> None:
    """The same loss and gradients on a batch of triplets, whose rows come in any order here."""
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    count = 7
    texts = [text[:200] for text in sentences[: 3 * count]]
    model = distiller(tiny_bert, "mnrl", 4, temperature=0.02)
    student = model.student.eval()
    order = torch.randperm(3 * count, generator=torch.Generator().manual_seed(0))
    found = model(
        student.preprocess([texts[row] for row in order]),
        teachers=[],
        keys=distinct(3 * count),
        group=torch.arange(count).repeat(3)[order],
        role=torch.arange(3).repeat_interleave(count)[order],
    )
    ours = trained_gradients(model, found["loss"])
    cached = CachedMultipleNegativesRankingLoss(student, scale=50.0, mini_batch_size=3)
    columns = [student.preprocess(texts[start : start + count]) for start in range(0, 3 * count, count)]
    expected = cached(columns, torch.empty(0))
    theirs = trained_gradients(model, expected)
    torch.testing.assert_close(found["loss"], expected, rtol=1e-5, atol=1e-6)
    assert len(ours) == len(theirs) > 10
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_routers_are_balanced_over_the_whole_batch(tiny_bert: Path, tmp_path: Path, sentences: list[str]) -> None:
    upcycle(tiny_bert, experts=4, noise=0.3).save(str(tmp_path / "mixture"), create_model_card=False)
    texts, pairs = [text[:200] for text in sentences[:12]], torch.arange(6).repeat(2)
    seen = []
    for size in (None, 4):
        model = distiller(tmp_path / "mixture", "mnrl", size, router_balance=3.0)
        features = model.student.eval().preprocess(texts)
        found = model(features, teachers=[], keys=distinct(12), group=pairs, role=torch.arange(12) // 6)
        seen.append((found["terms"], trained_gradients(model, found["loss"])))
    (whole, expected), (cached, gradient) = seen
    assert whole.keys() == cached.keys() == {"ranking", "router_balance"}
    assert whole["router_balance"] > 1.001, "with an even load there would be nothing to see"
    for name, value in whole.items():
        torch.testing.assert_close(cached[name], value, rtol=1e-5, atol=1e-6)
    for one, other in zip(gradient, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-5)


def test_methods_that_look_at_tokens_are_refused(tiny_bert: Path) -> None:
    with pytest.raises(DistilvecError, match="^training.mini_batch_size: emo .*gradient_accumulation_steps") as caught:
        distiller(tiny_bert, "emo", 4)
    assert caught.value.where == "training.mini_batch_size"
    assert "gradient_checkpointing" not in str(caught.value)  # refused itself
    assert distiller(tiny_bert, "simcse", 4).mini_batch_size == 4


def test_bags_of_static_students_are_refused(tiny_bert: Path) -> None:
    features = {"input_ids": torch.arange(7), "offsets": torch.tensor([0, 3])}
    with pytest.raises(DistilvecError, match=r"^training\.mini_batch_size: .*\(input_ids, offsets\)"):
        in_mini_batches(opened(tiny_bert)[1], features, 1)


def test_gradient_caching_is_refused_for_batch_norms() -> None:
    student = image_model(CifarResNet(depth=8, width=4))
    with pytest.raises(DistilvecError, match=r"^training\.mini_batch_size: .*batch norms"):
        Distiller(student, build_method("cosine", {}), Needs(), extras=Extras(mini_batch_size=2))
    assert Distiller(student, build_method("cosine", {}), Needs()).mini_batch_size is None
