"""Alignment of the tokens of a student and of a teacher that stand for the same piece of a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distilvec.alignment.distances import EditDistances, Grid
from distilvec.alignment.strings import alike, is_uncased, kind_of, plain
from distilvec.alignment.warping import Paths, warp
from distilvec.errors import DataError, DistilvecError, nearest
from distilvec.late import Late

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
#: A cell this many tokens beside the warping path may still pair.
WINDOW = 4
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
    aligner = Aligner(student_tokens, teacher_tokens, whole=False)
    pairs = aligner.pairs(range(len(student_tokens)), range(len(teacher_tokens)), mode)
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
        whole: False = these are the tokens of one text; see `is_uncased`.

    Attributes:
        characters: for either side, int64 [vocabulary], how many characters of the text begin in each id's string.

    >>> aligner = Aligner(["a", "fin", "##est", "story"], ["▁A", "▁Story", "▁fine", "st"])
    >>> aligner.pairs([0, 1, 2, 3], [0, 2, 3, 1]).tolist()
    [[0, 0], [3, 3]]
    """

    def __init__(
        self, student_vocabulary: Sequence[str], teacher_vocabulary: Sequence[str], *, whole: bool = True
    ) -> None:
        sides = [_plain_vocabulary(vocabulary) for vocabulary in (student_vocabulary, teacher_vocabulary)]
        self.characters = tuple(np.fromiter(map(_begun, side), np.int64, count=len(side)) for side in sides)
        lower = any(is_uncased(side, vocabulary=whole) for side in sides)
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
        """The pairs of one text, int32 [P, 2]; as `batch`, which is far cheaper for many."""
        return self.batch([(student_ids, teacher_ids)], [mode])[mode][0]

    def batch(self, texts: Sequence[tuple[ArrayLike, ArrayLike]], modes: Sequence[str]) -> dict[str, list[Pairs]]:
        """The pairs of many texts in several modes; a text's pairs do not depend on its neighbours.

        Args:
            texts: (student ids, teacher ids) of each text, int [n] and [m], content tokens only.
            modes: see `align`.

        Returns:
            Mode -> for each text int32 [P, 2] (student index, teacher index), positions within the ids given.

        Raises:
            DistilvecError: an unknown mode, or "spans".
            DataError: an id that the vocabulary does not have.
        """
        for mode in modes:
            _check(mode)
        students = self._side(0, [student for student, _ in texts])
        teachers = self._side(1, [teacher for _, teacher in texts])
        by_mode: dict[str, list[Pairs]] = {mode: [_NONE] * len(texts) for mode in modes}
        for chunk in _chunks(students[1], teachers[1]):
            padded = [_padded(*side, chunk) for side in (students, teachers)]
            grid, sizes = self._distances.grids(*padded), (students[1][chunk], teachers[1][chunk])
            for mode, chosen in _chosen(grid, sizes, modes):
                for text, pairs in zip(chunk.tolist(), chosen):
                    by_mode[mode][text] = pairs
        return by_mode

    span_pairs = Late("distilvec.alignment.spans:span_pairs")

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


def _begun(text: str) -> int:
    """Count the characters that begin in what `plain` gives; the second to last bytes of one begin none."""
    return sum(not "\udc80" <= character <= "\udcbf" for character in text)


def _chosen(grid: Grid, sizes: tuple[Integers, Integers], modes: Iterable[str]) -> Iterator[tuple[str, list[Pairs]]]:
    """Each mode with the pairs of each of B texts of these sizes ([B], [B])."""
    rows, columns, costs = grid
    paths = warp(rows, columns, sizes, costs)
    cells = {"strict": paths.single & (paths.cost == 0), "path": paths.single}
    for mode in modes:
        chosen = _cells(paths, cells.get(mode, paths.real))
        if mode == "reciprocal":
            texts = zip(rows.T, columns.T, *sizes, chosen, strict=True)
            chosen = [reciprocal_pairs(costs(row[:n, None] + column[:m]), path) for row, column, n, m, path in texts]
        yield mode, chosen


def reciprocal_pairs(cost: NDArray[np.integer], path: NDArray[np.integer]) -> NDArray[np.int32]:
    """Mutual nearest tokens within `WINDOW` rows or columns of the path, int32 [Q, 2] as `Aligner.pairs` gives them.

    Among equally near strings the one nearer to the path counts, then the earlier. Exact matches that the path glued
    to a neighbour are found again; that the window follows the path, not the diagonal of the grid, keeps it right
    where one side is truncated.

    Args:
        cost: [n, m] edit distances, n and m at least 1.
        path: int [P, 2] the warping path.

    Source: EMO; its published code does this over sets of strings, without positions.
    """
    away = np.minimum(_beside(path[:, 0], path[:, 1], cost.shape), _beside(path[:, 1], path[:, 0], cost.shape[::-1]).T)
    score = np.where(away <= WINDOW, cost.astype(np.int64) * (WINDOW + 1) + away, np.iinfo(np.int64).max)
    nearest_teacher, nearest_student = score.argmin(1), score.argmin(0)
    student = np.arange(len(cost))
    mutual = nearest_student[nearest_teacher] == student
    return np.stack([student[mutual], nearest_teacher[mutual]], axis=1).astype(np.int32)


def _beside(row: NDArray[np.integer], column: NDArray[np.integer], shape: tuple[int, ...]) -> NDArray[np.integer]:
    """[n, m] how many columns each cell lies beside the columns that the path visits in its row."""
    each = np.arange(shape[0])
    first = column[np.searchsorted(row, each)][:, None]
    last = column[np.searchsorted(row, each, side="right") - 1][:, None]
    place = np.arange(shape[1])
    return np.maximum(np.maximum(first - place, place - last), 0)


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
