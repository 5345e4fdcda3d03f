"""The base of the report's sections: data that is measured once, kept in the record, and shown as blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from distilvec.report.blocks import Block, Bullets, Cards, Heading, Listing, Picture, Table, Text, facts, table
from distilvec.report.data import RecordPart, about, clip, short_source
from distilvec.report.outcome import Outcome, TaughtTeacher

#: With these a section's file needs one import of the report.
__all__ = ["Block", "Bullets", "Cards", "Data", "Heading", "Listing", "Outcome", "Picture", "RecordPart", "Table"]
__all__ += ["TaughtTeacher", "Text", "clip", "facts", "short_source", "table"]


class Data(RecordPart):
    """Base of all sections. `items` is the report's word for what the corpus holds."""

    items: str = "texts"

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        """Measure a finished run; None if there is nothing to say."""
        raise NotImplementedError

    def blocks(self) -> Sequence[Block]:
        raise NotImplementedError

    def about(self, sentence: str) -> str:
        """A sentence about texts, in the word for this corpus' items."""
        return about(self.items, sentence)
