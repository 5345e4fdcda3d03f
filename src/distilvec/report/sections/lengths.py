"""How long the held-out items are."""

from __future__ import annotations

from statistics import median
from typing import Self

from distilvec.report.sections.base import Block, Data, Heading, Outcome, facts


class Lengths(Data):
    """Characters of the median and of the longest item."""

    middle: float
    longest: int

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        lengths = [len(text) for text in outcome.texts()]
        return cls(middle=median(lengths), longest=max(lengths)) if lengths else None

    def blocks(self) -> list[Block]:
        lines = (("median", f"{self.middle:.0f} characters"), ("longest", f"{self.longest:,} characters"))
        return [Heading(self.about("How long the held-out texts are")), facts(*lines)]
