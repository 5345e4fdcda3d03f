"""The base of all tasks."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from distilvec.corpus.keys import PAIR, folded
from distilvec.errors import DistilvecError
from distilvec.judging.encoder import Encode
from distilvec.judging.scores import Outputs, Score

logger = logging.getLogger(__name__)
T = TypeVar("T")
#: Share of a probe's test items among those that it learns from that is told.
_KNOWN = 0.01
#: Rows of many that are turned into float64 together.
_BLOCK = 8192


class JudgingTask(ABC):
    """One question asked of an embedding model.

    Attributes:
        name: unique among the tasks of a run; the bootstrap's draws depend on it.
        kind: classification, regression, pairs, similarity, clustering, retrieval, neighbours, perceptron, generation.
        domain: "in" or "out" of the training corpus's domain, None where the distinction makes no sense.
        items: name of the test items, where several tasks of a run are asked about the same; else empty.
    """

    kind: ClassVar[str]
    items: str = ""

    def __init__(self, name: str, domain: str | None = None, seed: int = 0) -> None:
        if domain not in (None, "in", "out"):
            raise DistilvecError(f'domain is "in" or "out", not {domain!r}', where=f"task {name}")
        self.name, self.domain, self.seed = name, domain, seed

    def texts(self) -> list[str]:
        """All texts it will encode, distinct."""
        return distinct(*self.test_items())

    @abstractmethod
    def score(self, encode: Encode) -> Score:
        """Score an encoder: texts -> [n, width]."""

    def check(self, encode: Encode) -> None:  # noqa: B027 - most tasks can ask any encoder
        """Refuse, before anything is encoded, an encoder that cannot be scored.

        Raises:
            DistilvecError: why.
        """

    def settle(self, teacher: Encode) -> None:  # noqa: B027 - most tasks know their answers
        """Told the teacher's encoder before anything is scored, where there is a teacher: some truths are its own."""

    @abstractmethod
    def test_items(self) -> Sequence[tuple[str, ...]]:
        """The texts of every test item, in the order of `Score.outputs`."""

    def without(self, score: Score, texts: Iterable[str]) -> Score:
        """The score on the test items none of whose texts is in `texts` (compared as `Corpus.overlap` does).

        Nothing is encoded or fitted again: the metric is recomputed from the score's per-item results. A
        clustering keeps the clusters that were found with all items.

        Raises:
            DistilvecError: every item is left out, or the score keeps no per-item results.
        """
        keep = self.keep(texts)
        if score.outputs is None or len(score.outputs) != len(keep):
            raise DistilvecError("this score has not the per-item results of this task", where=f"task {self.name}")
        if not keep.any():
            raise DistilvecError(f"all {len(keep)} test items are left out", where=f"task {self.name}")
        return self._scored(score.outputs.take(keep), {"left_out": int((~keep).sum())})

    def keep(self, texts: Iterable[str]) -> npt.NDArray[np.bool_]:
        """bool [n]: test items none of whose texts is in `texts`, without case and surrounding white space; of a joint
        pair among these each of the two is one.
        """
        seen = folded_parts(texts)
        return np.array([not any(folded(t) in seen for t in item) for item in self.test_items()], dtype=bool)

    def _scored(self, outputs: Outputs, details: dict[str, Any]) -> Score:
        from distilvec.judging.bootstrap import make_score

        return make_score(
            task=self.name,
            kind=self.kind,
            domain=self.domain,
            outputs=outputs,
            details=details,
            seed=self.seed,
            items=self.items,
        )


def folded_parts(texts: Iterable[str]) -> set[str]:
    """Texts, and the two of each joint pair, without case and surrounding white space: as `Corpus.overlap` compares."""
    return {folded(part) for text in texts for part in (text, *text.split(PAIR))}


def sampled(items: Sequence[T], limit: int | None, generator: np.random.Generator) -> list[T]:
    """At most `limit` of the items, drawn without replacement, in their order; all where None."""
    if limit is None or len(items) <= limit:
        return list(items)
    return [items[row] for row in np.sort(generator.choice(len(items), limit, replace=False)).tolist()]


def settle_tasks(tasks: Sequence[JudgingTask], teacher: Encode) -> None:
    for task in tasks:
        task.settle(teacher)


def check_tasks(tasks: Sequence[JudgingTask], encode: Encode) -> None:
    """See that all tasks can score an encoder, before the first of them has cost time."""
    for task in tasks:
        if isinstance(task, JudgingTask):  # whatever has `score` and `texts` serves as a task too
            task.check(encode)


