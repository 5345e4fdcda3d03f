"""Perceptrons with one hidden layer, fitted for several seeds at once: one batched product does all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

Target = Literal["classification", "binary", "regression"]


@dataclass(frozen=True)
class PerceptronSettings:
    """The settings of a perceptron's fit.

    Attributes:
        hidden: width of the hidden layer; None = as wide as the vector.
        activation: of the hidden layer; leaky_relu has slope 0.01.
        optimizer: `sgd` has Nesterov momentum 0.9.
        lr: constant learning rate.
        weight_decay: L2 penalty, added to the gradient.
        epochs: passes over the training items; None = min(100, 200 * 5000 / size of the task), the rule for molecules.

    Source: the many-teachers paper, appendix (probes).
    """

    hidden: int | None = 128
    activation: Literal["relu", "leaky_relu"] = "relu"
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    batch_size: int = 64
    epochs: int | None = None

    def epochs_for(self, items: int) -> int:
        """Passes for a task of so many items (of training, validation and test together), at least 1."""
        return self.epochs or max(1, min(100, 200 * 5000 // items))


class Parts(NamedTuple):
    """Rows of the features, int64 [S, any number]: one line for each seed."""

    train: npt.NDArray[np.int64]
    held: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]


class FittedPerceptron(NamedTuple):
    """Outputs float32 [S, test items, width] of the fitted perceptrons, and the epoch, from 1, of their weights [S]."""

    outputs: npt.NDArray[np.float32]
    best_epoch: list[int]


def fit_perceptrons(
    features: npt.NDArray[np.float32],
    answers: npt.NDArray[np.generic],
    parts: Parts,
    seeds: Sequence[int],
    *,
    target: Target,
    width: int,
    settings: PerceptronSettings,
) -> FittedPerceptron:
    """Fit one perceptron per seed on standardised features and keep each one's best epoch by validation loss.

    Numbers to be predicted are standardised on the training items, too, and given back in their own units. The loss
    decides, not the metric: it has no ties, and a value where the validation items are of one class. A seed gives the
    same perceptron whichever seeds are fitted beside it, but for rounding.

    Args:
        features: [n, d].
        answers: [n]: class codes, 0 or 1, or numbers.
        parts: rows that each seed is fitted on, chosen by and tested on.
        seeds: of the start weights and of the order of items.
        target: the loss: softmax cross-entropy, logistic, or squared error.
        width: number of outputs: classes, else 1.
    """
    x = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))
    y = torch.from_numpy(np.asarray(answers, dtype=np.int64 if target == "classification" else np.float32))
    y = y.expand(len(seeds), -1)
    train, held, test = (torch.from_numpy(rows) for rows in parts)
    data = _Standardised(x, train)
    shift, scale = torch.zeros(len(seeds), 1), torch.ones(len(seeds), 1)
    if target == "regression":
        scale, shift = torch.std_mean(y.gather(1, train), dim=1, correction=0, keepdim=True)
        y = (y - shift) / scale
    weights = _start(x.shape[1], settings.hidden or x.shape[1], width, seeds)
    optimizer = _optimizer(weights, settings)
    orders = [np.random.default_rng([seed, 1]) for seed in seeds]
    held_x, held_y = data.take(held), y.gather(1, held)
    best = [weight.detach().clone() for weight in weights]
    best_loss = torch.full((len(seeds),), torch.inf)
    best_epoch = torch.zeros(len(seeds), dtype=torch.int64)
    for epoch in range(1, settings.epochs_for(sum(part.shape[1] for part in parts)) + 1):
        order = torch.from_numpy(np.stack([rng.permutation(train.shape[1]) for rng in orders]))
        for rows in train.gather(1, order).split(settings.batch_size, dim=1):
            with torch.enable_grad():
                loss = _loss(_forward(weights, data.take(rows), settings), y.gather(1, rows), target).sum()
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
        with torch.no_grad():
            losses = _loss(_forward(weights, held_x, settings), held_y, target)
            better = losses < best_loss
            for kept, weight in zip(best, weights):
                kept[better] = weight[better]
        best_loss, best_epoch = torch.where(better, losses, best_loss), best_epoch.masked_fill(better, epoch)
    outputs = _forward(best, data.take(test), settings) * scale.unsqueeze(-1) + shift.unsqueeze(-1)
    return FittedPerceptron(outputs.numpy(), best_epoch.tolist())


class _Standardised:
    """Rows of the features with mean 0 and deviation 1 over each seed's own training items."""

    def __init__(self, features: Tensor, train: Tensor) -> None:
        self._features = features
        moments = [torch.std_mean(features[rows], dim=0, correction=0) for rows in train]
        deviation = torch.stack([one for one, _ in moments]).unsqueeze(1)
        self._mean = torch.stack([one for _, one in moments]).unsqueeze(1)
        # Of a constant coordinate only rounding is left, which is not to be blown up.
        varied = (deviation > 1e-12) & (deviation > 1e-6 * self._mean.abs())
        self._factor = torch.where(varied, 1 / deviation.clamp_min(1e-12), 0)

    def take(self, rows: Tensor) -> Tensor:
        """[S, b] -> [S, b, d]."""
        return (self._features[rows] - self._mean) * self._factor


def _start(inputs: int, hidden: int, outputs: int, seeds: Sequence[int]) -> list[Tensor]:
    """[S, inputs, hidden], [S, 1, hidden], [S, hidden, outputs], [S, 1, outputs]: torch's start of linear layers."""
    shapes = ((inputs, hidden), (1, hidden), (hidden, outputs), (1, outputs))
    bounds = [1 / math.sqrt(size) for size in (inputs, inputs, hidden, hidden)]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return [
        torch.stack(
            [torch.empty(shape).uniform_(-bound, bound, generator=generator) for generator in generators]
        ).requires_grad_()
        for shape, bound in zip(shapes, bounds)
    ]


def _optimizer(weights: list[Tensor], settings: PerceptronSettings) -> torch.optim.Optimizer:
    lr, decay = settings.lr, settings.weight_decay
    if settings.optimizer == "sgd":
        return torch.optim.SGD(weights, lr, momentum=0.9, nesterov=True, weight_decay=decay, fused=True)
    return torch.optim.Adam(weights, lr, weight_decay=decay, fused=True)


def _forward(weights: Sequence[Tensor], x: Tensor, settings: PerceptronSettings) -> Tensor:
    """[S, b, d] -> [S, b, outputs]."""
    first, offset, second, last = weights
    states = torch.baddbmm(offset, x, first)
    states = functional.relu(states) if settings.activation == "relu" else functional.leaky_relu(states)
    return torch.baddbmm(last, states, second)


def _loss(outputs: Tensor, answers: Tensor, target: Target) -> Tensor:
    """[S, b, outputs], [S, b] -> mean loss of each seed, [S]."""
    if target == "classification":
        return functional.cross_entropy(outputs.transpose(1, 2), answers, reduction="none").mean(1)
    values = outputs.squeeze(-1)
    if target == "binary":
        return functional.binary_cross_entropy_with_logits(values, answers, reduction="none").mean(1)
    return (values - answers).square().mean(1)
