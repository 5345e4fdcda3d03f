"""The sections of a recipe on scorers and on mining."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_serializer, field_validator

from distilvec.recipe.sections import CorpusSection
from distilvec.teachers.sections import NAME, Asked, ModelSource, Place, name_of_function
from distilvec.validation import Section, union_of


class ScorerSection(Section):
    """Keys of every kind of scorer, which judges a query and a document."""

    name: str = Field("scorer", pattern=NAME.pattern)


class ModelScorerSection(ModelSource, ScorerSection):
    """A model that reads query and document together."""

    model: Place = Field(
        description="folder or hub id of a cross-encoder, or of what `distilvec finetune` made on pairs"
    )
    label: str | None = Field(
        None, description="of a model with classes: the class whose log-odds are the score; null = the last of two"
    )
    max_length: int | None = Field(None, gt=0, description="tokens of a pair; null = the model's own")
    batch_size: int = Field(64, gt=0, description="pairs per forward pass")


class CallScorerSection(Asked, ScorerSection):
    """A function; it may ask a paid service."""

    call: str | Callable[[list[tuple[str, str]]], Any] = Field(
        description="module:function from a list of (query, document) to as many numbers"
    )

    @field_serializer("call", when_used="json")
    def _name_the_function(self, call: Any) -> str | None:
        return name_of_function(call)


class TableScorerSection(ScorerSection):
    """Scores that were made elsewhere."""

    scores: Place = Field(description="table with the columns query, document and score")


#: The key that names a kind of scorer in a recipe -> its section; `scorers.load` opens it.
SCORERS: dict[str, type[ScorerSection]] = {
    "model": ModelScorerSection,
    "call": CallScorerSection,
    "scores": TableScorerSection,
}
if TYPE_CHECKING:
    AnyScorer = ScorerSection
else:
    AnyScorer = union_of(SCORERS)


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