def same_length(name: str, **columns: Sequence[Any] | None) -> None:
    """Refuse columns of different lengths, or empty ones."""
    lengths = {key: len(column) for key, column in columns.items() if column is not None}
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        shown = ", ".join(f"{key} {length}" for key, length in lengths.items())
        raise DistilvecError(f"columns have to be as long as each other and not empty: {shown}", where=f"task {name}")


def distinct(*columns: Iterable[str]) -> list[str]:
    """Texts in order of first appearance."""
    return list(dict.fromkeys(text for column in columns for text in column))


def known_items(name: str, train: Iterable[str], test: Sequence[str]) -> int:
    """Count the test items of a probe that are also training items; log a warning if they are over one in a hundred."""
    learnt = set(train)
    known = sum(item in learnt for item in test)
    if known > _KNOWN * len(test):
        logger.warning(
            "task %s: %d of %d test items are among the training items, so the score flatters. Remove them from one "
            "of the two.",
            name,
            known,
            len(test),
        )
    return known


def cosines(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Cosine of each row pair, float64 [n]; 0 where a vector is zero; computed block by block."""
    found = np.zeros(len(left))
    for start in range(0, len(left), _BLOCK):
        a, b = (np.asarray(side[start : start + _BLOCK], np.float64) for side in (left, right))
        length = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        np.divide(np.einsum("ij,ij->i", a, b), length, out=found[start : start + _BLOCK], where=length > 0)
    return found


def unit(vectors: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Rows scaled to length one; a zero row stays zero."""
    vectors = np.asarray(vectors, dtype=np.float32)
    with np.errstate(over="ignore", under="ignore"):
        length = np.linalg.norm(vectors, axis=1, keepdims=True)
    odd = ~np.isfinite(length[:, 0]) | (length[:, 0] < 1e-18)  # where squares leave the range of float32
    if odd.any():
        largest = np.abs(vectors[odd]).max(axis=1, keepdims=True, initial=0)
        vectors = vectors.copy()
        vectors[odd] = np.divide(vectors[odd], largest, out=np.zeros_like(vectors[odd]), where=largest > 0)
        length[odd] = np.linalg.norm(vectors[odd], axis=1, keepdims=True)
    return np.asarray(np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0))


def side(encode: Encode, name: str) -> Callable[[Sequence[str]], npt.NDArray[Any]]:
    """The encoder's query or document side where it has one, else the encoder itself."""
    encoder: Callable[[Sequence[str]], npt.NDArray[Any]] = getattr(encode, name, encode)
    return encoder


def unique(tasks: Sequence[JudgingTask]) -> None:
    """Refuse two tasks of one name: scores are kept by name."""
    names = [task.name for task in tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DistilvecError(f"two tasks have the same name: {', '.join(twice)}", remedy="Give each its own name.")


def top_rows(queries: npt.NDArray[Any], documents: npt.NDArray[Any], depth: int) -> npt.NDArray[np.int64]:
    """Rows of the `depth` documents with the highest dot product, best first, [queries, min(depth,
    documents)].

    Equal products are ordered by row, so that the result does not depend on the machine's sorting.
    """
    depth = min(depth, len(documents))
    chunk = max(1, 20_000_000 // len(documents))
    best = np.empty((len(queries), depth), dtype=np.int64)
    for start in range(0, len(queries), chunk):
        products = queries[start : start + chunk] @ documents.T
        rows = np.sort(np.argpartition(-products, depth - 1, axis=1)[:, :depth], axis=1)
        order = np.argsort(-np.take_along_axis(products, rows, axis=1), axis=1, kind="stable")
        best[start : start + chunk] = np.take_along_axis(rows, order, axis=1)
    return best


def nearest_others(queries: npt.NDArray[Any], documents: npt.NDArray[Any], depth: int) -> npt.NDArray[np.int64]:
    """As `top_rows`, without the document in a query's own row, [queries, depth]; depth < documents."""
    ranked = top_rows(queries, documents, depth + 1)
    itself = ranked == np.arange(len(ranked))[:, None]
    itself[~itself.any(1), -1] = True  # it may be far down, or crowded out by equal vectors
    return ranked[~itself].reshape(len(ranked), -1)


def overlap(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> float:
    """Mean share of the rows [q, k] of one search that another one finds, in [0, 1]."""
    return float((first[:, :, None] == second[:, None, :]).any(axis=2).mean())
