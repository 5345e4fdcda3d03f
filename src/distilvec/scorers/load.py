"""The kinds of scorers, opened."""

from __future__ import annotations

from typing import Any

from distilvec.recipe.sections import (
    SCORERS,
    CallScorerSection,
    ModelScorerSection,
    ScorerSection,
    TableScorerSection,
)
from distilvec.scorers.base import Scorer
from distilvec.validation import chosen


def load_scorer(*, device: str | None = None, **section: Any) -> Scorer:
    """Open a scorer from the keys that a recipe's section has: `load_scorer(model="folder")`.

    Args:
        device: of a model, None = the best there is.

    Raises:
        DistilvecError: not exactly one kind, a key that it does not have, no such model or function.
        DataError: damaged weights, a table without its columns or with numbers that are not finite.
        EnvironmentProblem: the hub cannot be reached, or a function fails again and again.
    """
    return open_scorer(chosen(SCORERS, section, str(section.get("name", "scorer"))), device)


def open_scorer(section: ScorerSection, device: str | None = None) -> Scorer:
    """The scorer of a section; errors as of `load_scorer`."""
    if isinstance(section, ModelScorerSection):
        from distilvec.scorers.model import ModelScorer

        return ModelScorer(section, device)
    if isinstance(section, CallScorerSection):
        from distilvec.scorers.callable import CallScorer

        return CallScorer(section)
    from distilvec.scorers.score_file import TableScorer

    assert isinstance(section, TableScorerSection)
    return TableScorer(section.scores, name=section.name)
