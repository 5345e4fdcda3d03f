"""Retrieval on an unlabelled corpus: the teacher's nearest neighbours are what should be found."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.corpus.keys import canonical
from distilvec.errors import DataError, DistilvecError
from distilvec.judging.encoder import CachedEncoder, Encode
from distilvec.judging.retrieval import DEPTH, RetrievalTask
from distilvec.judging.scores import Score
from distilvec.judging.tasks import distinct, sampled, side, top_rows, unit


class NeighbourTask(RetrievalTask):
    """nDCG@10 of a search whose right answers are the documents that the teacher finds first.

    It says whether a student's search would show what the teacher's shows, on texts that nobody has judged. It cannot
    say which of the two is right where they differ: a student better than its teacher loses here.

    Args:
        documents: of the corpus; equal ones are one.
        queries: a log of real ones; None = documents, each of which looks for the others.
        teacher: folder or hub id of the model whose search is the truth; None = the run's teacher (`settle`).
        depth: how many of the teacher's first documents are right, all alike; at most 100.
        max_items: cap on the documents, a seeded sample.
        max_queries: cap on the queries, a seeded sample.

    Attributes:
        teacher_texts: text -> what the teacher reads in its place, where that is another text.

    Raises:
        DataError: fewer documents than `depth` and one more.
        DistilvecError: a depth of less than 1, or of more than 100.
    """

    kind = "neighbours"
    teacher_texts: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        name: str,
        documents: Sequence[str],
        queries: Sequence[str] | None = None,
        *,
        teacher: str | None = None,
        depth: int = 10,
        max_items: int | None = None,
        max_queries: int = 500,
        domain: str | None = None,
        seed: int = 0,
    ) -> None:
        if not 0 < depth <= DEPTH:
            raise DistilvecError(f"a depth of {depth} is not 1 to {DEPTH}", where=f"task {name}")
        generator = np.random.default_rng(seed)
        kept = sampled(distinct(documents), max_items, generator)
        if len(kept) <= depth:
            raise DataError(
                f"{len(kept)} different documents are too few to look for {depth} of them", where=f"task {name}"
            )
        asked = sampled(distinct(kept if queries is None else queries), max_queries, generator)
        rows = {canonical(text): row for row, text in enumerate(kept)}
        # A query that is a document finds itself first in every model: that says nothing.
        itself = [rows.get(canonical(text), -1) for text in asked]
        pending = {row: {0: 1.0} for row in range(len(asked))}
        super().__init__(name, asked, kept, pending, domain=domain, seed=seed, own=itself)
        self.teacher, self.depth, self._settled = teacher, depth, False

    def settle(self, teacher: Encode) -> None:
        if self._settled or self.teacher is not None:
            return
        self._take_truth(teacher)

    @property
    def found(self) -> list[list[int]] | None:
        """Per query the rows of the documents that are right; None before a teacher has said so."""
        return [sorted(each) for each in self.relevance] if self._settled else None

    def remember(self, found: Sequence[Sequence[int]]) -> None:
        """Take what a teacher found earlier: on another machine it may round otherwise, and find another tenth."""
        if len(found) != len(self.relevance):
            raise DataError(f"{len(found)} queries were asked, not {len(self.relevance)}", where=f"task {self.name}")
        self.relevance = [{int(row): 1.0 for row in rows} for rows in found]
        self._bm25, self._settled = None, True

    def check(self, encode: Encode) -> None:
        if not self._settled and self.teacher is None:
            raise DistilvecError(
                "the teacher's nearest neighbours are what should be found here, and there is no teacher",
                where=f"task {self.name}",
                remedy="Name one in the task: teacher: FOLDER.",
            )

    def score(self, encode: Encode) -> Score:
        """Score an encoder.

        Raises:
            DistilvecError: there is no teacher to say what is right.
        """
        self.check(encode)
        if not self._settled and self.teacher is not None:
            from distilvec.teachers import load_teacher

            self._take_truth(CachedEncoder(load_teacher(model=self.teacher), name=self.teacher))
        return super().score(encode)

    def _truth(self) -> npt.NDArray[Any]:
        """[queries], a check sum of what is right, which another teacher would say otherwise."""
        return np.array([zlib.crc32(repr(sorted(each)).encode()) for each in self.relevance], dtype=np.int64)

    def _take_truth(self, teacher: Encode) -> None:
        documents, queries = (
            unit(side(teacher, kind)([self.teacher_texts.get(text, text) for text in texts]))
            for kind, texts in (("document", self.documents), ("query", self.queries))
        )
        first = self.without_own(top_rows(queries, documents, self._depth))[:, : self.depth]
        self.relevance = [{int(row): 1.0 for row in nearest if row >= 0} for nearest in first]
        self._bm25, self._settled = None, True
