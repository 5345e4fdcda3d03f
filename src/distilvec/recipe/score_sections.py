"""The sections of a recipe on scorers and on mining."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field, field_serializer, field_validator, model_validator

from distilvec.recipe.places import at_revision
from distilvec.recipe.sections import NAME, CorpusSection, Section, name_of_function


class ScorerSection(Section):
    """What judges a query and a document: a model that reads both, a function, or scores made elsewhere."""

    name: str = Field("scorer", pattern=NAME.pattern)
    model: str | None = Field(
        None, description="folder or hub id of a cross-encoder, or of what `distilvec finetune` made on pairs"
    )
    revision: str | None = Field(
        None, description="of a hub id: commit, branch or tag; the saved recipe names the commit that was read"
    )
    call: str | Callable[[list[tuple[str, str]]], Any] | None = Field(
        None, description="module:function from a list of (query, document) to as many numbers"
    )
    scores: str | None = Field(None, description="table with the columns query, document and score")
    label: str | None = Field(
        None, description="of a model with classes: the class whose log-odds are the score; null = the last of two"
    )
    max_length: int | None = Field(None, gt=0, description="of a model: tokens of a pair; null = its own")
    batch_size: int = Field(64, gt=0, description="pairs per forward pass or call")
    rate_limit: float | None = Field(None, gt=0, description="of a function: calls per second")
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> ScorerSection:
        if sum(source is not None for source in (self.model, self.call, self.scores)) != 1:
            raise ValueError("give exactly one of model, call and scores")
        if self.revision is not None and self.model is None:
            raise ValueError("revision is of a model of the hub")
        return self

    @property
    def address(self) -> str | None:
        """The model with its revision, as whatever opens models takes it."""
        return None if self.model is None else at_revision(self.model, self.revision)

    @field_serializer("call", when_used="json")
    def _name_the_function(self, call: Any) -> str | None:
        return name_of_function(call)


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
