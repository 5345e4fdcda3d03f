"""From corpus rows to the tensors of a step: token ids made once, padded per batch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distilvec.corpus import Corpus


class SignalSource(Protocol):
    """Where a teacher's signals come from: a store or the teacher itself."""

    def fetch(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Corpus rows -> the fields of `TeacherSignals`, on the CPU."""
        ...


class TokenizedCorpus:
    """Token ids of every text for one tokenizer, in one flat memory-mapped array.

    Tokenising is done once and ahead of training, in the tokenizer's own parallel batches, so that a step only
    pads. The ids are those that `student.preprocess` would give (special tokens, truncation, default prompt).

    Attributes:
        lengths: int64 [n] tokens per text after truncation.
        truncated: how many texts lost tokens.
    """

    def __init__(self, ids: np.ndarray, offsets: np.ndarray, truncated: int, tokenizer: Any) -> None:
        self.ids, self.offsets, self.truncated, self.tokenizer = ids, offsets, truncated, tokenizer
        self.lengths = np.diff(offsets)

    @classmethod
    def build(
        cls, student: SentenceTransformer, texts: Callable[[np.ndarray], Sequence[str]], count: int, folder: Path
    ) -> TokenizedCorpus:
        """Tokenise `count` texts in chunks, or reuse what an equal tokenizer left in `folder`.

        Args:
            student: whose tokenizer, maximum length and default prompt apply.
            texts: rows -> texts.
            count: number of texts.
            folder: where the arrays lie; made when missing.
        """
        tokenizer, length = student.tokenizer, student.max_seq_length
        prompt = (student.prompts or {}).get(student.default_prompt_name or "", "")
        state = tokenizer.backend_tokenizer.to_str() + f"|{length}|{prompt}|{count}"
        name = hashlib.blake2b(state.encode(), digest_size=8).hexdigest()
        ids_file, offsets_file = folder / f"ids-{name}.bin", folder / f"offsets-{name}.npy"
        if not offsets_file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            wide = len(tokenizer) > np.iinfo(np.uint16).max
            lengths, truncated = _write_ids(tokenizer, length, prompt, texts, count, ids_file, wide)
            table = np.concatenate([[truncated, int(wide)], [0], np.cumsum(lengths)]).astype(np.int64)
            partial = folder / f"offsets-{name}.partial.npy"
            np.save(partial, table)
            partial.replace(offsets_file)
        table = np.load(offsets_file, mmap_mode="r")
        dtype = np.uint32 if table[1] else np.uint16
        ids = np.memmap(ids_file, dtype=dtype, mode="r") if table[-1] else np.zeros(0, dtype)
        return cls(ids, np.asarray(table[2:]), int(table[0]), tokenizer)

    def features(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Rows -> padded `input_ids`, `attention_mask` [B, S] and `special_tokens_mask` [B, S]."""
        lengths = self.lengths[rows]
        width = int(lengths.max())
        columns = np.arange(width)
        real = columns[None, :] < lengths[:, None]
        if self.tokenizer.padding_side == "left":
            real = real[:, ::-1]
        ids = np.full((len(rows), width), self.tokenizer.pad_token_id or 0, dtype=np.int64)
        ids[real] = np.concatenate([self.ids[self.offsets[row] : self.offsets[row + 1]] for row in rows])
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(real.astype(np.int64)),
        }


def _write_ids(
    tokenizer: Any,
    length: int | None,
    prompt: str,
    texts: Callable[[np.ndarray], Sequence[str]],
    count: int,
    file: Path,
    wide: bool,
    chunk: int = 10_000,
) -> tuple[np.ndarray, int]:
    """Write the ids of all texts to `file`; returns the lengths and how many texts were truncated."""
    lengths: list[np.ndarray] = []
    truncated = 0
    partial = file.with_suffix(".partial")
    with partial.open("wb") as out:
        for start in range(0, count, chunk):
            rows = np.arange(start, min(start + chunk, count))
            encoded = tokenizer(
                [prompt + text for text in texts(rows)],
                truncation=length is not None,
                max_length=length,
                return_attention_mask=False,
                return_token_type_ids=False,
                return_overflowing_tokens=False,
            )
            lists = encoded["input_ids"]
            lengths.append(np.fromiter((len(ids) for ids in lists), np.int64, len(lists)))
            truncated += sum(bool(encoding.overflowing) for encoding in encoded.encodings or [])
            flat = np.fromiter((i for ids in lists for i in ids), np.int64, int(lengths[-1].sum()))
            out.write(flat.astype(np.uint32 if wide else np.uint16).tobytes())
    partial.replace(file)
    return np.concatenate(lengths) if lengths else np.zeros(0, np.int64), truncated


class Rows(Dataset[int]):
    """A dataset whose item is its corpus row; everything else happens in the collator, a batch at a time."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: int) -> int:
        return int(self.rows[position])


class Collator:
    """Corpus rows -> a plain dictionary of tensors: features, teachers, keys, and what the corpus knows.

    Args:
        corpus: the prepared corpus.
        tokens: its token ids for the student.
        sources: one per teacher, in the recipe's order.
    """

    def __init__(self, corpus: Corpus, tokens: TokenizedCorpus, sources: Sequence[SignalSource]) -> None:
        self.tokens, self.sources = tokens, list(sources)
        self.keys = corpus.keys
        self.columns = {
            name: values
            for name, values in (
                ("labels", corpus.labels),
                ("domain", corpus.domains),
                ("group", corpus.groups),
                ("role", corpus.roles),
            )
            if values is not None
        }

    def __call__(self, rows: Sequence[int]) -> dict[str, Any]:
        index = np.asarray(rows, dtype=np.int64)
        columns = {name: torch.from_numpy(np.asarray(values[index])) for name, values in self.columns.items()}
        return {
            "features": self.tokens.features(index),  # type: ignore[arg-type]
            "teachers": [source.fetch(index) for source in self.sources],  # type: ignore[arg-type]
            "keys": torch.from_numpy(np.array(self.keys[index])),
            "rows": torch.from_numpy(index),
            **columns,
        }
