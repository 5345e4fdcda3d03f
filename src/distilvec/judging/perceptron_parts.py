"""The settings of a perceptron probe, and the rows that it is fitted, chosen and tested on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

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
