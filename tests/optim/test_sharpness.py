"""SAM, ASAM and DISAM: the published identities, and that nothing is left behind."""

import copy

import pytest
import torch
from tests.optim.networks import loss_of, network, sharp_step, weights
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from distilvec.errors import DistilvecError
from distilvec.optim import SharpnessAware, domain_ascent


def perturbation(model: nn.Module, **options: object) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(w before, e) with the gradients of one backward pass left in place."""
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), **options)
    loss_of(model).backward()
    before = weights(model)
    optimizer.ascend()
    moves = [after - old for after, old in zip(weights(model), before, strict=True)]
    optimizer.restore()
    return before, moves


def test_sam_moves_rho_along_the_gradient_over_all_parameters() -> None:
    model = network()
    _, moves = perturbation(model, kind="sam", rho=0.2)
    flat = torch.cat([move.flatten() for move in moves])
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    assert flat.norm().item() == pytest.approx(0.2, rel=1e-4)
    assert torch.cosine_similarity(flat, gradient, dim=0).item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("scale", ["elementwise", "filter", "layer"])
@pytest.mark.parametrize("bias", ["one", "abs", "exclude"])
def test_asam_has_radius_rho_in_its_own_metric(scale: str, bias: str) -> None:
    model = network().double()
    before, moves = perturbation(model, kind="asam", rho=0.5, eta=0.01, scale=scale, bias=bias)
    scaled = []
    for weight, move, parameter in zip(before, moves, model.parameters(), strict=True):
        if weight.ndim == 1 and bias == "exclude":
            assert not move.any()
            continue
        if weight.ndim == 1 and bias == "one":
            metric = torch.ones_like(weight)
        elif scale == "layer":
            metric = weight.norm() + 0.01
        elif scale == "filter" and weight.ndim > 1:
            metric = weight.norm(dim=1, keepdim=True) + 0.01
        else:
            metric = weight.abs() + 0.01
        scaled.append((move / metric).flatten())
        assert torch.cosine_similarity(
            (move / metric**2).flatten(), parameter.grad.flatten(), dim=0
        ).item() == pytest.approx(1)
    assert torch.cat(scaled).norm().item() == pytest.approx(0.5)


def test_asam_with_unit_scale_is_sam() -> None:
    """T = 1 where every weight is 0 or 1 in size and eta is 0; here all weights are +-1."""
    models = []
    for kind in ("asam", "sam"):
        model = network()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.where(parameter >= 0, 1.0, -1.0))
        _, moves = perturbation(model, kind=kind, rho=0.1, eta=0.0, bias="abs")
        models.append(moves)
    for asam, sam in zip(*models, strict=True):
        assert torch.equal(asam, sam)


@pytest.mark.parametrize("kind", ["sam", "asam"])
def test_rho_zero_is_the_base_optimizer_bit_for_bit(kind: str) -> None:
    plain, sharp = network(), network()
    base = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    optimizer = SharpnessAware(torch.optim.AdamW(sharp.parameters(), lr=1e-2), kind=kind, rho=0.0)
    for seed in range(4):
        base.zero_grad()
        loss_of(plain, seed).backward()
        base.step()
        sharp_step(optimizer, sharp, seed)
    assert all(torch.equal(a, b) for a, b in zip(weights(plain), weights(sharp), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_restore_is_bit_identical_even_after_a_non_finite_ascent(dtype: torch.dtype) -> None:
    model = network().to(dtype)
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), kind="asam")
    before = weights(model)
    model(torch.randn(4, 6, dtype=dtype)).square().mean().backward()
    assert optimizer.ascend()
    assert not torch.equal(model[0].weight, before[0])
    optimizer.restore()
    assert all(torch.equal(a, b) for a, b in zip(weights(model), before, strict=True))
    next(model.parameters()).grad.fill_(float("nan"))
    assert optimizer.ascend()
    assert not torch.isfinite(model[0].weight).all()
    optimizer.restore()
    optimizer.restore()
    assert all(torch.equal(a, b) for a, b in zip(weights(model), before, strict=True))


def test_the_step_uses_the_second_gradient_at_the_kept_weights() -> None:
    model = network()
    reference = copy.deepcopy(model)
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), kind="sam", rho=0.3)
    assert sharp_step(optimizer, model, seed=1)
    loss_of(reference, 1).backward()
    gradients = [parameter.grad.clone() for parameter in reference.parameters()]
    norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    shifted = copy.deepcopy(reference)
    with torch.no_grad():
        for parameter, gradient in zip(shifted.parameters(), gradients, strict=True):
            parameter.add_(gradient * 0.3 / norm)
    shifted.zero_grad()
    loss_of(shifted, 1).backward()
    for parameter, start, moved in zip(model.parameters(), reference.parameters(), shifted.parameters(), strict=True):
        torch.testing.assert_close(parameter.detach(), (start - 0.1 * moved.grad).detach())


def test_groups_without_perturbation_and_parameters_without_gradient_stay() -> None:
    model = network()
    groups = [
        {"params": model[0].parameters()},
        {"params": [*model[2].parameters(), *model[3].parameters()], "perturb": False},
    ]
    optimizer = SharpnessAware(torch.optim.SGD(groups, lr=0.1), kind="sam", rho=0.2)
    loss_of(model).backward()
    model[0].bias.grad = None
    before = weights(model)
    optimizer.ascend()
    moves = [after - old for after, old in zip(weights(model), before, strict=True)]
    assert moves[0].norm().item() == pytest.approx(0.2, rel=1e-4)
    assert not any(move.any() for move in moves[1:])


def test_every_second_step_is_plain_and_the_counter_survives_a_checkpoint() -> None:
    def build() -> tuple[nn.Module, SharpnessAware]:
        model = network()
        return model, SharpnessAware(torch.optim.AdamW(model.parameters(), lr=1e-2), every=3)

    model, optimizer = build()
    assert [sharp_step(optimizer, model, seed) for seed in range(5)] == [True, False, False, True, False]
    resumed, again = build()
    resumed.load_state_dict(model.state_dict())
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert [sharp_step(again, resumed, seed) for seed in (5, 6)] == [False, True]
    assert [sharp_step(optimizer, model, seed) for seed in (5, 6)] == [False, True]
    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(resumed), strict=True))


def test_a_state_without_the_counter_is_refused() -> None:
    model = network()
    base = torch.optim.AdamW(model.parameters())
    with pytest.raises(DistilvecError, match=r"^optimizer\.sharpness: "):
        SharpnessAware(base).load_state_dict(base.state_dict())


def test_schedulers_and_accelerate_see_the_base_optimizer() -> None:
    from accelerate import Accelerator

    model = network()
    optimizer = SharpnessAware(torch.optim.AdamW(model.parameters(), lr=1e-2))
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is optimizer.base.param_groups
    accelerator = Accelerator(cpu=True)
    prepared, wrapped = accelerator.prepare(model, optimizer)
    scheduler = accelerator.prepare(LambdaLR(optimizer, lambda step: 0.5**step))
    for seed in range(3):
        loss_of(prepared, seed).backward()
        assert wrapped.optimizer.ascend()
        wrapped.zero_grad()
        loss_of(prepared, seed).backward()
        wrapped.optimizer.restore()
        wrapped.step()
        scheduler.step()
        wrapped.zero_grad()
    assert optimizer.base.param_groups[0]["lr"] == pytest.approx(1e-2 / 8)
    assert optimizer.count == 3
    assert all(parameter.grad is None for parameter in model.parameters())
    assert len(optimizer.state) == len(list(model.parameters()))


def test_step_hooks_registered_on_the_wrapper_run() -> None:
    model = network()
    optimizer = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1))
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    sharp_step(optimizer, model, 0)
    assert calls == [1]


def test_misuse_is_refused() -> None:
    model = network()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(DistilvecError, match='"asan".*"asam"'):
        SharpnessAware(base, kind="asan")
    with pytest.raises(DistilvecError, match=r"rho -1\b.*eta 0\.01\b.*every 1\b"):
        SharpnessAware(base, rho=-1)
    optimizer = SharpnessAware(base)
    assert not optimizer.ascend()
    loss_of(model).backward()
    optimizer.ascend()
    with pytest.raises(RuntimeError, match=r"step\(\) .*restore\(\)"):
        optimizer.step()
    with pytest.raises(RuntimeError, match=r"ascend\(\) .*restore\(\)"):
        optimizer.ascend()


def test_default_radii_are_the_papers() -> None:
    base = torch.optim.SGD(network().parameters(), lr=0.1)
    assert SharpnessAware(base).rho == 0.5
    assert SharpnessAware(base, kind="sam").rho == 0.05


def test_disam_variance_has_both_published_forms() -> None:
    torch.manual_seed(0)
    losses = torch.rand(20, dtype=torch.float64, requires_grad=True)
    domains = torch.randint(0, 4, (20,)) * 3
    means = torch.stack([losses[domains == domain].mean() for domain in domains.unique()])
    pairwise = (means[:, None] - means[None]).square().sum() / (2 * len(means) ** 2)
    value = domain_ascent(losses, domains, 0.7)
    torch.testing.assert_close(value, losses.mean() - 0.7 * pairwise)
    torch.testing.assert_close(value, losses.mean() - 0.7 * means.var(unbiased=False))
    expected = torch.autograd.grad(losses.mean() - 0.7 * pairwise, losses)[0]
    torch.testing.assert_close(torch.autograd.grad(domain_ascent(losses, domains, 0.7), losses)[0], expected)


def test_one_domain_has_no_variance_and_no_rows_are_zero() -> None:
    losses = torch.rand(5, requires_grad=True)
    assert domain_ascent(losses, torch.zeros(5, dtype=torch.int64), 3.0).item() == losses.mean().item()
    assert domain_ascent(torch.zeros(0), torch.zeros(0, dtype=torch.int64), 1.0).item() == 0
    with pytest.raises(DistilvecError, match=r"\(5,\) .*\(4,\).*\[N\]"):
        domain_ascent(losses, torch.zeros(4, dtype=torch.int64), 1.0)
