"""Agreement: how much of the first teacher's view of the held-out items the student shares."""

from __future__ import annotations

from typing import Any, Self

from distilvec.report.sections.base import Block, Data, Outcome, Text, facts
from distilvec.words import points, share

_ORIGINS = {
    "head": "; after the trained linear head, which ships with space: teacher only",
    "space": "; the student lives in the teacher's space",
    "ridge": "; after a ridge map fitted on the other half: what a linear map could reach",
}
_LINES = {
    "cosine": ("mean cosine with the teacher", "1 = same direction"),
    "similarity_spearman": ("order of similarities", "Spearman over pairs of texts: 1 = both rank all pairs alike"),
    "similarity_pearson": ("size of similarities", "Pearson over the same pairs"),
    "neighbours": (
        "shared nearest neighbours",
        "of the teacher's 10 nearest texts, the share that the student has too",
    ),
    "cka": ("linear CKA, debiased", "similarity of the two geometries up to rotation and scale"),
    "index_recall": (
        "on the teacher's index",
        "student's queries against teacher's vectors: share of the 10 nearest found",
    ),
}


class Agreement(Data):
    """`values` is what `judging.agreement` returns; `teachers` are all teachers' names."""

    values: dict[str, Any]
    teachers: list[str]

    @classmethod
    def measure(cls, outcome: Outcome) -> Self | None:
        found = outcome.verdict.agreement
        return cls(values=found, teachers=outcome.teacher_names) if found else None

    def blocks(self) -> list[Block]:
        items = self.values["items"]
        text = (
            f"How much of the teacher's view of the {self.items} the student shares. Measured on {items:,} held-out "
            f"{self.items}, which are not trained on."
        )
        if len(self.teachers) > 1:
            text += f" The teacher here and below is the first, {self.teachers[0]}, unless another is named."
        lines, origin = [], _ORIGINS.get(str(self.values.get("cosine_from")), "")
        for key, (name, meaning) in _LINES.items():
            value = self.values.get(key)
            if value is not None:
                is_share = key in ("neighbours", "index_recall")
                more = by_chance(items, "; ") if is_share else ""
                more += origin if key in ("cosine", "index_recall") else ""
                lines.append((name, share(value) if is_share else f"{value:.3f}", self.about(meaning) + more))
        return [Text(text, "lead"), facts(*lines)]


def by_chance(items: int | None, before: str = "") -> str:
    """Say what share of the ten nearest neighbours is found by chance; among few items that is much."""
    if items is None or items < 2:
        return ""
    return f"{before}by chance {points(min(10, items - 1) / (items - 1))} % among {items:,}"
