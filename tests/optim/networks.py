"""A small network, its loss and one sharpness-aware step."""

from __future__ import annotations

import torch
from torch import nn

from distilvec.optim import SharpnessAware


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))


def loss_of(model: nn.Module, seed: int = 0) -> torch.Tensor:
    inputs = torch.randn(16, 6, generator=torch.Generator().manual_seed(seed)).to(next(model.parameters()))
    return model(inputs).square().mean() + model(inputs + 1).exp().mean()


def sharp_step(optimizer: SharpnessAware, model: nn.Module, seed: int) -> bool:
    optimizer.zero_grad()
    loss_of(model, seed).backward()
    moved = optimizer.ascend()
    if moved:
        optimizer.zero_grad()
        loss_of(model, seed).backward()
    optimizer.restore()
    optimizer.step()
    return moved


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]
