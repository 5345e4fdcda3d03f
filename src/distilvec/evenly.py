"""Which few of many to take."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def evenly_spaced(count: int, most: int) -> npt.NDArray[np.int64]:
    """At most `most` of the numbers 0 to count - 1, evenly apart, ascending, the first and the last among them.

    >>> evenly_spaced(10, 4).tolist(), evenly_spaced(2, 4).tolist(), evenly_spaced(0, 4).tolist()
    ([0, 3, 6, 9], [0, 1], [])
    """
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)
