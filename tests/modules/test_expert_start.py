"""Where the mixture of experts starts: as the vector, with experts at right angles."""

from __future__ import annotations

import math

import pytest
import torch

from distilvec.modules.expert_head import ExpertHead
from distilvec.modules.expert_start import orthogonal_family, start_as_identity


@pytest.mark.parametrize("gate", ["linear", "mlp"])
@pytest.mark.parametrize(("experts", "hidden"), [(1, 40), (2, 40), (3, 64), (3, 26), (6, 8), (9, 40)])
def test_the_head_can_start_as_the_identity(gate: str, experts: int, hidden: int) -> None:
    """The mixture is the vector, experts are orthogonal, and everything that takes part learns."""
    torch.manual_seed(0)
    vectors = torch.randn(50, 17) * torch.linspace(3, 0.5, 17) + 1
    head = ExpertHead(17, experts=experts, hidden=hidden, gate=gate).eval()
    start_as_identity(head, vectors)
    features = head({"sentence_embedding": vectors})
    torch.testing.assert_close(features["sentence_embedding"], vectors, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(features["gate"], torch.full((50, experts), 1 / experts))
    outputs = features["expert_outputs"]
    products = outputs @ outputs.mT
    assert (products - torch.diag_embed(products.diagonal(dim1=-2, dim2=-1))).abs().max() < 2e-3
    lengths = outputs.square().sum(-1).mean(0)
    # Narrow heads deal the lesser axes out in turn; a head that has room gives each expert everything.
    assert lengths.min() > (0.9 if hidden > 30 else 0.05) * lengths.max()
    (features["sentence_embedding"] * torch.randn(50, 17)).sum().backward()
    learning = [head.first.weight, head.second, head.bias]
    if experts > 1:
        learning += list(head.router.parameters())[-2:]
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in learning)


def test_experts_of_two_texts_are_as_similar_as_the_texts() -> None:
    torch.manual_seed(0)
    vectors = torch.randn(20, 16)
    head = ExpertHead(16, experts=3, hidden=64).eval()
    start_as_identity(head, vectors)
    outputs = head({"sentence_embedding": vectors})["expert_outputs"]
    for expert in range(3):
        own = outputs[:, expert]
        torch.testing.assert_close(own @ own.T, 3 * vectors @ vectors.T, rtol=1e-4, atol=1e-3)


def test_a_narrow_head_starts_with_the_leading_axes() -> None:
    torch.manual_seed(0)
    axes = torch.linalg.qr(torch.randn(12, 12))[0]
    vectors = torch.randn(200, 12) * torch.tensor([9.0] * 6 + [0.01] * 6) @ axes.T
    head = ExpertHead(12, experts=3, hidden=4).eval()  # two axes each
    start_as_identity(head, vectors)
    torch.testing.assert_close(head({"sentence_embedding": vectors})["sentence_embedding"], vectors, rtol=0, atol=0.1)


@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 2), (3, 4), (4, 4), (6, 8), (8, 8), (9, 16), (11, 64)])
def test_a_family_turns_any_vector_into_orthogonal_ones(count: int, size: int) -> None:
    family = orthogonal_family(count)
    assert family.shape == (count, size, size)
    torch.testing.assert_close(family[0], torch.eye(size, dtype=torch.float64))
    turned = family @ torch.randn(size, 5, dtype=torch.float64)
    products = torch.einsum("ixn,jxn->nij", turned, turned)
    lengths = products.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(products, torch.diag_embed(lengths))
    torch.testing.assert_close(lengths, lengths[:, :1].expand_as(lengths))
    whole = family.sum(0) / math.sqrt(count)
    torch.testing.assert_close(whole.T @ whole, torch.eye(size, dtype=torch.float64))
