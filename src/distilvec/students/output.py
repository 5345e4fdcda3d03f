"""The outputs of the student for the items of one batch, in one forward pass for all views."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from distilvec.alignment.pieces import Pieces

#: Names of extras that are vectors of the student.
VECTORS = ("expert_outputs",)


@dataclass
class StudentOutput:
    """One student forward.

    Attributes:
        embedding: [V, B, d], what `encode()` would return, before any final Normalize.
        layers: [V, L, B, d] pooled states of blocks 1..L with the student's own pooling; None where not asked.
        tokens: layer -> [V, B, S, d].
        attention: layer -> [V, B, S, S], averaged over heads.
        mask: bool [B, S], True = not padding.
        content: bool [B, S], True = neither padding nor a special token.
        extras: what attached modules leave in the features, [V, B, ...] each; those in `VECTORS` end in the width of
            `embedding`, and their first numbers belong to its first.
        logits: [V, B, C], what the task's head makes of `embedding`; None without a task.
    """

    embedding: Tensor
    layers: Tensor | None = None
    tokens: dict[int, Tensor] = field(default_factory=dict)
    attention: dict[int, Tensor] = field(default_factory=dict)
    mask: Tensor | None = None
    content: Tensor | None = None
    extras: dict[str, Tensor] = field(default_factory=dict)
    logits: Tensor | None = None

    @property
    def views(self) -> int:
        return self.embedding.shape[0]


@dataclass(frozen=True)
class StudentInfo:
    """The facts about the student that a method may know before it sees a batch.

    Attributes:
        name: model id or folder name.
        width: d, the width of `StudentOutput.embedding`.
        layers: L, the number of transformer blocks; None where the student has none (static embeddings).
        hidden: width of the blocks' states of a token (equal to `width` unless a Dense follows the pooling, or it
            pools in several ways).
        classes: C of the task's head; None without a classification task.
        regression: whether the task's head gives one number.
        pieces: entries of its tokenizer, of a student that writes; None otherwise.
        ranks: whether it is a cross-encoder, whose vector is one number: of a document, read with its query.
    """

    name: str
    width: int
    layers: int | None
    hidden: int
    classes: int | None = None
    regression: bool = False
    pieces: Pieces | None = None
    ranks: bool = False
