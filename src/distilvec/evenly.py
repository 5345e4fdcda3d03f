"""Deterministic subsampling."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def evenly_spaced(count: int, most: int) -> npt.NDArray[np.int64]:
    """At most `most` of the numbers 0 to count - 1, evenly apart, ascending, the first and the last among them.

    >>> evenly_spaced(10, 4).tolist(), evenly_spaced(2, 4).tolist(), evenly_spaced(0, 4).tolist()
    ([0, 3, 6, 9], [0, 1], [])
    """
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def sampled_rows(rows: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
    """At most `most` of the rows, a sample drawn with a fixed seed, in their order.

    For rows of a corpus, where what stands evenly apart may be alike (the queries of pairs) and what stands together is
    of one domain.

    >>> len(sampled_rows(np.arange(100), 7)), sampled_rows(np.arange(3), 7).tolist()
    (7, [0, 1, 2])
    """
    rows = np.asarray(rows)
    if len(rows) <= most:
        return rows
    return rows[np.sort(np.random.default_rng(0).choice(len(rows), most, replace=False))]
