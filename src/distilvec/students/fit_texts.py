"""The texts that the parts of a cut student are fitted to, and how they pass through a model that is watched."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from distilvec.corpus.keys import split_pair
from distilvec.corpus.lazy import take
from distilvec.evenly import sampled_rows
from distilvec.modules.pipeline import default_prompt

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_BATCH = 32


class PassCache:
    """A cache of what models gave for texts, for many cuts of them; the models must not change in between.

    Args:
        further: whether other cuts will ask for other blocks.
    """

    def __init__(self, *, further: bool = False) -> None:
        self.further = further
        self._found: dict[tuple[int, Hashable], tuple[Any, Any]] = {}

    def get(self, key: Hashable, find: Callable[[], Any], of: Any = None) -> Any:
        """Return what was found of a model under this key, or is found now."""
        if (id(of), key) not in self._found:
            self._found[id(of), key] = find(), of  # with the model, whose number no other may get
        return self._found[id(of), key][0]


def sampled(texts: Sequence[str], most: int) -> list[str]:
    """At most so many of the texts, a seeded sample in their order: of pairs both sides, whose texts take turns."""
    return take(texts, sampled_rows(np.arange(len(texts)), most))


def token_batches(
    model: SentenceTransformer, texts: Sequence[str], longest: int | None = None
) -> Iterator[dict[str, Tensor]]:
    """`input_ids` and `attention_mask` [B, S] of a model with its prompt, texts of like length together.

    Args:
        longest: tokens at most; None: as many as the model reads. Where padding comes first, the last ones stay.
    """
    prompt = default_prompt(model) or None
    kept = slice(longest)
    if longest is not None and getattr(model.tokenizer, "padding_side", "right") == "left":
        kept = slice(-longest, None)
    ordered = [split_pair(text) for text in sorted(texts, key=len)]
    device = next(model.parameters()).device
    for start in range(0, len(ordered), _BATCH):
        features = model.preprocess(ordered[start : start + _BATCH], prompt=prompt)
        yield {name: features[name][:, kept].to(device) for name in ("input_ids", "attention_mask")}


def sampled_tokens(
    model: SentenceTransformer, texts: Sequence[str], most: int, longest: int, tokens: int, least: int = 1
) -> list[str]:
    """A sample of at most so many of the texts, and at least `least`, that have about so many tokens together."""
    few = sampled(texts, most)
    found = sum(int(features["attention_mask"].sum()) for features in token_batches(model, few, longest))
    return few if found <= tokens else sampled(few, max(least, len(few) * tokens // found))


@contextlib.contextmanager
def hooked(handles: Sequence[Any]) -> Iterator[None]:
    """With hooks in place, which go at the end."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
