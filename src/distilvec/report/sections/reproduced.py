"""Reproduction of each teacher on held-out items: the terms of the loss there."""

from __future__ import annotations

from typing import Self

from distilvec.report.sections.base import Block, Data, Outcome, table
from distilvec.words import number

_COLUMNS = {
    "explained": "variance explained",
    "calibration": "calibration (1 is right)",
    "nll": "nll per coordinate",
    "squared_error": "squared error",
    "cosine": "cosine distance",
}


class Reproduced(Data):
    """`terms`: term -> its mean over held-out items after training; of several teachers "TERM:TEACHER"."""

    terms: dict[str, float]
    teachers: list[str]

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        terms = outcome.fitted.held_out
        return cls(terms=terms, teachers=outcome.teacher_names) if terms else None

    def blocks(self) -> list[Block]:
        """One row per teacher, one column per term of its own; nothing if the method explains no variance."""
        shown = [term for term in _COLUMNS if any(self._value(term, name) is not None for name in self.teachers)]
        if "explained" not in shown:
            return []
        rows = [[name, *(number(self._value(term, name)) for term in shown)] for name in self.teachers]
        header = ["teacher", *(_COLUMNS[term] for term in shown)]
        return [table(header, rows, title=f"Each teacher, on held-out {self.items}", brief=True)]

    def _value(self, term: str, name: str) -> float | None:
        # The likelihood itself, if the loss is a weighted one.
        terms = ("plain_nll", "nll") if term == "nll" else (term,)
        values = (self.terms.get(each if len(self.teachers) == 1 else f"{each}:{name}") for each in terms)
        return next((one for one in values if one is not None), None)
