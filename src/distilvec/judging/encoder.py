"""One way to ask any model for vectors: each distinct text once, in batches of similar length."""

from __future__ import annotations

import copy
import logging
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.arrays import as_vectors
from distilvec.corpus.keys import split_pair
from distilvec.errors import DataError, DistilvecError
from distilvec.modules.pipeline import default_prompt, side_prompt

logger = logging.getLogger(__name__)
Vectors = npt.NDArray[np.float32]
Encode = Callable[[Sequence[str]], npt.NDArray[Any]]


class CachedEncoder:
    """A model that is asked for every distinct text only once.

    Calling it gives the vectors as the model gives them (not normalised here), float32 [n, width]. `query`
    and `document` use the model's own query and document sides where it has them (a `Router`, or prompts of
    those names), and are the same as calling it where it has not.

    Args:
        model: a `SentenceTransformer`, a `Teacher` (anything with `encode(texts)`), or a callable from a list
            of texts to an array [n, width].
        batch_size: texts per batch of a `SentenceTransformer`.
        chunk: texts per call of the model, sorted by length.

    Raises:
        DistilvecError: the model has neither `encode` nor is it callable.
        DataError: (when called) vectors of the wrong shape, NaN or infinite, with the text concerned.
    """

    def __init__(self, model: Any, *, name: str = "model", batch_size: int = 64, chunk: int = 4096) -> None:
        if isinstance(model, str) or (not hasattr(model, "encode") and not callable(model)):
            remedy = "Give a SentenceTransformer, an object with encode(texts), or a function."
            raise DistilvecError(f"a {type(model).__name__} cannot be judged", where=name, remedy=remedy)
        self.model, self.name = model, name
        self.batch_size, self.chunk = batch_size, chunk
        self._spent = SimpleNamespace(seconds=0.0, texts=0)
        self._sides: dict[str, dict[str, Vectors]] = {}  # side -> text -> its vector [width]

    @classmethod
    def of(cls, model: Any, name: str = "model", batch_size: int = 64) -> CachedEncoder:
        """A model behind an encoder; an encoder as it is."""
        return model if isinstance(model, cls) else cls(model, name=name, batch_size=batch_size)

    def __call__(self, texts: Sequence[str]) -> Vectors:
        return self._vectors("", texts)

    encode = __call__

    @property
    def seconds(self) -> float:
        """Time spent encoding."""
        return self._spent.seconds

    @property
    def encoded(self) -> int:
        """The number of texts that the model has read."""
        return self._spent.texts

    def query(self, texts: Sequence[str]) -> Vectors:
        """Vectors of search queries."""
        return self.on_side(texts, "query")

    def document(self, texts: Sequence[str]) -> Vectors:
        """Vectors of documents to be found."""
        return self.on_side(texts, "document")

    def on_side(self, texts: Sequence[str], side: str) -> Vectors:
        """Vectors of a side, "query" or "document", where the model has it; "" is no side."""
        return self._vectors(self._own(side), texts)

    def once(self, texts: Sequence[str], side: str = "") -> Vectors:
        """As `on_side`, of texts that are not asked for again: their vectors are not kept."""
        return self._ask(self._own(side), list(texts))

    def apart(self) -> CachedEncoder:
        """The same model with vectors of its own, which go when it goes; what it reads counts here too."""
        other = copy.copy(self)
        other._sides = {}
        return other

    def has_side(self, side: str) -> bool:
        """Tell whether the model reads texts of a side in another way than texts as such."""
        own: Any = self.model
        if hasattr(own, "has_side"):
            return bool(own.has_side(side))
        if not hasattr(own, f"encode_{side}") or not hasattr(own, "prompts"):
            return hasattr(own, f"encode_{side}")
        if is_sentence_transformer(own) and any(type(module).__name__ == "Router" for module in own.children()):
            return True
        return side_prompt(own, side) != default_prompt(own)

    def _own(self, side: str) -> str:
        """The side if the model has it, else none."""
        return side if side and self.has_side(side) else ""

    def _vectors(self, side: str, texts: Sequence[str]) -> Vectors:
        known = self._sides.setdefault(side, {})
        # Of equal lengths in their own order: a set's differs from process to process, and batches' rounding with it.
        new = sorted(dict.fromkeys(text for text in texts if text not in known), key=len, reverse=True)
        for start in range(0, len(new), self.chunk):
            part = new[start : start + self.chunk]
            vectors = self._ask(side, part).copy()  # the model may write its next ones into the same array
            width = len(next(iter(known.values()), vectors[0]))
            if width != vectors.shape[1]:
                raise DataError(f"vectors of width {width} and then of width {vectors.shape[1]}", where=self.name)
            known.update(zip(part, vectors, strict=True))
            logger.debug("%s: %d of %d new texts encoded", self.name, start + len(part), len(new))
        if not len(texts):
            return np.empty((0, len(next(iter(known.values()), ()))), np.float32)
        return np.stack([known[text] for text in texts])

    def _ask(self, side: str, texts: list[str]) -> Vectors:
        begun = time.perf_counter()
        call = getattr(self.model, f"encode_{side}" if side else "encode", self.model)
        if is_sentence_transformer(self.model):
            # A joint pair is one text of the corpus; the model reads it as two.
            pairs = [split_pair(text) for text in texts]
            encoded = call(pairs, batch_size=self.batch_size, show_progress_bar=False, convert_to_numpy=True)
        else:
            encoded = call(texts)
        vectors = as_vectors(encoded, self.name)
        self._spent.seconds += time.perf_counter() - begun
        self._spent.texts += len(texts)
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise DataError(
                f"[{len(texts)}, width] was expected, the model gave {list(vectors.shape)}", where=self.name
            )
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(bad):
            raise DataError(
                f"{len(bad)} of {len(texts)} vectors hold NaN or infinity, first for {texts[bad[0]][:80]!r}",
                where=self.name,
            )
        empty = np.flatnonzero(~vectors.any(axis=1))
        if len(empty):
            logger.warning(
                "%s: %d of %d vectors are zero, as if nothing stood in these texts; the first is of %r",
                self.name,
                len(empty),
                len(texts),
                texts[empty[0]][:80],
            )
        return vectors


