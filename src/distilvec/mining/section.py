"""The recipe's section on mining. Reading a recipe takes no torch, so nothing heavy is imported here."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from distilvec.sections import CorpusSection, Section


class MiningSection(Section):
    """Hard negatives from the first teacher's vectors; similarity is the cosine."""

    documents: CorpusSection | None = Field(
        None, description="further documents beside the corpus' own: a file, or a corpus section"
    )
    negatives: int = Field(5, gt=0, le=100, description="how many a pair gets at most")
    ranks: tuple[int, int] = Field(
        (1, 100), description="first and last rank of the nearest documents that may be negatives; the nearest is 1"
    )
    absolute_margin: float | None = Field(
        None, ge=0, le=2, description="a negative's similarity is at most the positive's less this"
    )
    relative_margin: float | None = Field(
        0.05, ge=0, le=1, description="a negative's similarity is at most the positive's less this share of it"
    )
    max_score: float | None = Field(None, ge=-1, le=1, description="a negative's similarity is at most this")
    duplicates: float | None = Field(
        0.97,
        ge=-1,
        le=1,
        description="what resembles a positive more than this is no negative; null = only equal texts",
    )
    random: float = Field(0.0, ge=0, le=1, description="share of the negatives drawn from all documents")

    @field_validator("documents", mode="before")
    @classmethod
    def _short(cls, given: Any) -> Any:
        return {"path": given} if isinstance(given, str) else given

    @field_validator("ranks")
    @classmethod
    def _in_order(cls, ranks: tuple[int, int]) -> tuple[int, int]:
        first, last = ranks
        if not 1 <= first <= last <= 10_000:
            raise ValueError("ranks are a first and a last, from 1 to 10,000")
        return ranks
