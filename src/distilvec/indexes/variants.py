"""One model, read in all the ways in which an index may have been made with it: prompt, pooling, length."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from distilvec.corpus.keys import split_pair
from distilvec.errors import DistilvecError
from distilvec.modules.pipeline import item_kinds, text_routes, usable_positions
from distilvec.teachers import load_teacher

Vectors = npt.NDArray[np.float32]

#: What makers of embedders had people put before texts, beside a model's own prompts.
KNOWN_PROMPTS = (
    "",
    "query: ",
    "passage: ",
    "search_query: ",
    "search_document: ",
    "clustering: ",
    "classification: ",
    "Represent this sentence for searching relevant passages: ",
    "title: none | text: ",
)
POOLINGS = ("mean", "cls", "lasttoken", "max")
LENGTHS = (64, 128, 256, 512)
_BATCH = 32


@dataclass(frozen=True)
class IndexVariant:
    """A way to read a text; None = as the check was asked to.

    Attributes:
        prompt: put before the text; "" is none.
        pooling: sentence-transformers' word.
        length: tokens at most.
    """

    prompt: str | None = None
    pooling: str | None = None
    length: int | None = None

    @property
    def kind(self) -> str:
        """The settings that differ, in words."""
        return " and ".join(name for name in ("prompt", "pooling", "length") if getattr(self, name) is not None)

    def __str__(self) -> str:
        prompt = "without a prompt" if self.prompt == "" else f'with the prompt "{self.prompt}"'
        parts = [
            prompt if self.prompt is not None else "",
            f"with {self.pooling} pooling" if self.pooling else "",
            f"cut after {self.length} tokens" if self.length else "",
        ]
        return ", ".join(part for part in parts if part)


class Reader:
    """A model that reads the same texts in several ways.

    Attributes:
        prompt: what the check puts before a text.
        pooling: the model's own; None where it has no choice of it.
        length: tokens per text; None = all.
        normalizes: whether its vectors have length 1.
        width: of its vectors.

    Args:
        model: folder or hub id.
        prompt: as for a teacher: None = the model's default, "" = none, or the name of one of its own.
        device: None = the best there is.

    Raises:
        DistilvecError: there is no such model, or it reads no texts.
        DataError: its weights are damaged.
    """

    def __init__(self, model: str | Path, *, prompt: str | None = None, device: str | None = None) -> None:
        from sentence_transformers.sentence_transformer.modules import Pooling

        teacher = load_teacher(model=model, prompt=prompt, dtype="float32", device=device)
        assert teacher.model is not None
        self._model = teacher.model
        if "text" not in item_kinds(self._model):
            raise DistilvecError("it reads no texts", where=str(model), remedy="Give a model of texts.")
        self._own_prompts = list(teacher.prompts.values())
        self.prompt, self.length = teacher.prompt, teacher.card.max_length
        self.width, self.normalizes = teacher.card.width, teacher.card.normalized
        poolings = [module for module in self._model.children() if isinstance(module, Pooling)]
        mode = poolings[0].pooling_mode if len(poolings) == 1 else None
        self.pooling = mode if isinstance(mode, str) else None
        self._pool = poolings[0] if self.pooling else None

    @property
    def prompts(self) -> list[str]:
        """Other prompts to try: none, the model's own, those that makers of embedders use."""
        return [prompt for prompt in dict.fromkeys([*self._own_prompts, *KNOWN_PROMPTS]) if prompt != self.prompt]

    @property
    def poolings(self) -> list[str]:
        """Other poolings to try."""
        return [mode for mode in POOLINGS if mode != self.pooling] if self.pooling else []

    @property
    def lengths(self) -> list[int]:
        """Other lengths to try that the model can read."""
        if self.length is None:
            return []
        most = [usable_positions(modules) for _, modules, _ in text_routes(self._model)]
        return [each for each in LENGTHS if each != self.length and all(one is None or each <= one for one in most)]

    def read(self, texts: Sequence[str], variant: IndexVariant | None = None) -> Vectors:
        """float32 [n, width] of texts read in one way."""
        variant = variant or IndexVariant()
        return self.read_all(texts, variant, [variant.pooling])[variant.pooling]

    @torch.inference_mode()
    def read_all(
        self, texts: Sequence[str], variant: IndexVariant, poolings: Sequence[str | None]
    ) -> dict[str | None, Vectors]:
        """Pooling -> float32 [n, width]: one pass over the texts serves all poolings; None is the model's own."""
        from sentence_transformers.util import batch_to_device

        first, *rest = self._model.children()
        prompt = self.prompt if variant.prompt is None else variant.prompt
        by_pooling = {pooling: np.empty((len(texts), self.width), np.float32) for pooling in poolings}
        order = np.argsort([-len(text) for text in texts], kind="stable")
        with self._cut(variant.length):
            for start in range(0, len(texts), _BATCH):
                rows = order[start : start + _BATCH]
                features = self._model.preprocess([split_pair(texts[row]) for row in rows], prompt=prompt or None)
                features = first(batch_to_device(features, self._model.device))
                for pooling, vectors in by_pooling.items():
                    out = dict(features)
                    for module in rest:
                        out = (self._pooling(pooling) if module is self._pool and pooling else module)(out)
                    vectors[rows] = out["sentence_embedding"].float().cpu().numpy()
        return by_pooling

    def rounded(self, texts: Sequence[str]) -> Vectors:
        """The same vectors computed in bfloat16 throughout: the coarsest arithmetic that an honest index is made in."""
        whole = self._model
        try:
            self._model = copy.deepcopy(whole).bfloat16()
            return self.read(texts)
        finally:
            self._model = whole

    def _pooling(self, mode: str) -> Any:
        from sentence_transformers.sentence_transformer.modules import Pooling

        assert self._pool is not None
        choice: Any = mode
        return Pooling(self._pool.embedding_dimension, pooling_mode=choice, include_prompt=self._pool.include_prompt)

    @contextlib.contextmanager
    def _cut(self, length: int | None) -> Iterator[None]:
        firsts = [] if length is None else [first for _, _, first in text_routes(self._model)]
        before = [first.max_seq_length for first in firsts]  # of a router's routes, each has its own
        try:
            for first in firsts:
                first.max_seq_length = length
            yield
        finally:
            for first, own in zip(firsts, before, strict=True):
                first.max_seq_length = own
