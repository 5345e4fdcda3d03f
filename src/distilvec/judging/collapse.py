"""Signs that an embedding space has collapsed: everything alike, few directions used, a few hubs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.errors import DataError
from distilvec.evenly import sampled_rows
from distilvec.judging.agreement import SAMPLE
from distilvec.judging.shared import NEIGHBOURS
from distilvec.judging.tasks import nearest_others, unit

MEAN_COSINE_ALARM = 0.9
RANK_SHARE_ALARM = 0.05
HUBNESS_ALARM = 10.0


def collapse(vectors: npt.NDArray[Any]) -> dict[str, Any]:
    """Signs of collapse on a sample of at most 2,000 vectors [n, d], n >= 2.

    Returns:
        `mean_cosine` over distinct pairs, in [-1, 1]; `effective_rank`, exp of the entropy of the singular
        values of the centred unit vectors (Roy & Vetterli 2007), in [1, min(n - 1, d)], 1 where all are
        equal; `rank_share` of that most; `hubness`, the skewness of how often a vector is among the others'
        ten nearest (Radovanovic et al. 2010); `items`; and `alarms`, sentences.

    Raises:
        DataError: fewer than two vectors, or not finite.
    """
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or len(vectors) < 2 or not np.isfinite(vectors).all():
        raise DataError(f"at least two finite vectors are needed, not an array of shape {list(vectors.shape)}")
    points = unit(vectors[sampled_rows(np.arange(len(vectors)), SAMPLE)]).astype(np.float64)
    n, width = points.shape
    total = points.sum(axis=0)
    rank, most = _effective_rank(points), min(n - 1, width)
    signs: dict[str, Any] = {
        "mean_cosine": float((total @ total - np.square(points).sum()) / (n * (n - 1))),
        "effective_rank": rank,
        "rank_share": rank / most,
        "hubness": _hubness(points),
        "items": n,
    }
    return signs | {"alarms": _alarms(signs, most)}


def _effective_rank(points: npt.NDArray[np.float64]) -> float:
    centred = points - points.mean(axis=0)
    gram = centred.T @ centred if centred.shape[1] <= len(centred) else centred @ centred.T
    singular = np.sqrt(np.clip(np.linalg.eigvalsh(gram), 0, None))
    # Rounding leaves about 1e-8 of the points' size (one) in every direction; that is not a direction in use.
    singular = singular[singular > 1e-6 * np.sqrt(len(points))]
    if not len(singular):
        return 1.0
    share = singular / singular.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


def _hubness(points: npt.NDArray[np.float64]) -> float:
    near = nearest_others(points, points, min(NEIGHBOURS, len(points) - 1))
    counts = np.bincount(near.ravel(), minlength=len(points)).astype(np.float64)
    spread = counts.std()
    return float((((counts - counts.mean()) / spread) ** 3).mean()) if spread > 0 else 0.0


def _alarms(signs: dict[str, Any], most: int) -> list[str]:
    alarms = []
    if signs["mean_cosine"] > MEAN_COSINE_ALARM:
        alarms.append(
            f"The space has collapsed: the mean cosine of two vectors is {signs['mean_cosine']:.3f} "
            f"(alarm above {MEAN_COSINE_ALARM})."
        )
    least = max(RANK_SHARE_ALARM * most, min(2.0, most))
    if signs["effective_rank"] < least:
        alarms.append(
            f"The space has collapsed: its effective rank is {signs['effective_rank']:.1f} of {most} "
            f"(alarm below {least:.1f})."
        )
    if signs["hubness"] > HUBNESS_ALARM:
        alarms.append(
            f"A few texts are near everything: the neighbour counts' skewness is {signs['hubness']:.1f} "
            f"(alarm above {HUBNESS_ALARM:.0f})."
        )
    return alarms
