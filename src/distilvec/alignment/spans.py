"""Pairs of tokens that cover the same characters of the text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distilvec.errors import DataError


def trim_spans(offsets: ArrayLike, text: str) -> NDArray[np.int64]:
    """Character offsets without the white space at their ends, which some tokenizers count and others do not.

    Args:
        offsets: int [n, 2], start and end of each token in `text`.
        text: what was tokenised.

    Returns:
        int64 [n, 2]; a token of white space alone has an empty span.

    Raises:
        DataError: a token ends behind the text.

    >>> trim_spans([(0, 3), (3, 9)], "one   two").tolist()
    [[0, 3], [6, 9]]
    """
    spans = _spans(offsets)
    space = np.fromiter((character.isspace() for character in text), dtype=bool, count=len(text))
    if not space.any():
        return spans
    if spans.max(initial=0) > len(text) or spans.min(initial=0) < 0:
        raise DataError(f"A token ends at character {spans.max()} of a text of {len(text)}")
    place = np.arange(len(text))
    # The first character at or after each place that is no space, and the end of the last one before it.
    following = np.append(np.minimum.accumulate(np.where(space, len(text), place)[::-1])[::-1], len(text))
    preceding = np.append(0, np.maximum.accumulate(np.where(space, 0, place + 1)))
    start = np.minimum(following[spans[:, 0]], spans[:, 1])
    return np.stack([start, np.maximum(preceding[spans[:, 1]], start)], axis=1)


def span_pairs(student_offsets: ArrayLike, teacher_offsets: ArrayLike, text: str | None = None) -> NDArray[np.int32]:
    """Tokens whose spans are equal and occur once on either side. Empty spans never pair.

    Args:
        student_offsets: int [n, 2], start and end of each content token.
        teacher_offsets: int [m, 2].
        text: with it, white space at the ends of a span does not count, see `trim_spans`.

    Returns:
        int32 [P, 2] (student index, teacher index), by student.

    >>> span_pairs([(0, 2), (2, 4), (5, 8)], [(0, 4), (5, 8)]).tolist()
    [[2, 1]]
    """
    sides = (student_offsets, teacher_offsets)
    student, teacher = (_codes(_spans(side) if text is None else trim_spans(side, text)) for side in sides)
    _, rows, columns = np.intersect1d(student[0], teacher[0], assume_unique=True, return_indices=True)
    pairs = np.stack([student[1][rows], teacher[1][columns]], axis=1)
    return pairs[pairs[:, 0].argsort()].astype(np.int32)


def _codes(spans: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One number for each span that occurs once and is not empty, and its token."""
    codes, first, counts = np.unique((spans[:, 0] << 32) + spans[:, 1], return_index=True, return_counts=True)
    kept = (counts == 1) & (spans[first, 1] > spans[first, 0])
    return codes[kept], first[kept]


def _spans(offsets: ArrayLike | Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    spans = np.asarray(offsets, dtype=np.int64)
    if spans.size == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if spans.ndim != 2 or spans.shape[1] != 2:
        raise DataError(f"Offsets are start and end of each token, [n, 2], and not {list(spans.shape)}")
    return spans
