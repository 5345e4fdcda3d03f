"""Mean and deviation of vectors, in parts that can be added up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Statistics:
    """Statistics of the stored vectors, over all rows (a key stored twice counts twice).

    Attributes:
        count: number of rows.
        mean, std: float64 [D] per dimension; `std` divides by `count`.
        mean_norm: mean Euclidean norm.
        relative_error: root of (summed squared rounding error / summed squared norm) of the stored dtype.
    """

    count: int
    mean: np.ndarray
    std: np.ndarray
    mean_norm: float
    relative_error: float

    @property
    def centred_error(self) -> float:
        """The same error beside the vectors without their mean, which is what tells them apart; 0 if nothing does."""
        spread = float(np.square(self.std).sum())
        whole = spread + float(np.square(self.mean).sum())
        return self.relative_error * float(np.sqrt(whole / spread)) if spread else 0.0


@dataclass
class Moments:
    """Sums from which statistics follow; merged by Chan, Golub and LeVeque's update (1979, eq. 2.1).

    Attributes:
        count: number of vectors.
        mean: float64 [D].
        m2: float64 [D], sum of squared deviations from the mean.
        norms, squares, errors: sums of norms, of squared norms, of squared rounding errors.
    """

    count: int
    mean: np.ndarray
    m2: np.ndarray
    norms: float = 0.0
    squares: float = 0.0
    errors: float = 0.0

    @classmethod
    def empty(cls, width: int) -> Moments:
        """Moments of no vectors of `width` dimensions."""
        return cls(0, np.zeros(width), np.zeros(width))

    @classmethod
    def of(cls, vectors: np.ndarray, stored: np.ndarray) -> Moments:
        """Moments of vectors, and of the error made by storing them.

        Args:
            vectors: float32 [n, D].
            stored: float32 [n, D], what reading gives back.
        """
        if len(vectors) == 0:
            return cls.empty(vectors.shape[1])
        exact = vectors.astype(np.float64)
        mean = exact.mean(axis=0)
        squares = np.einsum("nd,nd->n", exact, exact)
        difference = exact - stored
        return cls(
            count=len(exact),
            mean=mean,
            m2=np.square(exact - mean).sum(axis=0),
            norms=float(np.sqrt(squares).sum()),
            squares=float(squares.sum()),
            errors=float(np.square(difference).sum()),
        )

    def __add__(self, other: Moments) -> Moments:
        count = self.count + other.count
        if count == 0:
            return self
        delta = other.mean - self.mean
        return Moments(
            count=count,
            mean=self.mean + delta * (other.count / count),
            m2=self.m2 + other.m2 + np.square(delta) * (self.count * other.count / count),
            norms=self.norms + other.norms,
            squares=self.squares + other.squares,
            errors=self.errors + other.errors,
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {**vars(self), "mean": self.mean.tolist(), "m2": self.m2.tolist()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], width: int) -> Moments:
        """From `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: where it is something else or of another width.
        """
        mean, m2 = (np.asarray(values[name], dtype=np.float64) for name in ("mean", "m2"))
        if mean.shape != (width,) or m2.shape != (width,):
            raise ValueError(f"moments have the shapes {mean.shape} and {m2.shape}, not ({width},)")
        sums = (float(values[name]) for name in ("norms", "squares", "errors"))
        return cls(int(values["count"]), mean, m2, *sums)

    def statistics(self) -> Statistics:
        """The statistics of at least one vector."""
        return Statistics(
            count=self.count,
            mean=self.mean,
            std=np.sqrt(self.m2 / self.count),
            mean_norm=self.norms / self.count,
            relative_error=float(np.sqrt(self.errors / self.squares)) if self.squares else 0.0,
        )
