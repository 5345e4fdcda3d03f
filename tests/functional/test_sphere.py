from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.functional.cases import FEW, SEEDS
from torch.autograd import gradcheck

from distilvec.errors import DistilvecError
from distilvec.functional import spherical_aggregate

MODES = ("linear", "sba", "norm_free", "unit", "nlerp")
CURVED = MODES[1:]


def experts(seed: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors at most about 100 degrees apart, and weights that do not sum to 1."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(shape, generator=generator, dtype=torch.float64)
    vectors = vectors + 1.5 * torch.randn((*shape[:-2], 1, shape[-1]), generator=generator, dtype=torch.float64)
    weights = 0.05 + torch.rand(shape[:-1], generator=generator, dtype=torch.float64)
    return vectors, weights


def radius(vectors: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return (weights * vectors.norm(dim=-1)).sum(-1)


def at_angle(degrees: float, lengths: tuple[float, float] = (1.5, 0.7), width: int = 16) -> torch.Tensor:
    frame = torch.linalg.qr(torch.randn(width, 2, generator=torch.Generator().manual_seed(1)).double()).Q.mT
    angle = math.radians(degrees)
    second = math.cos(angle) * frame[0] + math.sin(angle) * frame[1]
    return torch.stack([lengths[0] * frame[0], lengths[1] * second])


def slerp(vectors: torch.Tensor, weights: torch.Tensor, by_norm: bool = True) -> torch.Tensor:
    """Two vectors: the textbook formula, with the angle from the vectors themselves."""
    lengths = vectors.norm(dim=-1)
    first, second = vectors / lengths[:, None]
    angle = 2 * torch.atan2((first - second).norm(), (first + second).norm())
    pulls = weights * lengths if by_norm else weights
    t = pulls[1] / pulls.sum()
    direction = (((1 - t) * angle).sin() * first + (t * angle).sin() * second) / angle.sin()
    return (weights * lengths).sum() * direction


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_linear_is_the_weighted_sum_bit_for_bit(dtype: torch.dtype, count: int) -> None:
    vectors, weights = (x.to(dtype) for x in experts(0, 50, count, 37))
    expected = (vectors * weights.unsqueeze(-1)).sum(-2)
    assert torch.equal(spherical_aggregate(vectors, weights, "linear"), expected)
    if count == 2:  # as a block adds its experts up one after the other
        one_by_one = torch.zeros(50, 37, dtype=dtype)
        for k in (1, 0):
            one_by_one.index_add_(0, torch.arange(50), vectors[:, k] * weights[:, k, None])
        assert torch.equal(spherical_aggregate(vectors, weights, "linear"), one_by_one)


@FEW
@given(seed=SEEDS, count=st.integers(1, 6), mode=st.sampled_from(["sba", "norm_free", "nlerp", "unit"]))
def test_the_length_is_the_mean_length(seed: int, count: int, mode: str) -> None:
    vectors, weights = experts(seed, 4, count, 8)
    expected = torch.ones(4).double() if mode == "unit" else radius(vectors, weights)
    assert torch.allclose(spherical_aggregate(vectors, weights, mode).norm(dim=-1), expected)


@FEW
@given(seed=SEEDS)
def test_two_experts_are_slerped(seed: int) -> None:
    vectors, weights = experts(seed, 2, 5)
    assert torch.allclose(spherical_aggregate(vectors, weights, "sba"), slerp(vectors, weights))
    assert torch.allclose(spherical_aggregate(vectors, weights, "norm_free"), slerp(vectors, weights, False))
    unit = spherical_aggregate(vectors, weights, "unit")
    assert torch.allclose(unit, slerp(vectors, weights) / radius(vectors, weights))


@FEW
@given(seed=SEEDS, mode=st.sampled_from(["sba", "norm_free", "unit"]), share=st.floats(0.1, 0.9))
def test_the_karcher_mean_of_two_directions_is_slerp(seed: int, mode: str, share: float) -> None:
    vectors, weights = experts(seed, 2, 5)
    split = torch.stack([vectors[0], vectors[1], vectors[0]])
    parts = torch.stack([share * weights[0], weights[1], (1 - share) * weights[0]])
    expected = spherical_aggregate(vectors, weights, mode)
    assert torch.allclose(spherical_aggregate(split, parts, mode), expected, rtol=1e-5, atol=1e-5)
    idle = torch.cat([weights, torch.zeros(1).double()])
    third = torch.cat([vectors, vectors.sum(0, keepdim=True)])
    assert torch.allclose(spherical_aggregate(third, idle, mode), expected, rtol=1e-5, atol=1e-5)


@FEW
@given(seed=SEEDS, count=st.integers(3, 6))
def test_the_karcher_mean_has_no_pull_left(seed: int, count: int) -> None:
    vectors, weights = experts(seed, count, 8)
    vectors = vectors + 3 * vectors.mean(0)  # within a hemisphere, where the mean is unique
    mean = spherical_aggregate(vectors, weights, "unit")
    units = vectors / vectors.norm(dim=-1, keepdim=True)
    cosines = (units @ mean).clamp(-1, 1)
    angles = cosines.arccos()
    pulls = weights * vectors.norm(dim=-1) * angles / angles.sin()
    pull = (pulls[:, None] * (units - cosines[:, None] * mean)).sum(0) / pulls.sum()
    assert pull.norm() < 1e-4


@FEW
@given(seed=SEEDS, count=st.integers(1, 5), mode=st.sampled_from(MODES), scale=st.floats(1e-3, 1e3))
def test_turns_and_grows_with_its_inputs_and_forgets_their_order(
    seed: int, count: int, mode: str, scale: float
) -> None:
    vectors, weights = experts(seed, count, 6)
    generator = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=generator).double()).Q
    result = spherical_aggregate(vectors, weights, mode)
    grown = result if mode == "unit" else scale * result
    assert torch.allclose(
        spherical_aggregate(scale * vectors @ turn, weights, mode), grown @ turn, rtol=1e-5, atol=1e-8
    )
    order = torch.randperm(count, generator=generator)
    assert torch.allclose(spherical_aggregate(vectors[order], weights[order], mode), result, rtol=1e-5, atol=1e-8)


