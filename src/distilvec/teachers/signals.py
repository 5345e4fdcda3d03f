"""What a teacher says about the items of one batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class TeacherSignals:
    """The signals of one teacher for `B` items. Fields that a method did not ask for are None or empty.

    Attributes:
        present: bool [B], False where this teacher has nothing for the item. Such rows hold zeros elsewhere.
        sentence: [B, D] sentence vectors as the teacher gives them, float32.
        tokens: layer -> [B, T, D] hidden states; layer 0 is the embedding output.
        attention: layer -> [B, T, T] maps averaged over heads.
        logits: [B, C] class logits.
        mask: bool [B, T], True = not padding.
        content: bool [B, T], True = neither padding nor a special token.
        alignments: mode -> [B, P, 2] pairs (student index, teacher index), padded with -1.
    """

    present: Tensor
    sentence: Tensor | None = None
    tokens: dict[int, Tensor] = field(default_factory=dict)
    attention: dict[int, Tensor] = field(default_factory=dict)
    logits: Tensor | None = None
    mask: Tensor | None = None
    content: Tensor | None = None
    alignments: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class TeacherInfo:
    """What a method may know of a teacher before it sees a batch.

    Attributes:
        name: the name in the recipe.
        width: D, the width of its sentence vectors.
        layers: number of blocks, or None where it has none that can be seen (a service, vectors from a file).
        mean, std: float32 [D] statistics of its sentence vectors over the store, or None without a store.
    """

    name: str
    width: int
    layers: int | None = None
    mean: Tensor | None = None
    std: Tensor | None = None
