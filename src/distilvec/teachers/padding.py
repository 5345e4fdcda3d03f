"""From texts to padded batches, without the parts of a general tokenizer call that teaching does not need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from distilvec.corpus.keys import join_pair, split_pair

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# A short, an odd and an over-long text: what the quick way must agree on before it is used.
_PROBES = ("A probe.", "  two  spaces, a tab\t, ünïcödé and 東京 🎉\n", "a long text that goes on " * 400)
_PAIRS = (("A probe", " and, its\tünïcödé pair 🎉"), ("a long text that goes on " * 400, "a short one"))


class PairIds(list[int]):
    """Token ids of a joint item, a pair of texts.

    Attributes:
        types: the segment that each of them belongs to.
    """

    def __init__(self, ids: Sequence[int], types: Sequence[int]) -> None:
        super().__init__(ids)
        self.types = types


class Tokens:
    """The tokenizer of a text model with its own prompt and maximum length.

    It keeps a copy of the Rust tokenizer, so that it can run in another thread than anything else that uses the
    model's. Token ids are exactly those of the model's own `preprocess`; `quick_tokens` checks that. A joint item
    (`corpus.keys.PAIR`) is encoded as the pair of texts that it is.

    Attributes:
        side: "left" or "right", where padding goes.
        prompt: put before every text ("" = nothing).
    """

    def __init__(self, model: SentenceTransformer, prompt: str) -> None:
        from tokenizers import Tokenizer

        tokenizer = model.tokenizer
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._whole = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_padding()
        self._whole.no_padding()
        self._whole.no_truncation()
        self.limit: int | None = model.max_seq_length
        if self.limit is None or self.limit > 10**9:
            self.limit = None
            self._backend.no_truncation()
        else:
            self._backend.enable_truncation(self.limit, strategy="longest_first", direction=tokenizer.truncation_side)
        self.prompt = prompt
        self.side: str = tokenizer.padding_side
        self.pad = int(tokenizer.pad_token_id or 0)
        self._extra: dict[str, Any] = {}
        self._types = False

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text with prompt and special tokens, cut at the maximum length; pairs as `PairIds`."""
        inputs = self._inputs(texts)
        encodings = self._backend.encode_batch_fast(inputs)
        return [
            encoding.ids if isinstance(given, str) else PairIds(encoding.ids, encoding.type_ids)
            for given, encoding in zip(inputs, encodings, strict=True)
        ]

    def _inputs(self, texts: Sequence[str]) -> list[str | tuple[str, str]]:
        return [split_pair(self.prompt + text) for text in texts]

    def lengths(self, texts: Sequence[str]) -> np.ndarray:
        """int64 [n] number of tokens of each text with prompt and special tokens, before anything is cut."""
        counts = [len(encoding.ids) for encoding in self._whole.encode_batch_fast(self._inputs(texts))]
        return np.array(counts, dtype=np.int64)

    def features(self, ids: Sequence[Sequence[int]], side: str | None = None) -> dict[str, Any]:
        """Padded CPU tensors [B, T] as the model's modules take them."""
        lengths = np.fromiter((len(each) for each in ids), np.int64, len(ids))
        longest = max(int(lengths.max()), 1)
        positions = np.arange(longest)
        if (side or self.side) == "left":
            mask = positions >= (longest - lengths)[:, None]
        else:
            mask = positions < lengths[:, None]
        table = np.full((len(ids), longest), self.pad, np.int64)
        table[mask] = np.concatenate([np.asarray(each, np.int64) for each in ids])
        features: dict[str, Any] = {
            "input_ids": torch.from_numpy(table),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)),
        }
        if self._types:
            types = np.zeros_like(table)
            types[mask] = np.concatenate(
                [np.asarray(each.types if isinstance(each, PairIds) else [0] * len(each), np.int64) for each in ids]
            )
            features["token_type_ids"] = torch.from_numpy(types)
        return {**features, **self._extra}

    def agrees(self, model: SentenceTransformer) -> bool:
        """Whether `features` gives what the model's own `preprocess` gives; takes over what else is in there."""
        for probes in (list(_PROBES), list(_PAIRS)):
            own = dict(model.preprocess(probes, prompt=self.prompt or None))
            self._types = "token_type_ids" in own
            self._extra = {key: value for key, value in own.items() if not isinstance(value, Tensor)}
            features = self.features(self.ids([text if isinstance(text, str) else join_pair(*text) for text in probes]))
            if features.keys() != own.keys() or not all(
                torch.equal(own[key], value) for key, value in features.items() if isinstance(value, Tensor)
            ):
                return False
        return True


def quick_tokens(model: SentenceTransformer, prompt: str) -> Tokens | None:
    """The quick tokenizer of a model, or None where only the model's own `preprocess` knows how.

    That is so for models without a Rust tokenizer, with chat templates, routers, or static embeddings.
    """
    from sentence_transformers.sentence_transformer.modules import Transformer

    tokenizer = getattr(model, "tokenizer", None)
    if not isinstance(model[0], Transformer) or not hasattr(tokenizer, "backend_tokenizer"):
        return None
    if "message" in model[0].modality_config or model[0].can_flatten_inputs:
        return None
    tokens = Tokens(model, prompt)
    return tokens if tokens.agrees(model) else None
