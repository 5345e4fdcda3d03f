"""Prefixes: the same method on truncated students, averaged."""

from dataclasses import replace

import pytest
import torch
from tests.methods.baseline_cases import CLASSIFYING, KNOWN
from tests.methods.world import mixed, small_world, total, unbuilt
from torch import nn

from distilvec.errors import DistilvecError
from distilvec.methods.table import build_method

WIDTH, ITEMS = 8, 24


def test_terms_are_those_of_the_method_on_truncated_students(world, loss) -> None:
    method = world.method("talas", [4, 6, 4])
    torch.manual_seed(1)
    student, signals, batch = world.output(range(8), 2), world.signals(range(8)), world.batch(range(8))
    terms = method(student, signals, batch)
    assert set(terms) == {f"{term}@{dim}" for term in ("simcse", "tamd", "lasd") for dim in (4, 6, 12)}
    parts = []
    for dim, sub in zip((4, 6, 12), method.methods, strict=True):
        cut = replace(student, embedding=student.embedding[..., :dim], layers=student.layers[..., :dim])
        parts.append(loss(sub(cut, signals, batch)))
    torch.testing.assert_close(loss(terms), torch.stack(parts).mean())


def test_prefix_heads_are_ridge_maps_of_the_prefix(world) -> None:
    method = world.method("cosine", [4])
    assert [tuple(weight.shape) for weight in method.parameters()] == [(20, 4), (20, 12)]
    assert torch.equal(method.teacher_map().weight, world.method("cosine").teacher_map().weight)


def test_gradients_of_a_prefix_stay_inside_it(world, mean) -> None:
    method = world.method("cosine", [4])
    student = world.output(range(8))
    student.embedding.retain_grad()
    terms = method(student, world.signals(range(8)), world.batch(range(8)))
    mean(terms["cosine@4"]).backward()
    assert student.embedding.grad[..., :4].any()
    assert not student.embedding.grad[..., 4:].any()


@pytest.mark.parametrize(
    ("dims", "message"), [([12], r"toy: .*prefix 12 .*\b12\b"), ([0], r"\[0\] .*\b1\b"), ([], r"dims: .*\b1 item")]
)
def test_prefixes_out_of_range(world, dims, message) -> None:
    with pytest.raises(DistilvecError, match=message):
        world.method("cosine", dims)


@pytest.mark.parametrize("options", [{}, {"preset": "paper"}], ids=["sound", "paper"])
def test_the_head_of_distillmoe_is_one_and_its_vectors_are_cut(options) -> None:
    world, student = small_world(), nn.Sequential(nn.Identity())
    student.device = torch.device("cpu")
    method = world.method("distillmoe", dims=[4], width=16, alpha=0, **options).eval()
    prefix, full = method.methods
    method.attach(student)
    assert prefix.expert_head is None
    assert list(student)[-1] is full.expert_head
    assert full.expert_head.width == WIDTH
    output, signals, batch = world.output(range(8)), world.signals(range(8)), world.batch(range(8))
    mixed(full, output)
    terms = method(output, signals, batch)
    cut = replace(output, embedding=output.embedding[..., :4], tokens={k: v[..., :4] for k, v in output.tokens.items()})
    cut.extras = {**output.extras, "expert_outputs": output.extras["expert_outputs"][..., :4]}
    for name, term in prefix(cut, signals, batch).items():
        torch.testing.assert_close(terms[f"{name}@4"].values, term.values)
    assert set(terms) == {f"{name}@{dim}" for name in full(output, signals, batch) for dim in (4, WIDTH)}
    total(terms).backward()
    for parameter in (*method.parameters(), *full.expert_head.parameters()):
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


def test_the_maps_of_distillmoe_start_at_what_the_head_says_at_a_prefix() -> None:
    """No linear map of the cut expert fits the teacher better than the one that it starts with."""
    world = small_world()
    method = world.method("distillmoe", dims=[4], width=16, alpha=0, moe_weight=1).eval()
    prefix, full = method.methods
    world.encoder.eval()
    output, signals = world.output(range(ITEMS)), world.signals(range(ITEMS))
    mixed(full, output)
    ours = output.extras["expert_outputs"][0, :, 0, :4].detach()
    start = prefix.expert_losses[0].maps[0]["cosine"].weight

    def cost(weight: torch.Tensor) -> torch.Tensor:
        return (ours @ weight.T - signals[0].sentence).square().sum()

    best = torch.linalg.lstsq(ours, signals[0].sentence).solution.T
    assert cost(start) < 1.01 * cost(best) < 0.99 * cost(torch.zeros_like(best))


@pytest.mark.parametrize("name", ["sft", "uld", "multilevel_ot", "mined", "cdm"])
def test_a_method_that_no_prefix_changes_is_refused(name) -> None:
    method = unbuilt(name, {}, [2])
    with pytest.raises(DistilvecError, match=f"^student: matryoshka: {name} .*cosine or dskd"):
        method.needs(CLASSIFYING, [KNOWN])


def test_without_a_map_a_prefix_is_too_short() -> None:
    """Where student and teacher are equally wide, its prefixes are not."""
    world = small_world()
    alike = [replace(world.teachers[0], width=world.student.width)]
    assert build_method("cosine", {"map": False}).needs(world.student, alike).states
    with pytest.raises(DistilvecError, match="map"):
        unbuilt("cosine", {"map": False}, [4]).needs(world.student, alike)


def test_attention_alone_is_refused_and_what_a_prefix_changes_is_taken() -> None:
    world = small_world()
    attention = {"otis_weight": 0, "alpha": 0}
    with pytest.raises(DistilvecError, match="^toy: matryoshka: emo .*cosine or dskd"):
        unbuilt("emo", attention, [4]).needs(world.student, world.teachers)
    assert unbuilt("emo", {"alpha": 0}, [4]).needs(world.student, world.teachers).states
    for name, options in (("dskd", {}), ("mined", {"form": "embedding"}), ("cdm", {"form": "embedding"})):
        assert unbuilt(name, options, [2]).needs(CLASSIFYING, [KNOWN]).states


def test_stages_and_lookup_are_passed_on(world) -> None:
    method = world.method("jasper_stella", [4])
    assert not method.trains_student(0.1)
    assert method.trains_student(0.9)
    queued = world.method("distilcse", [4], queue=16)
    world.step(queued)
    other = world.method("distilcse", [4], queue=16)
    other.load_state_dict(queued.state_dict())
    asked = []

    def lookup(teacher: int, keys: torch.Tensor) -> torch.Tensor:
        asked.append((teacher, len(keys)))
        return world.vectors[0][: len(keys)]

    other.lookup = lookup
    world.step(other, range(8, 16))
    assert asked == [(0, 8), (0, 8)]
