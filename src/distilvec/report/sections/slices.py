"""The kinds of held-out items that the student knows less well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from distilvec.judging import TRAINED, Slice, item_masks, slices
from distilvec.judging.slices import OTHER_PIECES, RARE_PIECE
from distilvec.report.grid import LONGEST
from distilvec.report.sections.base import Block, Bullets, Data, Heading, Outcome, Text, clip, table
from distilvec.words import share


class Slices(Data):
    """The kinds of items, and what helps with those that are below the others."""

    slices: list[Slice]
    remedies: list[str]

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        first, section = outcome.first, outcome.recipe.student
        teacher, student = outcome.vectors(outcome.teacher_name), outcome.vectors(TRAINED)
        if first is None or teacher is None or student is None:
            return None
        tokenizers = [getattr(model, "tokenizer", None) for model in (outcome.shipped, first.teacher.model)]
        found = slices(item_masks(outcome.corpus, outcome.held_out, *tokenizers), teacher, student)
        made = {} if section is None else section.model_dump(mode="json")
        return cls(slices=found, remedies=remedies(found, made)) if found else None

    def blocks(self) -> list[Block]:
        behind = any(each.behind for each in self.slices)
        header = [self.items, "share", "nearest neighbours found", "95 %", "by all others", *([""] if behind else [])]
        rows = []
        for each in self.slices:
            row = [clip(f"{self.items} {each.name}", LONGEST), share(each.share), share(each.neighbours)]
            row += [f"{share(each.low)} to {share(each.high)}", share(each.others)]
            rows.append(row + (["below the others" if each.behind else ""] if behind else []))
        lead = f"How many of the teacher's nearest neighbours the student finds, by kind of held-out {self.items}."
        lead += "" if behind else f" No kind of {self.items} is below the others by more than chance."
        found: list[Block] = [Heading(self.about("Which texts it knows less well")), Text(lead), table(header, rows)]
        return [*found, Bullets(self.remedies)] if self.remedies else found


def remedies(found: Sequence[Slice], student: Mapping[str, Any]) -> list[str]:
    """Return what helps with the kinds of items that are below the others; `student` is the recipe's section."""
    behind = [each.name for each in found if each.behind]
    helps = []
    if any(name.startswith(OTHER_PIECES) for name in behind):
        key = next((key for key in ("shrink", "static") if (student.get(key) or {}).get("vocabulary")), None)
        larger = "a student with a larger vocabulary" if key is None else f"a larger student.{key}.vocabulary"
        rank = ", at a lower rank of the table" if key == "shrink" and student["shrink"].get("embedding") else ""
        helps.append(f"Other pieces than the teacher's: {larger}{rank}.")
    if any(name.startswith(RARE_PIECE) for name in behind):
        helps.append("Rare words: more texts with such words in the corpus.")
    return helps
