"""Sharpness-aware steps of the loop are those of a loop written by hand."""

from __future__ import annotations

import contextlib
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.training.assembling import Assembled, assemble
from torch import Tensor, nn

from distilvec.errors import DistilvecError
from distilvec.methods.base import Term
from distilvec.optim import SharpnessAware
from distilvec.recipe import SharpnessSection
from distilvec.training import Distiller
from distilvec.training.log import Sums
from distilvec.training.sharpness import SharpStep

Gradients = dict[str, torch.Tensor]


def gradients(distiller: Distiller, batch: dict[str, Any], share: float, domains: float | None = None) -> Gradients:
    result = distiller(**batch)
    loss = result["loss"]
    if domains is not None:
        means = torch.stack([result["items"][batch["domain"] == d].mean() for d in batch["domain"].unique()])
        loss = loss - domains * (means - means.mean()).square().mean()
    distiller.zero_grad()
    (loss * share).backward()
    return {n: p.grad.clone() for n, p in distiller.named_parameters() if p.grad is not None}


def add(first: Gradients, second: Gradients) -> Gradients:
    return {name: first.get(name, 0) + value for name, value in second.items()} if first else second


@torch.no_grad()
def ascend(distiller: Distiller, grads: Gradients, kind: str, rho: float, heads: bool) -> None:
    chosen = {
        name: parameter
        for name, parameter in distiller.named_parameters()
        if (kind != "asam" or parameter.ndim > 1) and (heads or name.startswith("student."))
    }
    scales = {n: p.abs() + 0.01 if kind == "asam" else torch.ones_like(p) for n, p in chosen.items()}
    norm = sum((grads[n] * scales[n]).square().sum() for n in chosen) ** 0.5
    for name, parameter in chosen.items():
        parameter.add_(rho * scales[name] ** 2 * grads[name] / norm)


def by_hand(made: Assembled, sharpness: dict[str, Any], accumulation: int, clip: float) -> list[float]:
    """One epoch; returns the norms of the gradients before clipping."""
    distiller = made.distiller.train()
    torch.manual_seed(0)
    # Not Adam, which would make steps of the noise where a gradient is zero (the keys' biases).
    optimizer = torch.optim.SGD(distiller.parameters(), lr=0.1)
    kind, rho, heads = sharpness["kind"], sharpness["rho"], sharpness.get("heads", True)
    domains = sharpness.get("domains") if kind == "disam" else None
    batches, norms = made.batches(8), []

    def second_pass(part: dict[str, Any], state: torch.Tensor, share: float) -> Gradients:
        if not sharpness.get("fresh_dropout"):
            torch.set_rng_state(state)
        return gradients(distiller, part, share)

    while window := list(islice(batches, accumulation)):
        total: Gradients = {}
        share = 1 / len(window)
        groups = [window] if sharpness.get("per") == "batch" else [[part] for part in window]
        for group in groups:
            first: Gradients = {}
            states = []
            for part in group:
                states.append(torch.get_rng_state())
                first = add(first, gradients(distiller, part, share, domains))
            after = torch.get_rng_state()
            kept = {name: parameter.detach().clone() for name, parameter in distiller.named_parameters()}
            ascend(distiller, first, kind, rho, heads)
            for part, state in zip(group, states, strict=True):
                total = add(total, second_pass(part, state, share))
            if not sharpness.get("fresh_dropout"):
                torch.set_rng_state(after)
            with torch.no_grad():
                for name, parameter in distiller.named_parameters():
                    parameter.copy_(kept[name])
        for name, parameter in distiller.named_parameters():
            parameter.grad = total[name]
        norms.append(float(torch.nn.utils.clip_grad_norm_(distiller.parameters(), clip)))
        optimizer.step()
    return norms


CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "asam": ("cosine", {"kind": "asam", "rho": 0.5}, 1),
    "sam": ("cosine", {"kind": "sam", "rho": 0.1}, 1),
    "two-views": ("talas", {"kind": "asam", "rho": 0.5}, 1),
    "fresh-dropout": ("cosine", {"kind": "asam", "rho": 0.5, "fresh_dropout": True}, 1),
    "without-heads": ("cosine", {"kind": "asam", "rho": 0.5, "heads": False}, 1),
    "per-micro": ("cosine", {"kind": "asam", "rho": 0.5}, 2),
    "per-batch": ("cosine", {"kind": "asam", "rho": 0.5, "per": "batch"}, 2),
    "per-batch-fresh": ("cosine", {"kind": "sam", "rho": 0.1, "per": "batch", "fresh_dropout": True}, 2),
    "disam": ("cosine", {"kind": "disam", "rho": 0.2, "domains": 5.0}, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_the_loop_by_hand(home: Path, tmp_path: Path, case: str) -> None:
    method, sharpness, accumulation = CASES[case]
    clip = 0.3
    trained, wanted = assemble(home, method), assemble(home, method)
    begun = trained.state()
    training = {"gradient_accumulation_steps": accumulation, "max_grad_norm": clip, "logging_steps": 1, "optim": "sgd"}
    loop = trained.loop(tmp_path, training, {"lr": 0.1, "sharpness": sharpness})
    loop.train()
    norms = by_hand(wanted, sharpness, accumulation, clip)
    logged = [entry["grad_norm"] for entry in loop.state.log_history if "grad_norm" in entry]
    assert max(norms) > clip  # of the second gradient, which is the one that is clipped
    assert logged == pytest.approx(norms, rel=1e-4)
    expected, found = wanted.state(), trained.state()
    assert max(float((expected[name] - begun[name]).abs().max()) for name in begun if "heads" not in name) > 3e-3
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5, msg=lambda t, n=name: f"{n}: {t}")


def test_the_cases_differ(home: Path, tmp_path: Path) -> None:
    """Otherwise the comparison above would not tell them apart."""
    norms = {
        name: by_hand(assemble(home, CASES[name][0]), *CASES[name][1:], 1e9) for name in CASES if name != "two-views"
    }
    seen = {tuple(round(value, 5) for value in values[1:]) for values in norms.values()}
    assert len(seen) == len(norms)


@pytest.mark.parametrize("per", ["micro", "batch"])
def test_radius_zero_is_the_base_bit_for_bit(home: Path, tmp_path: Path, per: str) -> None:
    results = []
    for sharpness in (None, {"kind": "asam", "rho": 0.0, "per": per}):
        made = assemble(home, "cosine")
        made.loop(tmp_path, {"gradient_accumulation_steps": 2}, {"sharpness": sharpness}).train()
        results.append(made.state())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_radius_is_the_kind_s_own_where_the_recipe_is_silent(home: Path, tmp_path: Path) -> None:
    for kind, rho in (("asam", 0.5), ("sam", 0.05), ("disam", 0.01)):
        loop = assemble(home, "cosine").loop(tmp_path, {}, {"sharpness": {"kind": kind}})
        assert loop.optimizer.rho == rho


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_second_gradient_that_is_not_finite_is_left_out(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulation: int, caplog: pytest.LogCaptureFixture
) -> None:
    made = assemble(home, "cosine", rows=32)
    loop = made.loop(
        tmp_path,
        {"gradient_accumulation_steps": accumulation, "logging_steps": 1},
        {"sharpness": {"kind": "asam", "rho": 0.5}},
    )
    forward, calls, before = loop.forward, [], []

    def poisoned(inputs: Any, *, perturbed: bool = False) -> Any:
        result = forward(inputs, perturbed=perturbed)
        if perturbed:
            calls.append(0)
            if len(calls) == 1:
                result["loss"] = result["loss"] * float("nan")
        elif not before:
            before.append(made.state())
        return result

    steps: list[dict[str, torch.Tensor]] = []
    stepped = loop.micro_step

    def noted(*args: Any, **kwargs: Any) -> Any:
        loss = stepped(*args, **kwargs)
        steps.append(made.state())
        return loss

    monkeypatch.setattr(loop, "forward", poisoned)
    monkeypatch.setattr(loop, "micro_step", noted)
    loop.train()
    # After the poisoned pass the weights are back, bit for bit.
    assert all(torch.equal(steps[0][name], before[0][name]) for name in before[0])
    if accumulation == 1:  # and that step changed nothing
        assert all(torch.equal(steps[1][n], before[0][n]) for n in before[0]) is False or len(steps) > 1
        grad_norms = [entry["grad_norm"] for entry in loop.state.log_history if "grad_norm" in entry]
        assert grad_norms[0] == 0 and min(grad_norms[1:]) > 0
    assert loop.sums.skipped == 1
    assert [entry["skipped_steps"] for entry in loop.state.log_history if "skipped_steps" in entry][-1] == 1
    assert all(torch.isfinite(value).all() for value in made.state().values())
    assert "not finite" in caplog.text


