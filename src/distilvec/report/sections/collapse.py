"""Signs that a space has collapsed."""

from __future__ import annotations

from typing import Any, Self

from distilvec.report.sections.base import Block, Data, Heading, Outcome, Text, table
from distilvec.words import number, share


class Collapse(Data):
    """Model -> what `judging.collapse` returns."""

    signs: dict[str, dict[str, Any]]

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        return cls(signs=outcome.verdict.collapse) if outcome.verdict.collapse else None

    def blocks(self) -> list[Block]:
        text = (
            "A space has collapsed if all texts are alike (mean cosine near 1) or few directions carry all differences "
            "(low effective rank). Hubness above 10: a few texts are near all others."
        )
        header = ["model", self.about("mean cosine of two texts"), "effective rank", "of the possible", "hubness"]
        shown = {"mean_cosine": number, "effective_rank": number, "rank_share": share, "hubness": number}
        rows = [[name, *(say(signs.get(key)) for key, say in shown.items())] for name, signs in self.signs.items()]
        return [Heading("Is the space in use?"), Text(self.about(text), "lead"), table(header, rows, kind="")]