@FEW
@given(seed=SEEDS, mode=st.sampled_from(MODES))
def test_one_expert_is_scaled_by_its_weight(seed: int, mode: str) -> None:
    vectors, weights = experts(seed, 1, 6)
    expected = vectors[0] / vectors[0].norm() if mode == "unit" else weights[0] * vectors[0]
    assert torch.allclose(spherical_aggregate(vectors, weights, mode), expected)
    twice, halves = vectors.expand(3, 6), weights.expand(3) / 3
    assert torch.allclose(spherical_aggregate(twice, halves, mode), expected)


@FEW
@given(seed=SEEDS, count=st.integers(2, 4))
def test_nlerp_has_the_direction_of_linear(seed: int, count: int) -> None:
    vectors, weights = experts(seed, count, 6)
    cosine = torch.cosine_similarity(
        spherical_aggregate(vectors, weights, "nlerp"), spherical_aggregate(vectors, weights, "linear"), dim=0
    )
    assert cosine.item() == pytest.approx(1)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_normalizing_divides_by_the_mass(mode: str, count: int) -> None:
    vectors, weights = experts(3, count, 6)
    expected = spherical_aggregate(vectors, weights / weights.sum(), mode)
    assert torch.allclose(spherical_aggregate(vectors, weights, mode, normalize_weights=True), expected)
    mass = 1 if mode == "unit" else weights.sum()
    assert torch.allclose(spherical_aggregate(vectors, weights, mode), mass * expected)


@pytest.mark.parametrize("degrees", [0, 1e-4, 0.1, 5, 18.1, 18.3, 90, 150, 170, 179, 179.9, 179.94])
def test_slerp_at_every_angle_in_both_precisions(degrees: float) -> None:
    vectors, weights = at_angle(degrees), torch.tensor([0.4, 0.3]).double()
    expected = slerp(vectors, weights) if degrees else (weights[:, None] * vectors).sum(0)
    assert torch.allclose(spherical_aggregate(vectors, weights), expected, atol=1e-8)
    distance_from_opposite = max(math.pi - math.radians(degrees), 1e-3)
    near = 1e-6 + 1e-6 / distance_from_opposite**2
    single = spherical_aggregate(vectors.float(), weights.float()).double()
    assert (single - expected).norm() < near
    with torch.no_grad():  # another formula: nothing is differentiated
        assert torch.allclose(spherical_aggregate(vectors, weights), expected, atol=1e-8)
        single = spherical_aggregate(vectors.float(), weights.float()).double()
    assert (single - expected).norm() < near


