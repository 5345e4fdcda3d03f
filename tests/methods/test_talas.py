"""The properties of TALAS that METHODS section 1 names."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from pydantic import ValidationError

from distilvec.errors import DistilvecError
from distilvec.functional import relation_gap
from distilvec.methods.base import Sample, WantedOfStudent
from distilvec.students.output import StudentInfo


def orthogonal(width: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.linalg.qr(torch.randn(width, width, generator=generator))[0]


def test_gradients_reach_every_block(world, loss) -> None:
    method = world.method("talas")
    loss(world.step(method)).backward()
    for block in world.encoder.blocks:
        assert block.weight.grad.abs().sum() > 0


def test_every_anchored_layer_has_a_map_of_its_own(world, loss) -> None:
    method = world.method("talas", anchored_layers=3)
    maps = list(method.parameters())
    assert len(maps) == 3
    assert len({weight.data_ptr() for weight in maps}) == 3
    loss(world.step(method)).backward()
    gradients = [weight.grad for weight in maps]
    assert not torch.allclose(gradients[0], gradients[1])
    assert method.teacher_map().weight is maps[-1]


def test_one_anchor_alone_is_the_cosine_method(world, loss) -> None:
    talas = world.method("talas", simcse_weight=0, lasd_weight=0, tamd_weight=1, anchored_layers=1)
    cosine = world.method("cosine")
    assert talas.needs(world.student, world.teachers) == cosine.needs(world.student, world.teachers)
    torch.testing.assert_close(talas.teacher_map().weight, cosine.teacher_map().weight)
    torch.testing.assert_close(loss(world.step(talas)), loss(world.step(cosine)))


def test_tamd_is_the_mean_over_layers_and_views(world, mean) -> None:
    method = world.method("talas", anchored_layers=2)
    torch.manual_seed(1)
    student, signals = world.output(range(8), 2), world.signals(range(8))
    found = method(student, signals, world.batch(range(8)))["tamd"]
    lower, upper = (weight.T for weight in method.parameters())
    expected = [
        1 - torch.cosine_similarity(student.layers[view, layer] @ weight, signals[0].sentence, dim=-1)
        for view in (0, 1)
        for layer, weight in ((2, lower), (3, upper))
    ]
    torch.testing.assert_close(mean(found), torch.stack(expected).mean())
    assert found.weight == 0.75


def test_lasd_is_the_mean_gap_of_neighbouring_blocks(world, mean) -> None:
    method = world.method("talas")
    torch.manual_seed(1)
    student = world.output(range(8), 2)
    found = method(student, world.signals(range(8)), world.batch(range(8)))["lasd"]
    gaps = [relation_gap(student.layers[:, layer + 1], student.layers[:, layer]) for layer in range(3)]
    torch.testing.assert_close(mean(found), torch.stack(gaps).mean())


def test_lasd_of_the_top_layers_and_from_the_embeddings(world, mean) -> None:
    torch.manual_seed(1)
    student, rest = world.output(range(8), 2), (world.signals(range(8)), world.batch(range(8)))
    layers = student.layers
    top = world.method("talas", layers=2)(student, *rest)["lasd"]
    torch.testing.assert_close(mean(top), relation_gap(layers[:, 3], layers[:, 2]).mean())
    code = world.method("talas", preset="code")(student, *rest)["lasd"]
    chain = [student.tokens[0][:, :, 0], *layers.unbind(1)]
    gaps = [relation_gap(upper[0], lower[0]) for lower, upper in pairwise(chain)]
    torch.testing.assert_close(mean(code), torch.stack(gaps).mean())


def test_lasd_is_zero_for_rotations_of_one_another(world, mean) -> None:
    student = world.output(range(8), 2)
    layers = torch.stack([student.embedding @ orthogonal(12, seed) * (seed + 1) for seed in range(4)], 1)
    rotated = replace(student, layers=layers, embedding=layers[:, -1])
    method = world.method("talas", guide="detached")
    lasd = method(rotated, world.signals(range(8)), world.batch(range(8)))["lasd"]
    assert mean(lasd).item() == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("guide", ["coupled", "detached"])
def test_the_guide_is_not_pulled_where_it_is_detached(world, mean, guide) -> None:
    method = world.method("talas", guide=guide)
    student = world.output(range(8), 2)
    layers = student.layers.detach().requires_grad_()
    embedding = student.embedding.detach().requires_grad_()
    lasd = method(replace(student, layers=layers, embedding=embedding), world.signals(range(8)), world.batch(range(8)))[
        "lasd"
    ]
    mean(lasd).backward()
    assert layers.grad[:, :3].abs().sum(dim=(0, 2, 3)).gt(0).all()
    if guide == "detached":
        assert embedding.grad is None or not embedding.grad.any()
    else:
        assert embedding.grad.any()


def test_terms_without_weight_are_not_computed(world) -> None:
    needs = world.method("talas", simcse_weight=0).needs(world.student, world.teachers)
    assert (needs.student, needs.coupled, needs.sentence) == (WantedOfStudent(layers=True), True, True)
    method = world.method("talas", tamd_weight=0)
    assert not method.needs(world.student, world.teachers).sentence
    assert set(world.step(method)) == {"simcse", "lasd"}
    assert list(method.parameters()) == []
    assert method.teacher_map() is None
    assert set(world.step(world.method("talas", simcse_weight=0, lasd_weight=0))) == {"tamd"}
    code = world.method("talas", preset="code").needs(world.student, world.teachers)
    assert code.student.tokens == (0,)
    assert world.method("talas", preset="code", lasd_weight=0).needs(world.student, world.teachers).student.tokens == ()


def test_a_dense_behind_the_pooling_may_change_the_width(world, loss) -> None:
    """The top anchor and the top relations are the final embedding's, whatever its width."""
    student = replace(world.output(range(8), 2), embedding=torch.randn(2, 8, 7, requires_grad=True))
    method = world.method("talas")
    info = StudentInfo("dense", 7, 4, 12)
    sample_student = replace(world.output(range(64)), embedding=torch.randn(1, 64, 7))
    method.build(info, world.teachers, Sample(sample_student, world.signals(range(64))))
    assert [tuple(weight.shape) for weight in method.parameters()] == [(20, 12), (20, 7)]
    loss(method(student, world.signals(range(8)), world.batch(range(8)))).backward()
    assert student.embedding.grad.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"anchored_layers": 5}, r"^toy: anchored_layers is 5, .*\b4\b.*method\.anchored_layers to 4"),
        ({"layers": 6}, r"^toy: LASD over 6 .*\b4\b.*lasd_weight: 0"),
    ],
)
def test_more_layers_than_there_are(world, options, message) -> None:
    with pytest.raises(DistilvecError, match=message):
        world.method("talas", **options)


def test_options_that_contradict_each_other() -> None:
    from distilvec.methods.talas import TALASOptions

    with pytest.raises(ValidationError, match="simcse_weight, tamd_weight and lasd_weight"):
        TALASOptions(simcse_weight=0, tamd_weight=0, lasd_weight=0)
    with pytest.raises(ValidationError, match="layers: .*preset: code"):
        TALASOptions(layers=2, preset="code")


def test_presets_are_the_papers_and_the_codes_settings() -> None:
    from distilvec.methods.talas import TALASOptions

    sound, code = TALASOptions(), TALASOptions(preset="code")
    assert (sound.simcse_weight, sound.tamd_weight, sound.lasd_weight) == (0.001, 0.75, 1.0)
    assert (sound.temperature, sound.fixed.from_embeddings, sound.fixed.average_views) == (0.05, False, True)
    assert (code.temperature, code.fixed.from_embeddings, code.fixed.average_views) == (0.1, True, False)
    assert TALASOptions(preset="code", temperature=0.2).temperature == 0.2
    assert not TALASOptions(preset="paper").fixed.from_embeddings
