"""The choice of negatives among a query's nearest documents, and what each filter takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from distilvec.mining.nearest import Vectors
from distilvec.recipe import MiningSection

#: Vectors of candidates that are held beside each other to be compared with positives.
AT_ONCE = 16_384
#: Random documents tried for each that is wanted.
_DRAWS = 4


@dataclass
class QueryBlock:
    """A block of Q queries.

    Attributes:
        vectors: float32 [Q, D], of unit length.
        positives: int64 [Q], number of each query's own positive.
        rows, own: int64 [m], pairs of a query and a document that answers it: its positive, and those that an equal
            query has elsewhere; by query.
        barred: int64 [Q, m], documents that are the query's own text, or negatives that it has already; -1 for none.
    """

    vectors: np.ndarray
    positives: np.ndarray
    rows: np.ndarray
    own: np.ndarray
    barred: np.ndarray


@dataclass
class Chosen:
    """The negatives of Q queries.

    Attributes:
        numbers: int64 [Q, k], of the documents, the hardest first, then those drawn at random; -1 where there is none.
        scores: float32 [Q, k], their similarities.
        ranks: int64 [Q, k], among the documents that are no answers; 0 of those drawn at random.
        positives: float32 [Q], similarity of the positive.
        taken: filter -> how many candidates it took, in the order of the filters.
        candidates: how many there were.
    """

    numbers: np.ndarray
    scores: np.ndarray
    ranks: np.ndarray
    positives: np.ndarray
    taken: Counter[str] = field(default_factory=Counter)
    candidates: int = 0

    @classmethod
    def joined(cls, found: Sequence[Chosen], places: Sequence[np.ndarray]) -> Chosen:
        """Those of several groups of queries, which stand at these places int64 [n] of all."""
        order = np.argsort(np.concatenate(places))
        arrays = zip(*([each.numbers, each.scores, each.ranks, each.positives] for each in found), strict=True)
        numbers, scores, ranks, positives = (np.concatenate(parts)[order] for parts in arrays)
        taken = Counter[str]()
        for each in found:
            taken.update(each.taken)  # a sum would leave out filters that took nothing
        return cls(numbers, scores, ranks, positives, taken, sum(each.candidates for each in found))


def grouped(depths: np.ndarray, room: int) -> Iterator[np.ndarray]:
    """Queries that are searched together, int64 [m] each, ascending; those that need many neighbours apart from others.

    Args:
        depths: int64 [Q], how many of the nearest documents each one needs.
        room: for neighbours of a group, each of its queries having as many as the one that needs most.
    """
    order = np.argsort(-depths, kind="stable")
    start = 0
    while start < len(order):
        stop = start + max(1, room // int(depths[order[start]]))
        yield np.sort(order[start:stop])
        start = stop


@dataclass(frozen=True)
class Chooser:
    """Applies the filters of a mining section to the nearest of all documents that can be negatives."""

    documents: Vectors
    section: MiningSection

    def tries(self, queries: int, draw: np.random.Generator) -> np.ndarray:
        """int64 [Q, n], documents drawn at random for each query, each once; -1 where one was drawn again."""
        wanted = round(self.section.random * self.section.negatives)
        if not wanted:
            return np.zeros((queries, 0), np.int64)
        order = np.sort(draw.integers(len(self.documents), size=(queries, _DRAWS * wanted + _DRAWS)), axis=1)
        return draw.permuted(np.where(np.diff(order, axis=1, prepend=-1) > 0, order, -1), axis=1)

    def choose(self, asked: QueryBlock, scores: np.ndarray, numbers: np.ndarray, tries: np.ndarray) -> Chosen:
        """Negatives of a block.

        Args:
            scores, numbers: [Q, depth], what `nearest` found.
            tries: of these queries, for the random ones.
        """
        section = self.section
        positives = np.einsum("qd,qd->q", asked.vectors, self.documents.read(asked.positives))
        taken: Counter[str] = Counter()
        there = numbers >= 0
        alive = there & ~self._own(asked, numbers)
        first, last = section.ranks
        others = alive.cumsum(1)
        # Those behind the last rank would be more or fewer by how far the search went.
        taken["the query's own: its positives, its text, its negatives"] = int((there & ~alive & (others < last)).sum())
        ranks = np.where(alive, others, 0)
        alive &= ranks <= last
        candidates = int(alive.sum())
        if first > 1:
            taken[f"nearer than rank {first}"] = int((alive & (ranks < first)).sum())
            alive &= ranks >= first
        alive = self._filtered(asked, scores, numbers, positives, alive, taken)
        wanted = round(section.random * section.negatives)
        drawn_scores, drawn = (
            self._drawn(asked, positives, wanted, tries) if wanted else (scores[:, :0], numbers[:, :0])
        )
        random = drawn >= 0
        rows, columns = random.nonzero()  # what was drawn may be among the nearest too
        alive &= ~self._among(numbers, rows, drawn[rows, columns])
        alive &= alive.cumsum(1) <= section.negatives - random.sum(1, keepdims=True)
        pairs = ((scores, drawn_scores), (numbers, drawn), (ranks, np.zeros_like(drawn)))
        tables = [np.concatenate(pair, axis=1) for pair in pairs]
        scores, numbers, ranks = _first(np.concatenate([alive, random], axis=1), section.negatives, *tables)
        return Chosen(numbers, scores, ranks, positives.astype(np.float32), taken, candidates)

    def _own(self, asked: QueryBlock, numbers: np.ndarray) -> np.ndarray:
        """bool [Q, n], documents that answer their query, or are barred."""
        rows, columns = (asked.barred >= 0).nonzero()
        documents = np.concatenate([asked.own, asked.barred[rows, columns]])
        return self._among(numbers, np.concatenate([asked.rows, rows]), documents)

    def _among(self, numbers: np.ndarray, rows: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """bool [Q, n], which numbers stand in the pairs of a row and a document."""
        span = len(self.documents) + 1
        return np.isin(np.arange(len(numbers))[:, None] * span + numbers, rows * span + documents)

    def _filtered(
        self,
        asked: QueryBlock,
        scores: np.ndarray,
        numbers: np.ndarray,
        positives: np.ndarray,
        alive: np.ndarray,
        taken: Counter[str],
    ) -> np.ndarray:
        """bool [Q, n], those of `alive` that pass all filters but the ranks; what each took is counted."""
        section, own = self.section, positives[:, None]
        limits: list[tuple[str, np.ndarray | float]] = []
        if section.max_score is not None:
            limits.append((f"max_score {section.max_score:g}", section.max_score))
        if section.absolute_margin is not None:
            limits.append((f"absolute_margin {section.absolute_margin:g}", own - section.absolute_margin))
        if section.relative_margin is not None:
            margin = np.abs(own) * section.relative_margin
            limits.append((f"relative_margin {section.relative_margin:g}", own - margin))
        for name, limit in limits:
            taken[name] += int((alive & (scores > limit)).sum())
            alive = alive & (scores <= limit)
        if section.duplicates is not None:
            near = self._near(asked, numbers, alive, section.duplicates)
            taken[f"nearer than {section.duplicates:g} to a positive"] += int((alive & near).sum())
            alive = alive & ~near
        return alive

    def _near(self, asked: QueryBlock, numbers: np.ndarray, alive: np.ndarray, limit: float) -> np.ndarray:
        """bool [Q, n], whether a document that is `alive` resembles a positive of its query more than `limit`."""
        near = np.zeros_like(alive)
        starts = np.searchsorted(asked.rows, np.arange(len(numbers) + 1))
        rows, columns = alive.nonzero()
        for start in range(0, len(rows), AT_ONCE):
            chunk = slice(start, start + AT_ONCE)
            row, column = rows[chunk], columns[chunk]
            different, back = np.unique(numbers[row, column], return_inverse=True)
            vectors = self.documents.read(different)[back]
            nearest = np.full(len(row), -np.inf, np.float32)
            for number in range(int((starts[row + 1] - starts[row]).max())):
                have = starts[row] + number < starts[row + 1]
                answers, again = np.unique(asked.own[starts[row[have]] + number], return_inverse=True)
                answer = self.documents.read(answers)[again]
                nearest[have] = np.maximum(nearest[have], np.einsum("nd,nd->n", vectors[have], answer))
            near[row, column] = nearest > limit
        return near

    def _drawn(
        self, asked: QueryBlock, positives: np.ndarray, wanted: int, numbers: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores and numbers [Q, wanted] of documents drawn at random that pass the filters; -1 where too few did."""
        size, tried = numbers.shape
        scores = np.full(numbers.shape, np.nan, np.float32)
        for start in range(0, size, max(1, AT_ONCE // tried)):
            chunk = slice(start, start + max(1, AT_ONCE // tried))
            different, back = np.unique(numbers[chunk].clip(0), return_inverse=True)
            vectors = self.documents.read(different)[back.reshape(-1)].reshape(*numbers[chunk].shape, -1)
            scores[chunk] = np.einsum("qd,qnd->qn", asked.vectors[chunk], vectors)
        alive = (numbers >= 0) & ~self._own(asked, numbers)
        alive = self._filtered(asked, scores, numbers, positives, alive, Counter())
        alive &= alive.cumsum(1) <= wanted
        scores, numbers, _ = _first(alive, wanted, scores, numbers, np.zeros_like(numbers))
        return scores, numbers


def _first(
    alive: np.ndarray, count: int, scores: np.ndarray, numbers: np.ndarray, ranks: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what is alive, at most `count` in a row, as [Q, count] from the left; behind it NaN, -1 and 0."""
    rows, columns = alive.nonzero()
    at = alive.cumsum(1)[rows, columns] - 1

    def placed(values: np.ndarray, nothing: float, dtype: type) -> np.ndarray:
        table: np.ndarray = np.full((len(alive), count), nothing, dtype)
        table[rows, at] = values[rows, columns]
        return table

    return placed(scores, np.nan, np.float32), placed(numbers, -1, np.int64), placed(ranks, 0, np.int64)
