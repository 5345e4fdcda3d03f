"""What every teacher can do, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch

from distilvec.errors import DistilvecError
from distilvec.teachers.cards import TeacherCard
from distilvec.teachers.signals import NOTHING, TeacherSignals, Wanted


class Teacher(Protocol):
    """A frozen embedder of texts.

    Attributes:
        card: who it is.
        hidden: width of its token states, None where it has none that can be seen.
        causal: whether its tokens see only those before them.
        classes: C, where it gives class logits.
        final_norm: whether its last states have passed a norm after the last block.
    """

    @property
    def card(self) -> TeacherCard: ...

    @property
    def hidden(self) -> int | None: ...

    @property
    def causal(self) -> bool: ...

    @property
    def classes(self) -> int | None: ...

    @property
    def final_norm(self) -> bool: ...

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, D] in the order of the texts; rows of NaN where the teacher has nothing for a text."""
        ...

    def stream(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs (int64 [b] positions in `texts`, float32 [b, D]) until every text was given once, in any order."""
        ...

    def has(self, texts: Sequence[str]) -> np.ndarray:
        """bool [n]: whether the teacher has something for each text. Models and callables have it for all."""
        ...

    def signals(self, texts: Sequence[str], wanted: Wanted = NOTHING) -> TeacherSignals:
        """What the teacher says about B texts, for training without a store."""
        ...

    def observe(self, texts: Sequence[str], wanted: Wanted) -> Iterator[tuple[np.ndarray, TeacherSignals]]:
        """Pairs (int64 [b] positions in `texts`, their signals on the CPU) until every text was given once."""
        ...

    def refuse(self, wanted: Wanted) -> None:
        """Raise an error where it cannot give what is wanted."""
        ...

    @property
    def vocabulary(self) -> list[str]:
        """Token strings by id; empty where it has no tokens that can be seen."""
        ...

    def contents(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """(ids int64 of the content tokens, their positions without padding) of each text."""
        ...


class SentenceTeacher:
    """`encode`, `has` and `signals` for a teacher that implements `card` and `stream`.

    Attributes:
        hidden: width of its token states, None where it has none that can be seen.
        causal: whether its tokens see only those before them.
        classes: C, where it gives class logits.
        final_norm: whether its last states have passed a norm after the last block.
        gaps: whether a row of NaN says that it has nothing for an item; otherwise it is a mistake.
        stop: asked now and then while it waits for somebody else; once it says yes, `stream` gives pairs of nothing, so
            that who reads can end. None = it waits as long as it takes.
    """

    card: TeacherCard
    hidden: int | None = None
    causal: bool = False
    classes: int | None = None
    final_norm: bool = False
    gaps: bool = False
    stop: Callable[[], bool] | None = None

    def stream(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        raise NotImplementedError

    def _nothing(self) -> tuple[np.ndarray, np.ndarray]:
        """The pair that `stream` gives where it was told to stop."""
        return np.zeros(0, np.int64), np.zeros((0, self.card.width), np.float32)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, D] in the order of the texts; rows of NaN where the teacher has nothing for a text."""
        vectors = np.full((len(texts), self.card.width), np.nan, np.float32)
        for rows, part in self.stream(texts):
            vectors[rows] = part
        return vectors

    def has(self, texts: Sequence[str]) -> np.ndarray:
        """bool [n]: whether the teacher has something for each text."""
        return np.ones(len(texts), dtype=bool)

    def signals(self, texts: Sequence[str], wanted: Wanted = NOTHING) -> TeacherSignals:
        """What it says about B texts; absent texts are zeros with `present` False.

        Raises:
            DistilvecError: more than sentence vectors is wanted of a teacher that has nothing else.
        """
        self.refuse(wanted)
        vectors = torch.from_numpy(self.encode(texts))
        present = torch.from_numpy(self.has(texts))
        if self.gaps:
            present &= ~vectors.isnan().all(-1)
        return TeacherSignals(present=present, sentence=torch.where(present[:, None], vectors, 0.0))

    def observe(self, texts: Sequence[str], wanted: Wanted) -> Iterator[tuple[np.ndarray, TeacherSignals]]:
        """Pairs (int64 [b] positions in `texts`, their signals on the CPU) until every text was given once.

        Raises:
            DistilvecError: more than sentence vectors is wanted of a teacher that has nothing else.
        """
        self.refuse(wanted)
        for rows, vectors in self.stream(texts):
            yield rows, TeacherSignals(torch.ones(len(rows), dtype=torch.bool), torch.from_numpy(vectors))

    def refuse(self, wanted: Wanted) -> None:
        """Say no to what this teacher cannot give.

        Raises:
            DistilvecError: naming what is wanted and what could be done.
        """
        layers = self.card.layers
        if (wanted.tokens or wanted.attention or wanted.alignment) and (self.hidden is None or layers is None):
            raise DistilvecError(
                "this teacher gives sentence vectors only; the method wants to look at its tokens",
                where=self.card.name,
                remedy="Choose a model as the teacher, or a method on sentence vectors (`distilvec methods`).",
            )
        for what, asked, first in (("states", wanted.tokens, 0), ("maps", wanted.attention, 1)):
            wrong = [layer for layer in asked if not first <= layer <= (layers or 0)]
            if wrong:
                raise DistilvecError(
                    f"asked for the {what} of layer {wrong[0]}, this teacher has {first} to {layers}",
                    where=self.card.name,
                )
        if wanted.next and getattr(self, "pieces", None) is None:
            raise DistilvecError(
                "this teacher writes nothing, so that there is no next token to learn",
                where=self.card.name,
                remedy="Choose a causal language model.",
            )
        if wanted.logits and self.classes is None:
            raise DistilvecError(
                "this teacher has no class logits to give",
                where=self.card.name,
                remedy="Fine-tune it on the task first (`distilvec finetune`), or choose a method without logits.",
            )

    @property
    def vocabulary(self) -> list[str]:
        """Token strings by id; empty where it has no tokens that can be seen."""
        return []

    def contents(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """(ids int64 of the content tokens, their positions without padding) of each text."""
        self.refuse(Wanted(alignment=("strict",)))
        return []