def is_sentence_transformer(model: Any) -> bool:
    """Without importing the library, which takes seconds: where it is not loaded, nothing is one."""
    library = sys.modules.get("sentence_transformers")
    return library is not None and isinstance(model, library.SentenceTransformer)


class ChangedEncoder:
    """An encoder whose vectors are changed, those of queries and documents too.

    Args:
        encode: any model that `CachedEncoder` takes.
        change: float32 [n, d] -> float32 [n, D].
    """

    def __init__(self, encode: Any, change: Callable[[Vectors], Vectors], name: str = "model") -> None:
        self._inner = CachedEncoder.of(encode, name)
        self._change = change

    def __call__(self, texts: Sequence[str]) -> Vectors:
        return self._change(self._inner(texts))

    encode = __call__

    def query(self, texts: Sequence[str]) -> Vectors:
        return self._change(self._inner.query(texts))

    def document(self, texts: Sequence[str]) -> Vectors:
        return self._change(self._inner.document(texts))

    encode_query, encode_document = query, document

    def has_side(self, side: str) -> bool:
        return self._inner.has_side(side)


class RidgeMapped(ChangedEncoder):
    """An encoder followed by a linear map: the untrained student with a ridge map is the free baseline.

    Args:
        encode: any model that `CachedEncoder` takes.
        matrix: [d, D], or [d + 1, D] with the offset in the last row.
    """

    def __init__(self, encode: Any, matrix: npt.NDArray[Any]) -> None:
        matrix = np.asarray(matrix, dtype=np.float32)
        super().__init__(encode, lambda vectors: apply_map(vectors, matrix), "free baseline")


def apply_map(vectors: npt.NDArray[Any], matrix: npt.NDArray[Any]) -> Vectors:
    """vectors [n, d] through a map [d, D] or [d + 1, D] (last row: offset) -> float32 [n, D].

    Raises:
        DistilvecError: the widths do not fit.
    """
    width = vectors.shape[1]
    if matrix.ndim != 2 or matrix.shape[0] not in (width, width + 1):
        raise DistilvecError(
            f"a map of shape {list(matrix.shape)} does not fit vectors of width {width}",
            remedy=f"It has to be [{width}, D], or [{width + 1}, D] with an offset in the last row.",
        )
    mapped = vectors.astype(np.float32, copy=False) @ matrix[:width].astype(np.float32, copy=False)
    return np.asarray(mapped + matrix[width] if len(matrix) > width else mapped, dtype=np.float32)
