from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.functional.cases import FEW, SEEDS

from distilvec.functional import info_nce


def rows(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@FEW
@given(seed=SEEDS, scale=st.sampled_from([1.0, 20.0]), negatives=st.integers(0, 2))
def test_agrees_with_sentence_transformers(seed: int, scale: float, negatives: int) -> None:
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    queries, *keys = (rows(seed + i, 4, 6).float() for i in range(2 + negatives))
    reference = MultipleNegativesRankingLoss(torch.nn.Identity(), scale=scale)  # type: ignore[arg-type]
    expected = reference.compute_loss_from_embeddings([queries, *keys], torch.empty(0))
    found = info_nce(queries, torch.cat(keys), 1 / scale)
    assert found.shape == (4,)
    assert torch.allclose(found.mean(), expected, rtol=1e-4, atol=1e-5)


@FEW
@given(seed=SEEDS)
def test_targets_and_exclusions_agree_with_a_plain_sum(seed: int) -> None:
    queries, keys = rows(seed, 3, 4), rows(seed + 1, 5, 4)
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(5, (3,), generator=generator)
    exclude = torch.rand(3, 5, generator=generator) < 0.5
    found = info_nce(queries, keys, 0.2, targets, exclude)
    for i in range(3):
        score = [math.exp(torch.cosine_similarity(queries[i], keys[j], dim=0).item() / 0.2) for j in range(5)]
        own = int(targets[i])
        total = sum(score[j] for j in range(5) if j == own or not exclude[i, j])
        assert found[i].item() == pytest.approx(-math.log(score[own] / total), abs=1e-9)


@pytest.mark.parametrize("count", [2, 8])
@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_closed_forms(count: int, temperature: float) -> None:
    unit = torch.eye(count, dtype=torch.float64)
    orthonormal = math.log1p((count - 1) * math.exp(-1 / temperature))
    assert torch.allclose(info_nce(unit, unit, temperature), torch.full((count,), orthonormal).double())
    same = torch.ones(count, 3)
    assert torch.allclose(info_nce(same, same, temperature), torch.full((count,), math.log(count)))
    assert info_nce(unit[:1], unit[:1], temperature).tolist() == [0]


def test_an_excluded_key_has_no_effect_on_value_and_gradient() -> None:
    queries, keys = rows(0, 3, 4).requires_grad_(), rows(1, 4, 4).requires_grad_()
    exclude = torch.zeros(3, 4, dtype=torch.bool)
    exclude[:, 3] = True
    loss = info_nce(queries, keys, 0.1, exclude=exclude).sum()
    with_it = torch.autograd.grad(loss, (queries, keys))
    changed = keys.detach().clone()
    changed[3] = 7 * keys[3].detach().flip(0)
    assert torch.equal(info_nce(queries, changed, 0.1, exclude=exclude).sum(), loss)
    assert not with_it[1][3].any()
    without = torch.autograd.grad(info_nce(queries, keys[:3], 0.1).sum(), (queries, keys))
    assert torch.allclose(with_it[0], without[0]) and torch.allclose(with_it[1], without[1])


def test_all_excluded_and_zero_vectors_are_finite() -> None:
    queries, keys = torch.zeros(3, 4, requires_grad=True), torch.ones(3, 4, requires_grad=True)
    loss = info_nce(queries, keys, 0.05, exclude=torch.ones(3, 3, dtype=torch.bool))
    assert loss.tolist() == [0, 0, 0]
    (loss.sum() + info_nce(queries, keys, 0.05).sum()).backward()
    assert queries.grad is not None and keys.grad is not None
    assert not queries.grad.any() and not keys.grad.any()


@FEW
@given(seed=SEEDS, scale=st.floats(1e-3, 1e3))
def test_lengths_and_the_order_of_negatives_do_not_matter(seed: int, scale: float) -> None:
    queries, keys = rows(seed, 4, 3), rows(seed + 1, 4, 3)
    order = torch.randperm(4, generator=torch.Generator().manual_seed(seed))
    expected = info_nce(queries, keys, 0.1)
    assert torch.allclose(info_nce(scale * queries, keys / scale, 0.1), expected)
    assert torch.allclose(info_nce(queries, keys[order], 0.1, targets=order.argsort()), expected)
