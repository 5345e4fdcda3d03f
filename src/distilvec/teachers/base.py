"""The class of all teachers, and what one can do."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from distilvec.errors import DistilvecError, Pending
from distilvec.teachers.cards import TeacherCard
from distilvec.teachers.signals import NOTHING, TeacherSignals, Wanted

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

    from distilvec.alignment.pieces import Pieces
    from distilvec.modules.task_head import TaskHead
    from distilvec.teachers.padding import PromptedTokens


@dataclass(frozen=True)
class Capabilities:
    """The source of a teacher's vectors, and how to ask for them.

    Attributes:
        local: weights on this machine compute them, so that its speed can be measured and an item costs nothing.
        paid: an answer may cost money, so that nothing is asked twice.
        made: they were made elsewhere, and it has none of any other item.
        gaps: a row of NaN says that it has nothing for an item; otherwise it is a mistake.
        chunk: items that it wants to be given at a time.
        later: answers come hours after they were asked for (`Teacher.order`).
    """

    local: bool = False
    paid: bool = False
    made: bool = False
    gaps: bool = False
    chunk: int = 8192
    later: bool = False


class TeachingCost(NamedTuple):
    """An estimate of what a paid teacher will ask for.

    Attributes:
        price: of a million tokens, None = unknown.
        jobs: batch jobs that the requests are sent in, None = one by one.
    """

    requests: int
    tokens: float
    price: float | None = None
    jobs: int | None = None

    def __str__(self) -> str:
        said = f"about {self.requests:,} requests with {self.tokens:,.0f} tokens"
        if self.jobs is not None:
            said += f" in {self.jobs:,} batch job{'s' * (self.jobs != 1)}"
        if self.price is None:
            return said
        return f"{said}, {self.price * self.tokens / 1e6:,.2f} at {self.price:g} per million tokens"


class Teacher:
    """A frozen embedder. A kind of teacher has a `card`, says what it `can`, and implements `stream`.

    What it has beyond that it overrides; everything here is the answer of a teacher that has no more than vectors.

    Attributes:
        card: who it is.
        can: where its vectors come from, and how it is asked.
        model: that reads the items, where it is one.
        head: of the task that the model was fine-tuned on.
        prompt: put before every text.
        prompts: that the model brings, by name.
        prompt_chosen: whether a prompt (or none) was asked for, rather than left to the model's default.
        tokens: the model's quick tokenizer, None where there is none or only its own `preprocess` knows how.
        assumed_pooling: whether neither the folder nor the caller says anything about pooling, so that it was chosen by
            the kind of model.
        stop: asked now and then while it waits for somebody else; once it says yes, `stream` gives pairs of nothing, so
            that who reads can end. None = it waits as long as it takes.
    """

    card: TeacherCard
    can: Capabilities = Capabilities()
    model: SentenceTransformer | None = None
    head: TaskHead | None = None
    prompt: str = ""
    prompts: Mapping[str, str] = {}
    prompt_chosen: bool = False
    tokens: PromptedTokens | None = None
    assumed_pooling: bool = False
    stop: Callable[[], bool] | None = None

    # vectors

    def stream(self, texts: Sequence[str]) -> Generator[tuple[np.ndarray, np.ndarray]]:
        """Pairs (int64 [b] positions in `texts`, float32 [b, D]) until every text was given once, in any order.

        Rows of NaN where it has nothing for a text.
        """
        raise NotImplementedError

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, D] in the order of the texts; rows of NaN where the teacher has nothing for a text."""
        vectors = np.full((len(texts), self.card.width), np.nan, np.float32)
        for rows, part in self.stream(texts):
            vectors[rows] = part
        return vectors

    def has(self, texts: Sequence[str]) -> np.ndarray:
        """bool [n]: whether the teacher has something for each text, as far as it knows without looking at them."""
        return np.ones(len(texts), dtype=bool)

    def together(self, texts: Sequence[str], side: str | None = None) -> np.ndarray:
        """float32 [n, D], the texts read beside each other as far as it can; a model pads them on `side`."""
        return self.encode(texts)

    def rendered(self, text: str) -> tuple[str, int]:
        """Show what it reads of a text, and count its tokens; 0 if they cannot be counted."""
        return self.prompt + text, 0

    def _nothing(self) -> tuple[np.ndarray, np.ndarray]:
        """The pair that `stream` gives while it has to stop."""
        return np.zeros(0, np.int64), np.zeros((0, self.card.width), np.float32)

    # sides

    def has_side(self, side: str) -> bool:
        """Tell whether it reads a "query" or a "document" with another prompt of its own than texts as such."""
        return False

    def encode_query(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, D] of search queries, with the model's own prompt for them where it has one."""
        return self.encode(texts)

    def encode_document(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, D] of documents to be found, with the model's own prompt for them where it has one."""
        return self.encode(texts)

    # what else it says of an item

    @property
    def hidden(self) -> int | None:
        """Width of its token states, None where it has none that can be seen."""
        return None

    @property
    def causal(self) -> bool:
        """Tell whether its tokens see only those before them."""
        return False

    @property
    def final_norm(self) -> bool:
        """Tell whether its last states have passed a norm after the last block, as those of decoders and ModernBERT."""
        return False

    @property
    def classes(self) -> int | None:
        """C, where it gives class logits."""
        return None

    @property
    def pieces(self) -> Pieces | None:
        """The entries of its tokenizer, of one that writes."""
        return None

    @property
    def output_head(self) -> Tensor | None:
        """float32 [entries, H], the map from its last states to logits of the next token, of one that writes."""
        return None

    @property
    def vocabulary(self) -> list[str]:
        """Token strings by id; empty where it has no tokens that can be seen."""
        return []

    def contents(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """(ids int64 of the content tokens, their positions without padding) of each text."""
        self.refuse(Wanted(alignment=("strict",)))
        return []

    def signals(self, texts: Sequence[str], wanted: Wanted = NOTHING) -> TeacherSignals:
        """Return what it says about B texts, without a store; absent texts are zeros with `present` False.

        Raises:
            DistilvecError: it cannot give what is wanted.
        """
        import torch

        self.refuse(wanted)
        vectors = torch.from_numpy(self.encode(texts))
        present = torch.from_numpy(self.has(texts))
        if self.can.gaps:
            present &= ~vectors.isnan().all(-1)
        return TeacherSignals(present=present, sentence=torch.where(present[:, None], vectors, 0.0))

    def observe(self, texts: Sequence[str], wanted: Wanted) -> Iterator[tuple[np.ndarray, TeacherSignals]]:
        """Pairs (int64 [b] positions in `texts`, their signals on the CPU) until every text was given once.

        Raises:
            DistilvecError: it cannot give what is wanted.
        """
        import torch

        self.refuse(wanted)
        for rows, vectors in self.stream(texts):
            yield rows, TeacherSignals(torch.ones(len(rows), dtype=torch.bool), torch.from_numpy(vectors))

    def refuse(self, wanted: Wanted) -> None:
        """Refuse what this teacher cannot give.

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
        if wanted.next and self.pieces is None:
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

    # the time and money that it takes

    def wake(self) -> None:
        """Bring a model back to its device, where it rests elsewhere."""

    def rest(self) -> None:
        """Leave a device's memory to others until it is asked again."""

    def cost(self, texts: Sequence[str], items: int) -> TeachingCost | None:
        """Estimate what it would ask for `items` texts like these; None if that is not known."""
        return None

    def order(self, folder: Path, texts: Iterable[str]) -> Pending | None:
        """Ask a `later` teacher for what the store in `folder` lacks; returns what it still waits for, or raises it."""
        return None

    def kept(self, rows: int) -> None:
        """Hear that a store has the first `rows` of what `stream` gave."""

    @contextmanager
    def keeping(self, folder: Path) -> Iterator[Callable[[Iterable[str]], None]]:
        """While the block fills a store, keep paid answers in `folder` until the store has them.

        Yields a function to call once the store has all that `stream` gave, with the texts of which the store has an
        answer, this process's or another's.
        """
        yield lambda texts: None
