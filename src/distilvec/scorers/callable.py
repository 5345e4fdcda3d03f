"""A function as a scorer, such as a client of a paid service."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from distilvec.corpus.keys import join_pair
from distilvec.errors import DataError
from distilvec.recipe import CallScorerSection
from distilvec.scorers.base import Scorer, parted
from distilvec.teachers.callable import CallTeacher
from distilvec.teachers.sections import CallSection, Reading


class CallScorer(CallTeacher, Scorer):
    """A function from a list of (query, document) to as many numbers; None or NaN where it has none.

    Patience and rate limit are those of `CallTeacher`.
    """

    _knows_all = False  # a log of clicks has nothing to say of pairs that nobody saw
    _probe = join_pair("a query", "a document")
    _given = "one list of pairs, (query, document)"

    def __init__(self, section: CallScorerSection) -> None:
        super().__init__(CallSection.model_construct(**dict(section)), Reading())
        self.card = replace(self.card, kind="scorer", normalized=None)

    def _patiently(self, texts: list[str]) -> Any:
        return super()._patiently(parted(texts))  # type: ignore[arg-type]

    def _checked(self, answer: Any, texts: list[str]) -> np.ndarray:
        try:
            if isinstance(answer, list | tuple):
                answer = [np.nan if score is None else score for score in answer]
            scores = np.asarray(answer, dtype=np.float32)
        except (TypeError, ValueError, RuntimeError, OverflowError) as problem:  # RuntimeError: tensors with gradients
            raise DataError(
                f"{len(texts)} numbers were expected, found {type(answer).__name__}: {problem}", where=self._where
            ) from problem
        if scores.shape not in ((len(texts),), (len(texts), 1)):
            raise DataError(
                f"expected one number for each of {len(texts)} pairs, found {list(scores.shape)}",
                where=self._where,
                remedy="The function must return one number per (query, document), in their order.",
            )
        return super()._checked(scores.reshape(-1, 1), texts)
