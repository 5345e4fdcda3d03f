"""A second reader of GGUF files of a BERT: llama.cpp's words, pieces and vectors, from the file alone."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

START = "\u2581"


class BertFile:
    """A GGUF file, opened with the package gguf."""

    def __init__(self, file: Path) -> None:
        from gguf import GGUFReader, quants

        reader = GGUFReader(file)
        self.keys: dict[str, Any] = {name: each.contents() for name, each in reader.fields.items()}
        self.tensors = {
            each.name: torch.from_numpy(quants.dequantize(each.data, each.tensor_type).copy())
            for each in reader.tensors
        }
        self.pieces = {piece: number for number, piece in enumerate(self.keys["tokenizer.ggml.tokens"])}

    def ids(self, text: str) -> list[int]:
        """Of a text: the longest piece that fits, from left to right, in each word."""
        keys, found = self.keys, []
        for word in self._words(text):
            rest, parts = START + word, list[int]()
            while rest:
                end = next((end for end in range(len(rest), 0, -1) if rest[:end] in self.pieces), None)
                if end is None:
                    parts = [keys["tokenizer.ggml.unknown_token_id"]]
                    break
                parts.append(self.pieces[rest[:end]])
                rest = rest[end:]
            found += parts
        return [keys["tokenizer.ggml.bos_token_id"], *found, keys["tokenizer.ggml.seperator_token_id"]]

    def _words(self, text: str) -> list[str]:
        if self.keys["tokenizer.ggml.normalizer.strip_accents"]:
            text = "".join(each for each in unicodedata.normalize("NFD", text) if unicodedata.category(each) != "Mn")
        if self.keys["tokenizer.ggml.normalizer.lowercase"]:
            text = text.lower()
        spaced = ""
        for each in text:
            alone = unicodedata.category(each).startswith("P") or each in "$+<=>^`|~" or "\u4e00" <= each <= "\u9fff"
            spaced += f" {each} " if alone else each
        return spaced.split()

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """float32 [n, d] at length 1."""
        return np.stack([self._vector(torch.tensor(self.ids(text))) for text in texts])

    def _vector(self, ids: torch.Tensor) -> np.ndarray:
        keys, tensors = self.keys, self.tensors
        heads, eps = keys["bert.attention.head_count"], keys["bert.attention.layer_norm_epsilon"]

        def linear(states: torch.Tensor, name: str) -> torch.Tensor:
            return functional.linear(states, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

        def norm(states: torch.Tensor, name: str) -> torch.Tensor:
            weight, bias = tensors[f"{name}.weight"], tensors[f"{name}.bias"]
            return functional.layer_norm(states, weight.shape, weight, bias, eps)

        states = tensors["token_embd.weight"][ids] + tensors["position_embd.weight"][: len(ids)]
        states = norm(states + tensors["token_types.weight"][0], "token_embd_norm")
        for block in (f"blk.{number}" for number in range(keys["bert.block_count"])):
            split = [linear(states, f"{block}.attn_{part}").view(len(ids), heads, -1).transpose(0, 1) for part in "qkv"]
            attended = functional.scaled_dot_product_attention(*split).transpose(0, 1).reshape(states.shape)
            states = norm(states + linear(attended, f"{block}.attn_output"), f"{block}.attn_output_norm")
            inner = functional.gelu(linear(states, f"{block}.ffn_up"), approximate="tanh")
            states = norm(states + linear(inner, f"{block}.ffn_down"), f"{block}.layer_output_norm")
        pooled = {1: states.mean(0), 2: states[0], 3: states[-1]}[keys["bert.pooling_type"]]
        return functional.normalize(pooled, dim=0).numpy()
