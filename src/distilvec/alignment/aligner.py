"""Alignment of the tokens of a student and of a teacher that stand for the same piece of a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from distilvec.alignment.distances import EditDistances
from distilvec.alignment.strings import alike, is_uncased, kind_of, plain
from distilvec.alignment.warping import Paths, warp
from distilvec.errors import DataError, DistilvecError, nearest

__all__ = ["MODES", "Aligner", "align", "warping_path"]

Integers = NDArray[np.int64]
Pairs = NDArray[np.int32]

#: Mode -> what it pairs.
MODES = {
    "strict": "cells of the warping path that stand alone in their row and column, with equal strings",
    "path": "cells of the warping path that stand alone in their row and column, at any distance",
    "full": "every cell of the warping path, many-to-many",
    "reciprocal": "each the other's nearest string, near the warping path",
    "spans": "equal character offsets",
}
#: Texts and cells of their grids that are warped together: enough for wide operations, few enough for a cache.
_TEXTS, _CELLS = 256, 1 << 22


def align(student_tokens: Sequence[str], teacher_tokens: Sequence[str], mode: str = "strict") -> list[tuple[int, int]]:
    """Pairs of tokens that stand for the same piece of a text that two tokenizers have cut up.

    Args:
        student_tokens, teacher_tokens: token strings with their marks, without special tokens. Each side's kind
            (WordPiece, byte-level BPE, SentencePiece) is seen from its marks; a side without capitals counts as
            uncased, and then both are compared in lower case.
        mode: "strict", "path", "full" or "reciprocal"; "strict" and "path" are one-to-one.

    Returns:
        (student index, teacher index), by student. Empty where a side is.

    Raises:
        DistilvecError: an unknown mode, or "spans", which needs offsets: see `span_pairs`.

    Source: minimum edit distance as in FuseLLM (arXiv:2401.10491); reciprocal modes as in EMO, section 3.

    >>> align(["un", "##believ", "##able", "story"], ["▁A", "▁story"])
    [(3, 1)]
    >>> align(["the", "story"], ["ĠThe", "Ġstories"], "path")
    [(0, 0), (1, 1)]
    """
    _check(mode)
    if not len(student_tokens) or not len(teacher_tokens):
        return []
    cost = _string_costs(student_tokens, teacher_tokens)
    height, width = cost.shape
    rows, columns = np.arange(height)[:, None] * width, np.arange(width)[:, None]
    grid = _Grid(rows, columns, cost.take, np.array([height]), np.array([width]))
    ((_, (pairs,)),) = grid.pairs([mode])
    return [(row, column) for row, column in pairs.tolist()]


def warping_path(student_tokens: Sequence[str], teacher_tokens: Sequence[str]) -> list[tuple[int, int]]:
    """The whole warping path of least total edit distance, from (0, 0) to the last token of either side.

    Args and source: as of `align`. Ties: diagonal, then up (student index before), then left.

    "able" is nearer to "story" than to "unbelievable", so the exact match does not stand alone, and "strict" loses it:

    >>> warping_path(["un", "believ", "able", "story"], ["unbelievable", "story"])
    [(0, 0), (1, 0), (2, 1), (3, 1)]
    >>> align(["un", "believ", "able", "story"], ["unbelievable", "story"], "reciprocal")
    [(1, 0), (3, 1)]
    """
    return align(student_tokens, teacher_tokens, "full")


class Aligner:
    """Aligns token ids of two tokenizers, many texts at once.

    Args:
        student_vocabulary, teacher_vocabulary: token string of every id, as `convert_ids_to_tokens` gives it.
            Kind and case of either side are seen from the whole vocabulary.

    Attributes:
        characters: for either side, int64 [vocabulary], what each id's string adds to the text.

    >>> aligner = Aligner(["a", "fin", "##est", "story"], ["▁A", "▁Story", "▁fine", "st"])
    >>> aligner.pairs([0, 1, 2, 3], [0, 2, 3, 1]).tolist()
    [[0, 0], [3, 3]]
    """

    def __init__(self, student_vocabulary: Sequence[str], teacher_vocabulary: Sequence[str]) -> None:
        sides = [_plain_vocabulary(vocabulary) for vocabulary in (student_vocabulary, teacher_vocabulary)]
        self.characters = tuple(np.fromiter(map(len, side), np.int64, count=len(side)) for side in sides)
        lower = any(is_uncased(side, vocabulary=True) for side in sides)
        distinct: list[list[str]] = []
        self._entries: list[Integers] = []
        for side in sides:
            numbers: dict[str, int] = {}
            # Entries that say the same ("▁The", "the") are one.
            same = [numbers.setdefault(text, len(numbers)) for text in alike(side, lower=lower)]
            self._entries.append(np.array(same, dtype=np.int64))
            distinct.append(list(numbers))
        self._distances = EditDistances(distinct[0], distinct[1])

    def pairs(self, student_ids: ArrayLike, teacher_ids: ArrayLike, mode: str = "strict") -> Pairs:
        """The pairs of one text; `batch` is far cheaper for many.

        Args:
            student_ids, teacher_ids: int [n], [m], content tokens only.
            mode: see `align`.

        Returns:
            int32 [P, 2] (student index, teacher index), positions within the ids given.

        Raises:
            DistilvecError: an unknown mode, or "spans".
            DataError: an id that the vocabulary does not have.
        """
        return self.batch([(student_ids, teacher_ids)], [mode])[mode][0]

    def batch(self, texts: Sequence[tuple[ArrayLike, ArrayLike]], modes: Sequence[str]) -> dict[str, list[Pairs]]:
        """The pairs of many texts in several modes; a text's pairs do not depend on its neighbours.

        Args:
            texts: (student ids, teacher ids) of each text, as for `pairs`.
            modes: see `align`.

        Returns:
            Mode -> one int32 [P, 2] for each text.

        Raises:
            DistilvecError, DataError: as `pairs`.
        """
        for mode in modes:
            _check(mode)
        students = self._side(0, [student for student, _ in texts])
        teachers = self._side(1, [teacher for _, teacher in texts])
        by_mode: dict[str, list[Pairs]] = {mode: [_NONE] * len(texts) for mode in modes}
        for chunk in _chunks(students[1], teachers[1]):
            padded = [_padded(*side, chunk) for side in (students, teachers)]
            grid = _Grid(*self._distances.grids(*padded), students[1][chunk], teachers[1][chunk])
            for mode, chosen in grid.pairs(modes):
                for text, pairs in zip(chunk.tolist(), chosen):
                    by_mode[mode][text] = pairs
        return by_mode

    @staticmethod
    def span_pairs(student_offsets: ArrayLike, teacher_offsets: ArrayLike, text: str | None = None) -> Pairs:
        """The pairs of mode "spans" from character offsets int [n, 2] and [m, 2] of the content tokens.

        Args:
            text: with it, white space at the ends of a span does not count, see `trim_spans`.
        """
        from distilvec.alignment.spans import span_pairs

        if text is None:
            return span_pairs(student_offsets, teacher_offsets)
        from distilvec.alignment.spans import trim_spans

        return span_pairs(trim_spans(student_offsets, text), trim_spans(teacher_offsets, text))

    def _side(self, side: int, texts: list[ArrayLike]) -> tuple[Integers, Integers]:
        """Entries of all texts' tokens one after another, and each text's number of tokens."""
        arrays = [np.asarray(ids) for ids in texts]
        sizes = np.fromiter(map(len, arrays), dtype=np.int64, count=len(arrays))
        ids = np.concatenate([a for a in arrays if a.size] or [np.zeros(0, dtype=np.int64)])
        known = len(self._entries[side])
        if ids.size and (ids.min() < 0 or ids.max() >= known):
            wrong = ids.min() if ids.min() < 0 else ids.max()
            name = ("student", "teacher")[side]
            raise DataError(
                f"The {name}'s vocabulary has {known:,} entries and no id {wrong}",
                remedy="The ids have to come from the tokenizer that the vocabulary was taken from",
            )
        return self._entries[side][ids], sizes


_NONE: Pairs = np.zeros((0, 2), dtype=np.int32)
_NONE.flags.writeable = False


def _check(mode: str) -> None:
    if mode == "spans":
        raise DistilvecError(
            "Spans are aligned by character offsets, not by tokens", remedy='Use "span_pairs" with both sides\' offsets'
        )
    if mode not in MODES:
        raise DistilvecError(f'There is no mode of alignment "{mode}"', remedy=nearest(mode, MODES))


def _plain_vocabulary(vocabulary: Iterable[str]) -> list[str]:
    # Models' tables are sometimes longer than their tokenizers: such ids have no string.
    tokens = [token or "" for token in vocabulary]
    kind = kind_of(tokens)
    return [plain(token, kind) for token in tokens]


def _string_costs(student_tokens: Sequence[str], teacher_tokens: Sequence[str]) -> NDArray[np.integer]:
    """[n, m] edit distances of normalised token strings."""
    sides = []
    for tokens in (student_tokens, teacher_tokens):
        kind = kind_of(tokens)
        sides.append([plain(token, kind) for token in tokens])
    lower = any(is_uncased(side) for side in sides)
    student, teacher = (alike(side, lower=lower) for side in sides)
    return np.asarray(cdist(student, teacher, scorer=Levenshtein.distance, dtype=np.int32))


@dataclass(frozen=True)
class _Grid:
    """The distances of B texts: `costs` takes rows [S, B] + columns [T, B]; heights and widths are [B]."""

    rows: Integers
    columns: Integers
    costs: Callable[[Integers], NDArray[np.integer]]
    heights: Integers
    widths: Integers

    def pairs(self, modes: Iterable[str]) -> Iterator[tuple[str, list[Pairs]]]:
        """Each mode with the pairs of each text."""
        paths = warp(self.rows, self.columns, (self.heights, self.widths), self.costs)
        for mode in modes:
            if mode in ("strict", "path"):
                chosen = _cells(paths, paths.single & (paths.cost == 0) if mode == "strict" else paths.single)
            else:
                chosen = _cells(paths, paths.real)
            if mode == "reciprocal":
                from distilvec.alignment.reciprocal import reciprocal_pairs

                chosen = [reciprocal_pairs(self._distances(text), path) for text, path in enumerate(chosen)]
            yield mode, chosen

    def _distances(self, text: int) -> NDArray[np.integer]:
        """[n, m] of one text."""
        rows, columns = self.rows[: self.heights[text], text], self.columns[: self.widths[text], text]
        return self.costs(rows[:, None] + columns)


def _cells(paths: Paths, chosen: NDArray[np.bool_]) -> list[Pairs]:
    """The chosen cells of each text, [P, 2]."""
    pairs = np.stack([paths.student[chosen], paths.teacher[chosen]], axis=1).astype(np.int32)
    ends = chosen.sum(1).cumsum().tolist()
    return [pairs[start:end] for start, end in zip([0, *ends], ends)]


def _chunks(students: Integers, teachers: Integers) -> Iterator[Integers]:
    """Texts of like length with tokens on both sides, longest first; int64 [B] each."""
    length = students + teachers
    order = np.argsort(-length, kind="stable")
    order = order[(students[order] > 0) & (teachers[order] > 0)]
    while len(order):
        # A grid takes rows x (rows + columns) cells: about half its length squared.
        fitting = int(max(1, 2 * _CELLS // int(length[order[0]]) ** 2))
        count = min(_TEXTS, fitting)
        yield order[:count]
        order = order[count:]


def _padded(entries: Integers, sizes: Integers, chunk: Integers) -> Integers:
    """[tokens, B] the entries of the chosen texts, -1 beyond their ends."""
    starts = sizes.cumsum() - sizes
    place = np.arange(int(sizes[chunk].max()))[:, None]
    real = place < sizes[chunk]
    return np.where(real, entries[np.where(real, place + starts[chunk], 0)], -1)
