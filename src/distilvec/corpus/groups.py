"""Pairs and triplets: which rows of a corpus belong together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from distilvec.corpus.corpus import Corpus

__all__ = ["companion_rows", "rows_with_companions"]


def companion_rows(groups: np.ndarray, roles: np.ndarray, most: int | None = None) -> np.ndarray:
    """Per row the other rows of its pair or triplet, int64 [n, m].

    Anchors (role 0) have companions: the positive (role 1) first, then the negatives, then the positive again where
    others have more, so that all batches have equally many rows. -1 for all other rows and anchors without a positive.

    Args:
        groups: [n], equal for the rows of one pair or triplet.
        roles: [n], anchor 0, positive 1, negative 2.
        most: m is at most this; None = what the largest group has.

    >>> companion_rows(np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 0, 0, 1, 2])).tolist()
    [[1, 1], [-1, -1], [-1, -1], [4, 5], [-1, -1], [-1, -1]]
    """
    order = np.lexsort((np.arange(len(groups)), roles, groups))
    sorted_groups, sorted_roles = groups[order], roles[order]
    starts = np.flatnonzero(np.diff(sorted_groups, prepend=sorted_groups[:1] - 1))
    sizes = np.diff(starts, append=len(order))
    place = np.arange(len(order)) - np.repeat(starts, sizes)
    width = max(int(place.max(initial=0)), 1)
    companions = np.full((len(groups), width if most is None else min(width, most)), -1, np.int64)
    second = starts + 1
    whole = (second < len(order)) & (sorted_roles[starts] == 0)
    second = second[whole]
    whole[whole] = (sorted_groups[second] == sorted_groups[second - 1]) & (sorted_roles[second] == 1)
    anchor = np.repeat(np.where(whole, order[starts], -1), sizes)
    taken = (anchor >= 0) & (place > 0) & (place <= companions.shape[1])
    companions[anchor[taken], place[taken] - 1] = order[taken]
    return np.where(companions < 0, companions[:, :1], companions)


def rows_with_companions(corpus: Corpus, rows: np.ndarray, most: int | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Those of the rows that a batch is drawn from, and everyone's companions.

    Args:
        corpus: with pairs or triplets, unless `most` is 0.
        most: how many companions an item brings: 0 = none, every row is an item by itself; None = all.

    Returns:
        int64 rows, and int64 [n, m] over the whole corpus (see `companion_rows`); None without companions.
    """
    rows = np.asarray(rows)
    if most == 0:
        return rows, None
    assert corpus.groups is not None and corpus.roles is not None
    companions = companion_rows(np.asarray(corpus.groups), np.asarray(corpus.roles), most)
    return rows[companions[rows, 0] >= 0], companions