def test_disam_without_domains_is_refused(home: Path, tmp_path: Path) -> None:
    from tests.training import jobs

    from distilvec.methods.table import build_method
    from distilvec.recipe import OptimizerSection, TrainingSection
    from distilvec.training import Material, TrainingSettings, fit

    given = jobs.parts(home)
    given["corpus"].domains = None
    with pytest.raises(DistilvecError, match=r"^optimizer\.sharpness\.kind: disam .*Set corpus\.domain"):
        fit(
            given["student"],
            build_method("cosine", {}),
            Material(given["corpus"], given["teachers"], given["sources"]),
            TrainingSettings(TrainingSection(), OptimizerSection(sharpness={"kind": "disam"}), tmp_path),  # type: ignore[arg-type]
        )


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, values: Tensor) -> Tensor:
        return self.norm(self.linear(values))


@pytest.mark.parametrize("slope", [1.0, float("inf")])
def test_batch_norm_statistics_are_taken_at_the_unperturbed_weights(slope: float) -> None:
    model, plain = Normed(), Normed()
    plain.load_state_dict(model.state_dict())
    batch = torch.randn(8, 3)
    plain(batch)
    model.linear.weight.register_hook(lambda gradient: gradient * slope)
    loop: Any = SimpleNamespace(
        optimizer=SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), kind="sam", rho=1.0),
        model=model,
        sums=Sums(),
        synchronised=lambda on: contextlib.nullcontext(),
        backward=Tensor.backward,
        forward=lambda inputs, perturbed=False: {
            **dict.fromkeys(("items", "domains", "counting")),
            "loss": model(inputs["batch"])[:, 0].exp().mean(),
        },
    )
    step = SharpStep(loop, SharpnessSection(kind="sam"))
    step({"batch": batch}, 1.0, last=True)
    found, expected = dict(model.named_buffers()), dict(plain.named_buffers())
    assert len(found) == 3 and all(torch.equal(found[name], value) for name, value in expected.items())


def test_disam_ignores_rows_without_weight() -> None:
    """Two domains of equal loss, of which one has more rows that do not count: nothing varies between them."""
    losses, domains = torch.tensor([2.0, 9.0, 9.0, 2.0]), torch.tensor([0, 0, 0, 1])
    counted = torch.tensor([True, False, False, True])
    terms = {"ranking": Term(losses, counted), "seen": Term(losses, None, 0.0)}
    result = Distiller._reduce(None, terms, domains, local=True)  # type: ignore[arg-type]
    loop: Any = SimpleNamespace(distiller=SimpleNamespace(gathers=False))
    step = SharpStep(loop, SharpnessSection(kind="disam", domains=5.0))
    assert float(step._objective(result)) == float(result["loss"]) == 2.0
    none = Distiller._reduce(None, {"ranking": Term(losses, counted & False)}, domains, local=True)  # type: ignore[arg-type]
    assert float(step._objective(none)) == 0.0
