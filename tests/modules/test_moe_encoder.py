"""The encoder's arithmetic against plain loops, its dispatch, and its place among transformers' models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.modules import nomic_moe
from torch import Tensor
from torch.nn import functional

from distilvec.functional import spherical_aggregate
from distilvec.modules.moe_encoder import (
    MoeEncoder,
    MoeEncoderConfig,
    rotary_tables,
    rotate,
)
from distilvec.modules.moe_experts import ExpertLayers, MixtureOfExperts
from distilvec.modules.moe_folder import open_moe
from distilvec.modules.sphere import AGGREGATIONS, aggregate
from distilvec.students import StudentTap


def small(**changes: Any) -> MoeEncoderConfig:
    sizes: dict[str, Any] = {
        "vocab_size": 50,
        "hidden_size": 16,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "num_experts": 4,
        "initializer_range": 0.3,
    }
    return MoeEncoderConfig(**{**sizes, **changes})


def mixture(seed: int = 0, **changes: Any) -> MixtureOfExperts:
    torch.manual_seed(seed)
    layer = MixtureOfExperts(small(**changes)).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
    return layer


def by_hand(layer: MixtureOfExperts, tokens: Tensor) -> Tensor:
    w = {name: tensor.double() for name, tensor in layer.state_dict().items()}
    return torch.stack([nomic_moe.mixture(x.double(), w, "", layer.config.experts_per_token) for x in tokens])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nomic_moe.write(tmp_path_factory.mktemp("moe") / "published")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> MoeEncoder:
    return open_moe(folder, device="cpu")[0].model.eval()  # type: ignore[union-attr]


def test_parameters_of_the_published_model() -> None:
    with torch.device("meta"):
        model = MoeEncoder(MoeEncoderConfig())
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert sum(math.prod(shape) for shape in shapes.values()) == 475_292_928
    assert len(shapes) == 148
    idle = 6 * 6 * 2 * 3072 * 768  # six of eight experts in six layers
    assert 475_292_928 - idle == 305_423_616
    assert shapes["encoder.layers.11.mlp.experts.mlp.w2"] == (24576, 768)


def test_the_whole_encoder_is_what_loops_over_tokens_heads_and_experts_give(encoder: MoeEncoder) -> None:
    ids = [0, 17, 233, 5, 5, 40, 2]
    with torch.no_grad():
        found = encoder.double()(input_ids=torch.tensor([ids])).last_hidden_state[0]
    encoder.float()
    expected = nomic_moe.states(nomic_moe.weights(nomic_moe.configuration()), ids)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("top_k", [1, 2, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_a_mixture_is_its_experts_one_by_one(top_k: int, bias: bool) -> None:
    layer = mixture(experts_per_token=top_k, expert_bias=bias)
    states = torch.randn(2, 5, 16).double()
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    found = layer(states, real)
    expected = by_hand(layer, states.flatten(0, 1)).view(2, 5, 16)
    torch.testing.assert_close(found[real], expected[real], atol=1e-10, rtol=0)
    assert torch.equal(found[~real], layer.experts.bias.expand(2, 16))  # no expert worked for padding


@pytest.mark.parametrize("tokens", [0, 1])
def test_hardly_any_tokens(tokens: int) -> None:
    layer, states = mixture(), torch.randn(1, 3, 16).double().requires_grad_()
    real = torch.tensor([[True] * tokens + [False] * (3 - tokens)])
    layer(states, real).sum().backward()
    assert layer.experts.mlp.w1.grad is not None  # also of experts without tokens, or data parallel training hangs
    assert torch.isfinite(states.grad).all()
    assert bool(layer.experts.mlp.w1.grad.any()) == bool(tokens)


def test_linear_is_bit_for_bit_the_plain_sum_over_experts() -> None:
    layer = mixture().float()
    tokens = torch.randn(64, 16)
    with torch.no_grad():
        best, experts = layer.router(tokens).topk(2)
        total = torch.zeros_like(tokens)
        for e in range(4):
            rows, slot = (experts == e).nonzero(as_tuple=True)
            first, second = (w.view(4, 24, 16)[e] for w in (layer.experts.mlp.w1, layer.experts.mlp.w2))
            total.index_add_(0, rows, (functional.gelu(tokens[rows] @ first.mT) @ second) * best[rows, slot, None])
        assert torch.equal(layer(tokens[None], None)[0], total + layer.experts.bias)


def test_gradients_are_those_of_all_experts_on_all_tokens() -> None:
    layer = mixture(experts_per_token=3, expert_bias=True)
    states, mlp = torch.randn(1, 9, 16).double(), layer.experts.mlp
    found = torch.autograd.grad(layer(states, None).square().sum(), list(layer.parameters()))
    first = functional.gelu(torch.einsum("td,efd->tef", states[0], mlp.w1.view(4, 24, 16)) + mlp.b1.view(4, 24))
    every = torch.einsum("tef,efd->ted", first, mlp.w2.view(4, 24, 16))
    probabilities = layer.router(states[0])
    kept = probabilities.where(probabilities >= probabilities.topk(3).values[:, -1:], 0)
    expected = (kept.unsqueeze(-1) * every).sum(1) + layer.experts.bias
    torch.testing.assert_close(found, torch.autograd.grad(expected.square().sum(), list(layer.parameters())))


@pytest.mark.skipif(not hasattr(functional, "grouped_mm"), reason="this torch has no grouped product")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_grouped_products_are_the_loop(bias: bool, half: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = mixture(expert_bias=bias).float()
    real = torch.tensor([[True] * 8, [True] * 3 + [False] * 5])
    results = []
    for grouped in (False, True):
        monkeypatch.setattr("distilvec.modules.moe_experts._has_grouped_product", lambda *_, grouped=grouped: grouped)
        states = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(1)).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            output = layer(states, real)
        parts = [states, *layer.parameters()]
        results.append([output, *torch.autograd.grad(output.square().sum(), parts)])
    for loop, grouped_one in zip(*results, strict=True):
        loose = 0.02 * loop.abs().max().item() if half else 1e-4
        torch.testing.assert_close(grouped_one, loop, atol=loose, rtol=1e-4)


def test_rotation() -> None:
    cosines, sines = rotary_tables(6, 8, 100.0, torch.device("cpu"))
    vectors = torch.randn(6, 8)
    turned = rotate(vectors, cosines, sines)
    expected = torch.stack([nomic_moe.turn(row, place, 100.0) for place, row in enumerate(vectors)])
    torch.testing.assert_close(turned, expected)
    assert torch.equal(turned[0], vectors[0])
    torch.testing.assert_close(turned.norm(dim=-1), vectors.norm(dim=-1))
    query, key = (rotate(torch.randn(8).expand(6, 8), cosines, sines) for _ in range(2))
    scores = query @ key.mT  # depend on the distance alone
    torch.testing.assert_close(scores.diagonal(1), scores[0, 1].expand(5))
    assert abs(scores[0, 1] - scores[1, 0]) > 1e-3


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("changes", [{}, {"positions": "absolute"}, {"positions": "absolute", "position_padding": 1}])
def test_padding_and_neighbours_do_not_matter(attention: str, changes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = MoeEncoder(small(**changes)).eval()
    model.set_attn_implementation(attention)
    ids, other = torch.randint(3, 50, (5,)), torch.randint(3, 50, (9,))
    with torch.no_grad():
        alone = model(input_ids=ids[None]).last_hidden_state[0]
        batch = torch.stack([torch.cat([ids, torch.ones(4, dtype=torch.long)]), other])
        mask = torch.tensor([[1] * 5 + [0] * 4, [1] * 9])
        together = model(input_ids=batch, attention_mask=mask).last_hidden_state[0, :5]
        shuffled = model(input_ids=ids.flip(0)[None]).last_hidden_state[0].flip(0)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    assert (shuffled - alone).abs().max() > 1e-2  # positions are seen


def test_eager_and_sdpa_agree_and_states_are_handed_out(encoder: MoeEncoder) -> None:
    ids, mask = torch.randint(3, 400, (2, 6)), torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    with torch.no_grad():
        fast = encoder(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        encoder.set_attn_implementation("eager")
        slow = encoder(input_ids=ids, attention_mask=mask)
        encoder.set_attn_implementation("sdpa")
        by_vector = encoder(inputs_embeds=encoder.get_input_embeddings()(ids), attention_mask=mask, return_dict=False)
    torch.testing.assert_close(fast.last_hidden_state[mask.bool()], slow.last_hidden_state[mask.bool()])
    assert len(fast.hidden_states) == nomic_moe.LAYERS + 1
    assert torch.equal(fast.hidden_states[-1], by_vector[0])


def test_checkpointed_and_half_precision_training(encoder: MoeEncoder) -> None:
    ids = torch.randint(3, 400, (2, 6))
    gradients = []
    encoder.config.aggregation = "sba"
    for mode in ("plain", "checkpointed", "half"):
        if mode == "checkpointed":
            encoder.gradient_checkpointing_enable({"use_reentrant": False})
            encoder.train().emb_drop.p = 0.0
        encoder.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "half"):
            encoder(input_ids=ids).last_hidden_state[..., 0].sum().backward()
        gradients.append(encoder.encoder.layers[1].mlp.experts.mlp.w1.grad.clone())
    encoder.gradient_checkpointing_disable()
    encoder.eval().config.aggregation = "linear"
    torch.testing.assert_close(gradients[0], gradients[1])
    assert functional.cosine_similarity(*(g.flatten() for g in gradients[1:]), dim=0) > 0.98


def test_every_second_block_is_a_mixture_and_watching_works(folder: Path) -> None:
    student = open_moe(folder, device="cpu").eval()
    kinds = [isinstance(block.mlp, MixtureOfExperts) for block in student[0].model.encoder.layers]
    assert kinds == [False, True, False, True]
    features = student.preprocess(nomic_moe.TEXTS)
    tap = StudentTap(student)
    assert tap.info.layers == nomic_moe.LAYERS
    output = tap(features, views=2, layers=True, tokens=(0, 4), attention=(1, 2))
    vectors = torch.from_numpy(student.encode(nomic_moe.TEXTS))
    torch.testing.assert_close(functional.normalize(output.layers[0, -1], dim=-1), vectors)
    sums = output.attention[2][0].sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))
    assert output.attention[2][0][~output.mask[:, None].expand_as(output.attention[2][0])].abs().max() == 0


@pytest.mark.parametrize("mode", AGGREGATIONS[1:])
def test_half_precision_is_aggregated_in_single(mode: str) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors, weights = torch.randn(40, 2, 8, generator=generator), torch.rand(40, 2, generator=generator)
    half = aggregate(vectors.bfloat16(), weights.bfloat16(), mode)
    assert half.dtype == torch.float32


@pytest.mark.parametrize("mode", AGGREGATIONS[1:])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_mixture_aggregates_its_experts_outputs(mode: Any, normalize: bool) -> None:
    layer = mixture(aggregation=mode, normalize_weights=normalize, experts_per_token=3)
    seen = []
    layer.watchers.append(lambda *found: seen.append((*found[:3], found[3]())))
    states, real = torch.randn(2, 3, 16).double(), torch.tensor([[True] * 3, [True, False, False]])
    found = layer(states, real)
    _, chosen, weights, outputs = seen[0]
    expected = spherical_aggregate(outputs, layer.router(states).gather(-1, chosen % 4), mode, normalize)
    torch.testing.assert_close(found[real], (expected + layer.experts.bias)[real])
    assert normalize == torch.allclose(weights.sum(-1), torch.ones(2, 3).double())
    assert not outputs[~real].any()


@pytest.mark.parametrize(
    "changes",
    [
        {"aggregation": "mean"},
        {"positions": "relative"},
        {"num_attention_heads": 3},
        {"experts_per_token": 5},
        {"layer_kinds": ["dense", "mixture"]},
        {"layer_kinds": ["dense", "sparse", "dense", "mixture"]},
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        small(**changes)


def test_fresh_weights_are_drawn() -> None:
    model = MoeEncoder(small(expert_bias=True, hidden_size=64))
    experts = next(module for module in model.modules() if isinstance(module, ExpertLayers))
    for weight in (experts.w1, experts.w2):
        assert weight.std().item() == pytest.approx(0.3, rel=0.05)
    assert not experts.b1.any()
