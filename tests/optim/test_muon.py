"""Orthogonal steps: what they are of the gradients, and AdamW's own bits for all else."""

import copy

import pytest
import torch
from tests.optim.networks import loss_of, network, sharp_step, weights
from torch import nn

from distilvec.optim import Muon, SharpnessAware, hidden_matrices
from distilvec.optim.muon import orthogonalised


def muon(model: nn.Module, **options: object) -> Muon:
    matrices = hidden_matrices(model)
    chosen = {id(matrix) for matrix in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    return Muon([{"params": matrices, "orthogonal": True}, {"params": others}], **{"lr": 0.1, **options})


@pytest.mark.parametrize("shape", [(5, 5), (9, 4), (4, 9), (3, 2, 6, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_singular_values_come_near_one_and_the_vectors_stay(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    left, _, right = torch.linalg.svd(torch.randn(*shape, generator=torch.Generator().manual_seed(0)), False)
    matrices = left * torch.linspace(1, 0.05, left.shape[-1]) @ right
    found = orthogonalised(matrices.to(dtype)).float()
    inner = left.mT @ found @ right.mT
    values = inner.diagonal(dim1=-2, dim2=-1)
    assert ((values > 0.8) & (values < 1.2)).all()
    assert (inner - torch.diag_embed(values)).abs().max() < (1e-3 if dtype == torch.float32 else 0.1)


def test_rounding_does_not_let_it_explode() -> None:
    """Few directions have most of the norm, as in a student's gradients, just where the first polynomial is highest."""
    generator = torch.Generator().manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(40, 96, 128, generator=generator), False)
    spectrum = torch.cat([torch.tensor([0.83, 0.38, 0.38]), torch.logspace(-1.5, -3, 93)])
    matrices = left * spectrum @ right * torch.logspace(-4, 4, 40)[:, None, None]
    found = torch.linalg.svdvals(orthogonalised(matrices.bfloat16()).float())
    assert found.max() < 1.25
    assert found[:, :40].min() > 0.75


def test_a_matrix_without_gradients_does_not_move() -> None:
    assert torch.equal(orthogonalised(torch.zeros(3, 4)), torch.zeros(3, 4))
    model = network()
    before = weights(model)
    muon(model).step()
    assert all(torch.equal(one, other) for one, other in zip(before, weights(model), strict=True))


def test_two_steps_are_those_of_the_formula() -> None:
    matrix = nn.Parameter(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    first, second = (torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    optimizer = Muon([{"params": [matrix], "orthogonal": True}], lr=0.1, weight_decay=0.5, momentum=0.9)
    expected = matrix.detach().clone()
    momentum = torch.zeros(6, 4)
    for gradient in (first, second):
        matrix.grad = gradient.clone()
        optimizer.step()
        momentum = 0.9 * momentum + gradient
        move = orthogonalised(gradient + 0.9 * momentum)
        expected = expected * (1 - 0.1 * 0.5) - 0.1 * 0.2 * 6**0.5 * move
    torch.testing.assert_close(matrix.detach(), expected)


def test_a_step_is_as_large_as_one_of_adamw() -> None:
    matrix = nn.Parameter(torch.zeros(64, 48))
    matrix.grad = torch.randn(64, 48, generator=torch.Generator().manual_seed(0))
    Muon([{"params": [matrix], "orthogonal": True}], lr=0.1).step()
    assert matrix.square().mean().sqrt().item() == pytest.approx(0.1 * 0.2, rel=0.1)


def test_all_else_moves_as_with_adamw_bit_for_bit() -> None:
    model, plain = network(), network()
    optimizer = muon(model)
    adamw = torch.optim.AdamW(plain.parameters(), lr=0.1)
    for name, parameter in model.named_parameters():
        parameter.grad = torch.ones_like(parameter)
        plain.get_parameter(name).grad = torch.ones_like(parameter)
    for _ in range(3):
        optimizer.step()
        adamw.step()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, plain.get_parameter(name)) == (parameter.ndim < 2), name


def test_it_resumes_from_its_saved_state_bit_for_bit() -> None:
    model = network()
    optimizer = muon(model)
    for seed in range(4):
        if seed == 2:
            other, state = copy.deepcopy(model), copy.deepcopy(optimizer.state_dict())
        optimizer.zero_grad()
        loss_of(model, seed).backward()
        optimizer.step()
    resumed = muon(other)
    resumed.load_state_dict(state)
    for seed in (2, 3):
        resumed.zero_grad()
        loss_of(other, seed).backward()
        resumed.step()
    assert all(torch.equal(one, two) for one, two in zip(weights(model), weights(other), strict=True))


def test_a_copied_optimizer_continues_like_the_original() -> None:
    model = network()
    optimizer = muon(model, momentum=0.8)
    loss_of(model).backward()
    optimizer.step()
    other, copied = copy.deepcopy((model, optimizer))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        two.grad = one.grad.clone()
    for each in (optimizer, copied):
        each.step()
    assert all(torch.equal(one, two) for one, two in zip(weights(model), weights(other), strict=True))


def test_it_learns_under_sharpness_aware_steps() -> None:
    model = network()
    optimizer = SharpnessAware(muon(model, lr=0.02), kind="asam", rho=0.05)
    before = loss_of(model).item()
    assert all(sharp_step(optimizer, model, 0) for _ in range(20))
    assert loss_of(model).item() < before / 1.2


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_scaler_leaves_out_steps_of_infinite_gradients(fused: bool) -> None:
    model = network()
    optimizer, scaler = muon(model, fused=fused), torch.amp.GradScaler("cpu", init_scale=8.0)
    before = weights(model)
    scaler.scale(loss_of(model)).backward()
    model[0].weight.grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(one, other) for one, other in zip(before, weights(model), strict=True))
    optimizer.zero_grad()
    scaler.scale(loss_of(model)).backward()
    scaler.step(optimizer)
    assert not any(torch.equal(one, other) for one, other in zip(before, weights(model), strict=True))


def test_only_matrices_have_orthogonal_steps() -> None:
    with pytest.raises(ValueError, match="only matrices"):
        Muon([{"params": [nn.Parameter(torch.zeros(3))], "orthogonal": True}])


def test_hidden_matrices_are_the_trained_weights_of_linear_layers_each_once() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 4), nn.Linear(3, 4))
    model[4].weight = model[3].weight
    assert [matrix is model[1].weight or matrix is model[3].weight for matrix in hidden_matrices(model)] == [True] * 2
    model[0].weight = nn.Parameter(torch.zeros(3, 4))
    model[1].weight = model[0].weight  # a table of tokens that gives logits, too
    assert hidden_matrices(model) == [model[3].weight]
    model[1].weight = nn.Parameter(torch.zeros(3, 4))
    model[1].weight.requires_grad_(False)
    assert hidden_matrices(model) == [model[3].weight]
