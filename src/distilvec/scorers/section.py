"""The recipe's section on a scorer. Reading a recipe takes no torch, so nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field, field_serializer, model_validator

from distilvec.sections import NAME, Section, name_of_function


class ScorerSection(Section):
    """What judges a query and a document: a model that reads both, a function, or scores made elsewhere."""

    name: str = Field("scorer", pattern=NAME.pattern)
    model: str | None = Field(
        None, description="folder or hub id of a cross-encoder, or of what `distilvec finetune` made on pairs"
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
        return self

    @field_serializer("call", when_used="json")
    def _name_the_function(self, call: Any) -> str | None:
        return name_of_function(call)
