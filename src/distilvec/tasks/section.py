"""The recipe's section on a supervised task. Reading a recipe takes no torch, so nothing heavy is imported here."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal["classification", "pairs", "similarity", "generation"]


class TaskSection(BaseModel):
    """A supervised task beside the distillation: L = alpha * task + (1 - alpha) * distillation."""

    model_config = ConfigDict(extra="forbid", validate_default=True)

    kind: Kind = Field(
        description="classification of texts, classification of pairs, similarity of pairs, or generation: writing the "
        "answer (the second text) to a prompt (the first)"
    )
    label: str | None = Field(None, description="column with class names or scores; null = corpus.label")
    alpha: float = Field(0.5, ge=0, le=1, description="weight of the task's loss; distillation has the rest")
    labels_first: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the training, from its start, in which the labels teach alone: distillation that does "
        "not know which class is which (uld, multilevel_ot) needs a student that does",
    )
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
        None, description="labelled file, scored while training; training.best: task_accuracy (task_likelihood)"
    )
    test: str | None = Field(None, description="labelled file, scored once, at the end")
    separator: str | None = Field(
        None, max_length=100, description="generation: text between prompt and answer; null = a line end"
    )
    longest: int | None = Field(
        None, ge=1, le=4096, description="generation: tokens of a written answer, at most; null = 64"
    )
    samples: int | None = Field(
        None, ge=0, le=100, description="generation: answers that are drawn for each prompt, one seed each; null = 3"
    )

    @model_validator(mode="after")
    def _pairs_have_an_encoding(self) -> TaskSection:
        if self.kind == "classification" and self.encoding is not None:
            raise ValueError("encoding is for pairs of texts: kind pairs or similarity")
        if self.kind != "classification" and self.encoding is None:
            self.__dict__["encoding"] = "joint"
        if self.kind == "generation":
            self._writes()
        elif any(value is not None for value in (self.separator, self.longest, self.samples)):
            raise ValueError("separator, longest and samples are for kind generation")
        if self.dropout and self.kind == "similarity" and self.encoding == "separate":
            raise ValueError("the cosine of two vectors has no classifier for dropout to stand before")
        return self

    def _writes(self) -> None:
        if self.encoding == "separate" or self.label is not None or self.dropout:
            raise ValueError("generation has no labels, no dropout before a classifier, and reads both texts as one")
        for name, value in (("separator", "\n"), ("longest", 64), ("samples", 3)):
            if getattr(self, name) is None:
                self.__dict__[name] = value

    @property
    def items(self) -> str | None:
        """The kind that this task makes of a corpus' pairs of texts; None = what they are."""
        return "writing" if self.writes else None

    @property
    def writes(self) -> bool:
        return self.kind == "generation"

    @property
    def paired(self) -> bool:
        """Tell whether an item is a pair of texts, so that the corpus has two text columns."""
        return self.kind != "classification"

    @property
    def joint(self) -> bool:
        """Tell whether `read_corpus` has to make one item of a pair."""
        return self.encoding == "joint"


def check_writing(recipe: Any) -> None:
    """Refuse keys of a recipe that mean nothing where a student is to write."""
    task = "a task of kind generation"
    if recipe.student is not None:
        _check_student(recipe.student, task)
    if recipe.scorers:
        raise ValueError(f"scorers: methods on scores are not for {task}")
    if recipe.combine != "separate":
        raise ValueError(f"combine: teachers of {task} are separate")
    if recipe.training.mini_batch_size is not None:
        raise ValueError(f"training.mini_batch_size: gradient caching keeps no tokens, so it is not for {task}")
    if recipe.judging.compression:
        raise ValueError(f"judging.compression: not for {task}")
    for teacher in recipe.teachers:
        if not teacher.has_tokens:
            raise ValueError(f"teachers: a teacher of {task} is a causal language model: give its model")


def _check_student(student: Any, task: str) -> None:
    if student.model is None:
        raise ValueError(f"student: {task} needs a causal language model: give student.model")
    for name in (
        "upcycle",
        "aggregation",
        "router_balance",
        "remember",
        "interpolate",
        "fold",
        "router",
        "extend_length",
        "lora",
    ):
        if getattr(student, name):
            raise ValueError(f"student.{name}: not for {task}")
    if student.pooling == "cls":
        raise ValueError("student.pooling: of a model that writes it is last or mean, of the answer's tokens")
    if student.space == "teacher":
        raise ValueError(f"student.space: the student of {task} is no embedder")
