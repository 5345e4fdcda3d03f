"""Scores of the recipe's supervised task, by the models' own heads."""

from __future__ import annotations

from typing import Self

from distilvec.report.sections.base import Block, Data, Outcome, table
from distilvec.words import points


class Supervised(Data):
    """Model -> metric -> value on the task's test file."""

    scores: dict[str, dict[str, float]]

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        return cls(scores=outcome.supervised) if outcome.supervised else None

    def blocks(self) -> list[Block]:
        metrics = list(dict.fromkeys(name for scores in self.scores.values() for name in scores))
        rows = [[model, *(points(scores.get(name)) for name in metrics)] for model, scores in self.scores.items()]
        header = ["model", *(name.replace("_", " ") for name in metrics)]
        return [table(header, rows, title="The supervised task, on its test file", brief=True)]
