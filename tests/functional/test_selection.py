from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.functional.cases import FEW, SEEDS

from distilvec.functional import smallest_mass_set, top_tokens


@FEW
@given(
    seed=SEEDS,
    width=st.integers(1, 7),
    threshold=st.sampled_from([0.3, 0.5, 0.9, 0.95]),
    padded=st.booleans(),
)
def test_no_smaller_set_reaches_the_threshold(seed: int, width: int, threshold: float, padded: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(width, generator=generator) < 0.7 if padded else torch.ones(width, dtype=torch.bool)
    probabilities = (2 * torch.randn(width, generator=generator).double()).masked_fill(~mask, -torch.inf).softmax(-1)
    probabilities = probabilities.nan_to_num(0.5)  # what lies under the mask must not matter
    chosen = smallest_mass_set(probabilities, threshold, mask if padded else None)
    assert not (chosen & ~mask).any()
    real = mask.nonzero().flatten().tolist()
    if not real:
        assert not chosen.any()
        return
    assert probabilities[chosen].sum() >= threshold - 1e-12
    size = int(chosen.sum())
    smaller = itertools.combinations(real, size - 1)
    assert all(probabilities[list(others)].sum() < threshold for others in smaller)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("probabilities", "threshold", "expected"),
    [
        ([0.7, 0.2, 0.1], 0.9, [1, 1, 0]),
        ([0.4, 0.3, 0.2, 0.1], 0.9, [1, 1, 1, 0]),
        ([0.1, 0.2, 0.3, 0.4], 0.7, [0, 0, 1, 1]),
        ([0.25, 0.25, 0.25, 0.25], 0.5, [1, 1, 0, 0]),
        ([1.0, 0.0], 1.0, [1, 0]),
        ([0.2, 0.2], 0.9, [1, 1]),
    ],
)
def test_the_threshold_is_reached_up_to_rounding(
    probabilities: list[float], threshold: float, expected: list[int], dtype: torch.dtype
) -> None:
    assert smallest_mass_set(torch.tensor(probabilities, dtype=dtype), threshold).int().tolist() == expected


def test_k_max_keeps_the_likeliest() -> None:
    probabilities = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.97, 0.01, 0.01, 0.01]])
    chosen = smallest_mass_set(probabilities, 0.95, k_max=2)
    assert chosen.int().tolist() == [[0, 0, 1, 1], [1, 0, 0, 0]]
    mask = torch.tensor([[True, True, False, False], [False] * 4])
    assert smallest_mass_set(probabilities, 0.95, mask, k_max=3).int().tolist() == [
        [1, 1, 0, 0],
        [0, 0, 0, 0],
    ]


@FEW
@given(
    seed=SEEDS,
    width=st.integers(1, 12),
    share=st.sampled_from([0.0, 1 / 3, 0.5, 1.0]),
    minimum=st.integers(0, 5),
)
def test_top_tokens_agree_with_sorting_a_list(seed: int, width: int, share: float, minimum: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 4, (3, width), generator=generator).float()
    mask = torch.rand(3, width, generator=generator) < 0.7
    chosen = top_tokens(scores, mask, share, minimum)
    for row in range(3):
        real = mask[row].nonzero().flatten().tolist()
        wanted = min(max(minimum, math.floor(share * len(real))), len(real))
        best = sorted(real, key=lambda j: (-scores[row, j].item(), j))[:wanted]
        assert chosen[row].nonzero().flatten().tolist() == sorted(best)


def test_top_tokens_ignore_what_is_masked_and_take_worthless_ones_where_needed() -> None:
    scores = torch.tensor([torch.inf, -torch.inf, torch.nan, 1.0, -torch.inf])
    mask = torch.tensor([False, True, False, True, True])
    assert top_tokens(scores, mask, 0.0, 3).tolist() == mask.tolist()
    assert top_tokens(scores, mask, 0.0, 1).int().tolist() == [0, 0, 0, 1, 0]
    assert not top_tokens(scores, torch.zeros(5, dtype=torch.bool), 1.0, 4).any()
