"""The largest eigenvalue against the spectrum of an explicit Hessian."""

import pytest
import torch
from torch import nn

from distilvec.errors import DistilvecError
from distilvec.optim import largest_curvature


def quadratic(spectrum: torch.Tensor, seed: int = 0) -> tuple[nn.Parameter, torch.Tensor]:
    """A parameter and a symmetric matrix with this spectrum; the loss is w A w / 2."""
    generator = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(len(spectrum), len(spectrum), generator=generator).double())
    weight = nn.Parameter(torch.randn(len(spectrum), generator=generator).double())
    return weight, basis @ torch.diag(spectrum.double()) @ basis.T


@pytest.mark.parametrize(
    "spectrum",
    [
        torch.linspace(0, 10, 40),
        torch.cat([torch.tensor([-100.0, -50.0, 3.0]), torch.linspace(-1, 1, 30)]),
        torch.cat([torch.tensor([-10.0, 9.99]), torch.zeros(30)]),
        -torch.linspace(1, 5, 25),
        torch.full((12,), 2.5),
        torch.tensor([4.0]),
    ],
    ids=["positive", "negative-dominant", "nearly-symmetric", "concave", "multiple", "one"],
)
def test_equals_the_largest_algebraic_eigenvalue(spectrum: torch.Tensor) -> None:
    weight, matrix = quadratic(spectrum)
    found = largest_curvature(lambda: weight @ matrix @ weight / 2, [weight], iterations=40, tolerance=1e-8)
    assert found.value == pytest.approx(torch.linalg.eigvalsh(matrix)[-1].item(), rel=1e-7)
    assert found.converged
    assert found.iterations <= len(spectrum)
    assert found.vector.norm().item() == pytest.approx(1)
    torch.testing.assert_close(matrix @ found.vector, found.value * found.vector, rtol=0, atol=1e-5)


def test_network_with_several_tensors_against_an_explicit_hessian() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    inputs, targets = torch.randn(20, 4).double(), torch.randn(20, 2).double()
    parameters = list(model.parameters())

    def loss() -> torch.Tensor:
        return (model(inputs) - targets).square().mean()

    size = sum(parameter.numel() for parameter in parameters)
    firsts = torch.cat([first.flatten() for first in torch.autograd.grad(loss(), parameters, create_graph=True)])
    hessian = torch.stack(
        [
            torch.cat([p.flatten() for p in torch.autograd.grad(first, parameters, retain_graph=True)])
            for first in firsts
        ]
    )
    assert hessian.shape == (size, size)
    found = largest_curvature(loss, parameters, iterations=size, tolerance=1e-9)
    values, vectors = torch.linalg.eigh(hessian)
    assert found.value == pytest.approx(values[-1].item(), rel=1e-8)
    assert abs(torch.dot(found.vector, vectors[:, -1]).item()) == pytest.approx(1, abs=1e-6)


def test_gradients_generator_and_weights_are_left_alone() -> None:
    weight, matrix = quadratic(torch.linspace(0, 4, 10))
    weight.grad = torch.full_like(weight, 7.0)
    before, state = weight.detach().clone(), torch.get_rng_state()
    first = largest_curvature(lambda: weight @ matrix @ weight, [weight])
    second = largest_curvature(lambda: weight @ matrix @ weight, [weight])
    assert torch.equal(weight.grad, torch.full_like(weight, 7.0))
    assert torch.equal(weight.detach(), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.value == second.value


def test_flat_functions_have_no_curvature() -> None:
    weight, unused = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(3))
    linear = largest_curvature(lambda: weight.sum() * 3, [weight, unused])
    assert (linear.value, linear.converged, linear.vector.shape) == (0.0, True, (9,))
    constant = largest_curvature(lambda: torch.tensor(2.0), [weight])
    assert (constant.value, constant.converged) == (0.0, True)
    partly = largest_curvature(lambda: weight.square().sum() + 5, [unused, weight])
    assert partly.value == pytest.approx(2.0)
    assert partly.vector[:3].abs().max().item() == pytest.approx(0, abs=1e-6)


def test_too_few_iterations_are_said_to_have_failed() -> None:
    weight, matrix = quadratic(torch.linspace(0, 1, 200))
    found = largest_curvature(lambda: weight @ matrix @ weight, [weight], iterations=3, tolerance=1e-6)
    assert not found.converged
    assert found.iterations == 3
    assert found.value <= 2.0 + 1e-9


def test_attention_can_be_differentiated_twice() -> None:
    """The fused kernels cannot; the closure runs under the math kernel."""
    torch.manual_seed(0)
    model = nn.Linear(8, 24)
    inputs = torch.randn(2, 1, 5, 8)

    def loss() -> torch.Tensor:
        query, key, value = model(inputs).chunk(3, dim=-1)
        return nn.functional.scaled_dot_product_attention(query, key, value).square().mean()

    found = largest_curvature(loss, model.parameters(), iterations=10)
    assert found.value > 0


def test_errors() -> None:
    weight = nn.Parameter(torch.ones(3))
    with pytest.raises(DistilvecError, match=r"\b0 trainable parameters, 30 iterations"):
        largest_curvature(weight.sum, [])
    with pytest.raises(DistilvecError, match=r"\(3,\)"):
        largest_curvature(lambda: weight * 2, [weight])
    with pytest.raises(DistilvecError, match=r"iteration 1\b"):
        largest_curvature(lambda: (weight * float("inf")).square().sum(), [weight])
