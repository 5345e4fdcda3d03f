"""One text as the tokenizers of student and teacher cut it, and which tokens are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from distilvec.alignment.drawing import DrawnText, align_text, alignment_figure
from distilvec.alignment.loading import unlimited
from distilvec.alignment.pieces import ENDS
from distilvec.corpus.keys import split_pair
from distilvec.report.sections.base import Block, Data, Heading, Outcome, Picture
from distilvec.report.sections.tokens import example_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Alignment(Data):
    name: str = "the teacher"
    drawn: DrawnText

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        """Align one text as the method sees its tokens; None if it does not."""
        asked = next((each for each in outcome.taught if each.wanted.alignment), None)
        if asked is None or outcome.trained is None:
            return None
        models: list[Any] = [outcome.shipped, asked.teacher.model]  # that aligns tokens, so it has one
        tokenizers = [unlimited(model.tokenizer.backend_tokenizer) for model in models]
        mode = next((each for each in asked.wanted.alignment if each != ENDS), "strict")
        drawn = align_text(split_pair(example_text(outcome.corpus)), tokenizers[0], tokenizers[1], mode)
        return cls(name=asked.teacher.card.name, drawn=drawn)

    def blocks(self) -> list[Block]:
        teacher = "the teacher" if self.name == "teacher" else self.name
        caption = f"One text as the student's tokenizer and {teacher}'s cut it; blue pairs are compared."
        return [Heading("Token by token"), Picture("alignment", caption, self.figure)]

    def figure(self) -> Figure:
        return alignment_figure(self.drawn)
