"""More texts, made of those that are there: parts of them, and the beginning of one with the end of another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Fewest words of a text that a part is taken of, and of one that is cut in two.
_PART, _CUT = 5, 4
#: Smallest share of a text's words in a part.
_LEAST = 0.4


def made_texts(texts: Sequence[str], kinds: np.ndarray, count: int, seed: int) -> list[tuple[int, str]]:
    """Parts and splices of texts, each kind about half; splices of two texts of one of the kinds, int [n].

    Of texts without white space nothing can be made, and texts of too few words give nothing, so that fewer than
    `count` may come. A splice has at most as many words as the longer of the two.

    Returns:
        The place of the text that each begins with, or is a part of, and what was made.

    >>> made_texts(["one two three four five six"], np.zeros(1), 2, 0)
    [(0, 'one two three two three four'), (0, 'one two three')]
    """
    rng = np.random.default_rng(seed)
    words = [text.split() for text in texts]
    members = {kind: np.flatnonzero(kinds == kind) for kind in np.unique(kinds)}
    made = []
    for place, half in zip(rng.integers(len(texts), size=count).tolist(), rng.random(count).tolist(), strict=True):
        first = words[place]
        if half < 0.5 and len(first) >= _PART:
            size = int(rng.integers(int(np.ceil(_LEAST * len(first))), len(first)))
            start = int(rng.integers(len(first) - size + 1))
            made.append((place, " ".join(first[start : start + size])))
        elif half >= 0.5 and len(first) >= _CUT:
            second = words[int(rng.choice(members[kinds[place]]))]
            if len(second) >= _CUT:
                beginning = first[: int(rng.integers(2, len(first)))]
                end = second[int(rng.integers(1, len(second) - 1)) :]
                made.append((place, " ".join([*beginning, *end][: max(len(first), len(second))])))
    return made
