"""From texts to padded batches, in the way that teaching needs: lengths first, then batches of equal length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from distilvec.corpus.keys import split_pair
from distilvec.modules.pipeline import reads_only_texts
from distilvec.modules.text_ids import TextIds, own_features, padded, places

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from tokenizers import Encoding

_MOST_REPEATED = 400


def _probes(longest: int | None) -> tuple[tuple[Any, ...], ...]:
    """Texts, and pairs: a short, an odd and an over-long one. The quick way must agree on them before it is used."""
    # At least six pieces each time; what reads more than some thousand is not shown a text that is over-long.
    long = "a long text that goes on " * min(_MOST_REPEATED, (longest or 4 * _MOST_REPEATED) // 4 + 1)
    texts = ("A probe.", "  two  spaces, a tab\t, ünïcödé and 東京 🎉\n", long)
    return texts, (("A probe", " and, its\tünïcödé pair 🎉"), (long, "a short one"))


class PromptedTokens(TextIds):
    """The tokenizer of a text model with its own prompt and maximum length; `quick_tokens` has checked it.

    Attributes:
        side: "left" or "right", where padding goes.
    """

    def __init__(self, model: SentenceTransformer, prompt: str) -> None:
        tokenizer = model.tokenizer
        super().__init__(tokenizer, model.max_seq_length, prompt)
        self.side: str = tokenizer.padding_side
        self.pad = int(tokenizer.pad_token_id or 0)
        self._extra: dict[str, Any] = {}
        self._types = False

    def read(self, texts: Sequence[str]) -> list[Encoding]:
        """Encodings of texts; a joint item (`corpus.keys.PAIR`) is the pair that it is."""
        return self.encode([split_pair(text) for text in texts])

    def lengths(self, texts: Sequence[str]) -> np.ndarray:
        """int64 [n] number of tokens of each text with prompt and special tokens, before anything is cut."""
        found = self.encode([split_pair(text) for text in texts], whole=True)
        return np.array([len(encoding.ids) for encoding in found], dtype=np.int64)

    def features(self, encodings: Sequence[Encoding], side: str | None = None) -> dict[str, Any]:
        """Padded CPU tensors [B, T] as the model's modules take them."""
        columns = {"input_ids": [each.ids for each in encodings]}
        if self._types:
            columns["token_type_ids"] = [each.type_ids for each in encodings]
        real = places(np.array([len(each) for each in columns["input_ids"]]), side or self.side)
        features: dict[str, Any] = {"attention_mask": torch.from_numpy(real.astype(np.int64))}
        for name, rows in columns.items():
            flat = np.concatenate([np.asarray(row, np.int64) for row in rows])
            features[name] = torch.from_numpy(padded(flat, real, self.pad if name == "input_ids" else 0))
        return {**features, **self._extra}

    def agrees(self, model: SentenceTransformer) -> bool:
        """Tell whether `features` gives what the model's own `preprocess` gives; takes over what else is in there."""
        for probes in _probes(model.max_seq_length):
            found = self.encode(probes)
            own = own_features(model, probes, self.prompt, [each.ids for each in found])
            if own is None:
                return False
            self._types = "token_type_ids" in own
            self._extra = {key: value for key, value in own.items() if not isinstance(value, Tensor)}
            features = self.features(found)
            if features.keys() != own.keys() or not all(
                torch.equal(own[key], value) for key, value in features.items() if isinstance(value, Tensor)
            ):
                return False
        return True


def quick_tokens(model: SentenceTransformer, prompt: str) -> PromptedTokens | None:
    """The quick tokenizer of a model, or None where only the model's own `preprocess` knows how.

    That is so for models without a Rust tokenizer, with chat templates, routers, static embeddings, and for models of
    texts and images (CLIP), whose processors read no pairs.
    """
    from sentence_transformers.sentence_transformer.modules import Transformer

    tokenizer = getattr(model, "tokenizer", None)
    if not isinstance(model[0], Transformer) or not hasattr(tokenizer, "backend_tokenizer"):
        return None
    if not reads_only_texts(model) or model[0].can_flatten_inputs:
        return None
    tokens = PromptedTokens(model, prompt)
    return tokens if tokens.agrees(model) else None
