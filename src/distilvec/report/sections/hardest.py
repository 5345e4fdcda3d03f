"""The held-out items on which student and teacher disagree most."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from distilvec.judging import HardItem
from distilvec.report.grid import LONGEST
from distilvec.report.sections.base import Block, Data, Heading, Outcome, Text, clip, table
from distilvec.words import share


class Hardest(Data):
    """The hardest first, as people read them: images by their paths or numbers, not by their data."""

    texts: list[HardItem]

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        held_out, kind = outcome.texts(), outcome.corpus.kind
        found = []
        for each in outcome.verdict.hardest:
            text, teacher, student = kind.shown([each.text, each.teacher, each.student], held_out)
            found.append(replace(each, text=text, teacher=teacher, student=student))
        return cls(texts=found) if found else None

    def blocks(self) -> list[Block]:
        rows = [
            [clip(each.text, LONGEST), share(each.overlap), clip(each.teacher, LONGEST), clip(each.student, LONGEST)]
            for each in self.texts
        ]
        header = [self.items.removesuffix("s"), "shared neighbours", "nearest to the teacher", "nearest to the student"]
        lead = f"Held-out {self.items} whose nearest neighbours differ most between student and teacher."
        return [Heading("Where they differ most"), Text(lead), table(header, rows, kind="texts hardest")]
