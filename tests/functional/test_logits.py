from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.functional.cases import FEW, SEEDS

from distilvec.functional import soft_cross_entropy


def logits(seed: int) -> torch.Tensor:
    return 3 * torch.randn(4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@FEW
@given(seed=SEEDS, temperature=st.sampled_from([0.5, 1.0, 4.0]))
def test_is_the_divergence_plus_the_teachers_entropy(seed: int, temperature: float) -> None:
    student, teacher = logits(seed), logits(seed + 1)
    wanted = (teacher / temperature).softmax(-1)
    divergence = torch.nn.functional.kl_div((student / temperature).log_softmax(-1), wanted, reduction="none").sum(-1)
    entropy = torch.distributions.Categorical(probs=wanted).entropy()
    found = soft_cross_entropy(student, teacher, temperature)
    assert torch.allclose(found, divergence + entropy)
    assert torch.allclose(soft_cross_entropy(teacher + 7, teacher, temperature), entropy)
    assert (found >= entropy - 1e-12).all()


def test_a_certain_teacher_is_a_label() -> None:
    student, labels = logits(0), torch.tensor([0, 3, 2, 4])
    certain = 1e4 * torch.nn.functional.one_hot(labels, 5).double()
    expected = torch.nn.functional.cross_entropy(student, labels, reduction="none")
    assert torch.allclose(soft_cross_entropy(student, certain, 1.0), expected)


def test_one_class_and_equal_logits() -> None:
    assert soft_cross_entropy(torch.ones(2, 1), torch.zeros(2, 1), 2.0).tolist() == [0, 0]
    assert soft_cross_entropy(torch.zeros(1, 8), torch.zeros(1, 8), 2.0).item() == pytest.approx(math.log(8))
