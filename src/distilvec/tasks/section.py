"""The recipe's section on a supervised task. Reading a recipe takes no torch, so nothing heavy is imported here."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal["classification", "pairs", "similarity"]


class TaskSection(BaseModel):
    """A supervised task beside the distillation: L = alpha * task + (1 - alpha) * distillation."""

    model_config = ConfigDict(extra="forbid", validate_default=True)

    kind: Kind = Field(description="classification of texts, classification of pairs, or similarity of pairs")
    label: str | None = Field(None, description="column with class names or scores; null = corpus.label")
    alpha: float = Field(0.5, ge=0, le=1, description="weight of the task's loss; distillation has the rest")
    encoding: Literal["joint", "separate"] | None = Field(
        None,
        description="of pairs: both texts as one input (joint, the default), or one after the other (separate: "
        "classes from [u, v, |u-v|, u*v], similarity is the cosine)",
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="of what the classifier reads, while it is trained: 0.1 is what BERT's own classifiers have",
    )
    validation: str | None = Field(
        None, description="labelled file, scored while training; training.best: task_accuracy"
    )
    test: str | None = Field(None, description="labelled file, scored once, at the end")

    @model_validator(mode="after")
    def _pairs_have_an_encoding(self) -> TaskSection:
        if self.kind == "classification" and self.encoding is not None:
            raise ValueError("encoding is for pairs of texts: kind pairs or similarity")
        if self.kind != "classification" and self.encoding is None:
            self.__dict__["encoding"] = "joint"
        if self.dropout and self.kind == "similarity" and self.encoding == "separate":
            raise ValueError("the cosine of two vectors has no classifier for dropout to stand before")
        return self

    @property
    def paired(self) -> bool:
        """Whether an item is a pair of texts, so that the corpus has two text columns."""
        return self.kind != "classification"

    @property
    def joint(self) -> bool:
        """Whether `read_corpus` has to make one item of a pair."""
        return self.encoding == "joint"
