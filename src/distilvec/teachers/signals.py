"""The signals of a teacher for the items of one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from distilvec.alignment.pieces import Pieces


@dataclass
class TeacherSignals:
    """The signals of one teacher for `B` items. Fields that a method did not ask for are None or empty.

    Attributes:
        present: bool [B], False where this teacher has nothing for the item. Such rows hold zeros elsewhere.
        sentence: [B, D] sentence vectors as the teacher gives them, float32.
        tokens: layer -> [B, T, D] hidden states; layer 0 is the embedding output.
        attention: layer -> [B, T, T] maps averaged over heads.
        logits: [B, C] class logits.
        ids: int64 [B, T] token ids of the teacher's tokenizer; what alignments are made from.
        mask: bool [B, T], True = not padding.
        content: bool [B, T], True = neither padding nor a special token nor a part of the prompt.
        alignments: mode -> int64 [B, P, 2] pairs (student index, teacher index), padded with -1. Both count in the
            padded tensors of the batch. "strict", "path", "spans" and "reciprocal" give one-to-one pairs, "full"
            every cell of the warping path; `DIGEST` the pairs of a digest. "ends" counts tokens of the answer that have
            been read, from 0.
        digest: what a `Digest` made of the maps, by name, padded with 0; `attention` is empty then.
        next: of a teacher that writes, what it expects after the prompt and after each of the answer's tokens: `ids`
            int64 [B, A, k] of its likeliest k tokens, `logs` [B, A, k] their log-probabilities, downwards, and `rest`
            [B, A], the logarithm of what is left; padded with 0.
    """

    present: Tensor
    sentence: Tensor | None = None
    tokens: dict[int, Tensor] = field(default_factory=dict)
    attention: dict[int, Tensor] = field(default_factory=dict)
    logits: Tensor | None = None
    ids: Tensor | None = None
    mask: Tensor | None = None
    content: Tensor | None = None
    alignments: dict[str, Tensor] = field(default_factory=dict)
    digest: dict[str, Tensor] = field(default_factory=dict)
    next: dict[str, Tensor] = field(default_factory=dict)


#: Names of a store's signals on the next token: candidates' log-probabilities with the rest's behind them, and ids.
NEXT = ("next", "nextids")
#: Candidates for the next token that are kept. What the others have together is kept as one number.
CANDIDATES = 64
#: The pairs of a digest, among the alignments.
DIGEST = "digest"


@dataclass(frozen=True)
class Digest:
    """A summary of a teacher's attention maps that a method needs; a store makes it once and gives it in their place.

    Attributes:
        name: equal names make equal digests of equal signals.
        vectors: names of what is one number per token of the teacher.
        squares: names of what is one number per two of the pairs.
        make: signals of B items -> pairs int64 [B, P, 2] as those of `alignments`, from the first on, and each name's
            [B, T] or [B, P, P].
    """

    name: str
    vectors: tuple[str, ...]
    squares: tuple[str, ...]
    make: Callable[[TeacherSignals], tuple[Tensor, dict[str, Tensor]]]


@dataclass(frozen=True)
class Wanted:
    """The signals asked of a teacher besides its sentence vectors.

    Attributes:
        tokens: layers whose token states are wanted, 0 (embedding output) to L.
        attention: layers, 1 to L, whose head-averaged maps are wanted.
        logits: whether class logits are wanted.
        same_classes: whether class i of the logits has to be the task's class i; False where they are sorted.
        alignment: modes of alignment with the student's tokens.
        axes: on how many principal axes a store keeps the token states; None = whole.
        digest: what a store hands out in place of the maps; a live teacher gives the maps.
        next: the next token's likeliest candidates along the answer.
    """

    tokens: tuple[int, ...] = ()
    attention: tuple[int, ...] = ()
    logits: bool = False
    same_classes: bool = True
    alignment: tuple[str, ...] = ()
    axes: int | None = None
    digest: Digest | None = None
    next: bool = False

    @property
    def signals(self) -> tuple[str, ...]:
        """The names under which a store keeps them; token ids come with any token signal."""
        names = [f"tokens-{layer}" for layer in self.tokens] + [f"attention-{layer}" for layer in self.attention]
        names += list(NEXT) if self.next else []
        if names or self.alignment:
            names.append("tokenids")
        return (*names, *(["logits"] if self.logits else []))


NOTHING = Wanted()


@dataclass(frozen=True)
class TeacherInfo:
    """The facts about a teacher that a method may know before it sees a batch.

    Attributes:
        name: the name in the recipe.
        width: D, the width of its sentence vectors.
        layers: number of blocks, or None where it has none that can be seen (a service, vectors from a file).
        mean, std: float32 [D] statistics of its sentence vectors over the store, or None without a store.
        hidden: width of its token states, None where it has none that can be seen.
        causal: whether its tokens see only those before them.
        classes: C, where it gives class logits.
        weight: > 0, how much it counts beside the other teachers.
        axes: layer -> float32 [whole width, hidden] where a store keeps token states on principal axes.
        pieces: entries of its tokenizer, of a teacher that writes; None otherwise.
        head: float32 [entries, hidden], the map from its last states to logits of the next token, of such a one.
    """

    name: str
    width: int
    layers: int | None = None
    mean: Tensor | None = None
    std: Tensor | None = None
    hidden: int | None = None
    causal: bool = False
    classes: int | None = None
    weight: float = 1.0
    axes: dict[int, Tensor] = field(default_factory=dict)
    pieces: Pieces | None = None
    head: Tensor | None = None