@pytest.mark.parametrize("mode", CURVED)
@pytest.mark.parametrize(
    ("count", "degrees"),
    [(2, 0), (2, 1e-3), (2, 30), (2, 100), (2, 179.9), (3, 0), (3, 1e-3), (3, 30), (3, 100)],
)
def test_gradients_at_parallel_and_nearly_opposite_vectors(mode: str, count: int, degrees: float) -> None:
    vectors, weights = at_angle(degrees, width=3), torch.tensor([0.4, 0.3]).double()
    if count == 3:
        vectors = torch.cat([vectors, vectors.sum(0, keepdim=True)])
        weights = torch.cat([weights, weights[:1]])
    leaves = (vectors.requires_grad_(), weights.requires_grad_())
    # Nearly opposite, derivatives are in the hundreds and their differences' rounding is about 1e-3.
    atol = 1e-2 if degrees > 179 else 1e-5
    assert gradcheck(lambda v, w: spherical_aggregate(v, w, mode), leaves, eps=1e-7, rtol=1e-3, atol=atol)


@pytest.mark.parametrize("mode", CURVED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("degrees", [0, 1e-5, 179, 179.94, 179.95, 179.999, 180])
@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("third", [False, True])
def test_finite_at_every_angle(mode: str, dtype: torch.dtype, degrees: float, equal: bool, third: bool) -> None:
    vectors = at_angle(degrees, (1.0, 1.0) if equal else (1.5, 0.7))
    weights = torch.tensor([0.5, 0.5] if equal else [0.4, 0.3]).double()
    if third:
        vectors, weights = (
            torch.cat([vectors, vectors[:1]]),
            torch.cat([weights, weights[1:] - weights[:1] / 2]),
        )
    vectors, weights = vectors.to(dtype).requires_grad_(), weights.to(dtype).requires_grad_()
    result = spherical_aggregate(vectors, weights, mode)
    result.sum().backward()
    assert result.isfinite().all()
    assert vectors.grad is not None and weights.grad is not None
    assert vectors.grad.isfinite().all() and weights.grad.isfinite().all()
    if degrees not in (179.94, 179.95):  # where rounding decides on which side of the limit they are
        with torch.no_grad():
            alike = spherical_aggregate(vectors, weights, mode)
        assert torch.allclose(alike, result, rtol=2e-3 if degrees > 170 else 1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", CURVED)
def test_an_exact_opposite_of_the_mean_is_finite(mode: str) -> None:
    # Many weights: rounding puts the cosine at, above and below -1.
    weights = torch.rand(500, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 0.1, 1.0]) + 0.1
    vectors = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [3.0, 0.0]]).repeat(500, 1, 1).requires_grad_()
    result = spherical_aggregate(vectors, weights, mode)
    result.sum().backward()
    length = torch.ones(500) if mode == "unit" else weights @ torch.tensor([1.0, 1.0, 3.0])
    assert torch.allclose(result.detach(), torch.stack([length, torch.zeros(500)], -1), rtol=1e-4)
    assert vectors.grad is not None and vectors.grad.isfinite().all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [2, 3])
def test_a_zero_vector_has_no_say_in_the_direction(mode: str, count: int) -> None:
    vectors, weights = experts(7, count, 6)
    with_zero = torch.cat([vectors, torch.zeros(1, 6).double()]).requires_grad_()
    heavier = torch.cat([weights, torch.ones(1).double()])
    expected = spherical_aggregate(vectors, weights, mode)
    result = spherical_aggregate(with_zero, heavier, mode)
    assert torch.allclose(result, expected, rtol=1e-5, atol=1e-6)
    result.sum().backward()
    assert with_zero.grad is not None and with_zero.grad.isfinite().all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("normalize_weights", [False, True])
def test_nothing_to_aggregate_gives_zero(mode: str, count: int, normalize_weights: bool) -> None:
    nothing, something = torch.zeros(2, count, 5), torch.ones(2, count, 5)
    for content, weight in ((nothing, 0.5), (something, 0.0), (nothing, 0.0)):
        vectors = content.clone().requires_grad_()
        weights = torch.full((2, count), weight, requires_grad=True)
        result = spherical_aggregate(vectors, weights, mode, normalize_weights)
        result.sum().backward()
        assert not result.any()
        assert vectors.grad is not None and vectors.grad.isfinite().all()
        assert weights.grad is not None and weights.grad.isfinite().all()


@pytest.mark.parametrize("count", [2, 3])
def test_nothing_of_the_width_is_held_but_inputs_and_result(count: int) -> None:
    vectors, weights = (x.float() for x in experts(0, 6, count, 500))
    vectors.requires_grad_()
    kept: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() != vectors.untyped_storage().data_ptr():
            kept.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        spherical_aggregate(vectors, weights)
    assert kept and max(kept) < 500


def test_an_unknown_mode_names_the_nearest() -> None:
    with pytest.raises(DistilvecError, match='"normfree".*"norm_free"'):
        spherical_aggregate(torch.ones(1, 2, 3), torch.ones(1, 2), "normfree")  # type: ignore[arg-type]
