"""Token ids of a corpus, made once and kept in a file."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from distilvec.errors import DistilvecError, EnvironmentProblem

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class TokenizedCorpus:
    """Token ids of every text for one tokenizer, in one flat memory-mapped array.

    Tokenising is done once and ahead of training, in the tokenizer's own parallel batches, so that a step only
    pads. The ids are those that `student.preprocess` gives (special tokens, truncation, default prompt).

    Args:
        ids: ids of all texts, one after the other.
        offsets: int64 [n + 1], where each text begins.
        truncated: how many texts lost tokens.
        tokenizer: the student's.
        prompt_length: tokens of the default prompt, which a pooling may leave out; None without a prompt.
        bags: the student takes its ids without padding, as bags (static embeddings).

    Attributes:
        lengths: int64 [n] tokens per text after truncation.
    """

    def __init__(
        self,
        ids: np.ndarray,
        offsets: np.ndarray,
        truncated: int,
        tokenizer: Any,
        *,
        prompt_length: int | None = None,
        bags: bool = False,
    ) -> None:
        self.ids, self.offsets, self.truncated, self.tokenizer = ids, offsets, truncated, tokenizer
        self.prompt_length, self.bags = prompt_length, bags
        self.lengths = np.diff(offsets)

    @classmethod
    def build(
        cls,
        student: SentenceTransformer,
        texts: Callable[[np.ndarray], Sequence[str]],
        count: int,
        folder: Path,
        fingerprint: str = "",
    ) -> TokenizedCorpus:
        """Tokenise `count` texts in chunks, or reuse what an equal tokenizer left in `folder` for these texts.

        Args:
            student: whose tokenizer, maximum length and default prompt apply.
            texts: rows -> texts.
            count: number of texts.
            folder: where the arrays lie; made when missing.
            fingerprint: of the texts; arrays of other texts are not reused.

        Raises:
            DistilvecError: the student prepares texts in a way of its own (a chat template, extra tokens).
            EnvironmentProblem: the arrays cannot be written.
        """
        prompt = (student.prompts or {}).get(student.default_prompt_name or "") or ""
        tokenize = _Tokenize(student.tokenizer, student.max_seq_length, prompt)
        prompt_length = _check_ids(student, tokenize, list(texts(np.arange(min(count, 3)))), prompt)
        state = f"{tokenize.describe()}|{count}|{fingerprint}"
        name = hashlib.blake2b(state.encode(), digest_size=8).hexdigest()
        ids_file, offsets_file = folder / f"ids-{name}.bin", folder / f"offsets-{name}.npy"
        if not offsets_file.exists():
            _write(tokenize, texts, count, ids_file, offsets_file)
        table = np.load(offsets_file, mmap_mode="r")
        dtype = np.uint32 if table[1] else np.uint16
        ids = np.memmap(ids_file, dtype=dtype, mode="r") if table[-1] else np.zeros(0, dtype)
        return cls(
            ids,
            np.asarray(table[2:]),
            int(table[0]),
            student.tokenizer,
            prompt_length=prompt_length,
            bags=tokenize.bags,
        )

    def features(self, rows: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
        """Rows -> what the student takes.

        Returns:
            `input_ids` and `attention_mask` int64 [B, S], padded on the tokenizer's side, and `prompt_length` int64
            [B] where there is a prompt. For bags, `input_ids` [tokens of all rows] and `offsets` int64 [B].
        """
        lengths = self.lengths[rows]
        flat = np.concatenate([self.ids[self.offsets[row] : self.offsets[row + 1]] for row in rows]).astype(np.int64)
        if self.bags:
            starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
            return {"input_ids": torch.from_numpy(flat), "offsets": torch.from_numpy(starts)}
        real = np.arange(int(lengths.max()))[None, :] < lengths[:, None]
        if self.tokenizer.padding_side == "left":
            real = real[:, ::-1]
        ids = np.full(real.shape, self.tokenizer.pad_token_id or 0, dtype=np.int64)
        ids[real] = flat
        features = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(real.astype(np.int64))}
        if self.prompt_length is not None:
            features["prompt_length"] = torch.full((len(lengths),), self.prompt_length)
        return features


class _Tokenize:
    """Texts -> ids as the student's first module makes them, and how many texts lost tokens."""

    def __init__(self, tokenizer: Any, length: float | None, prompt: str) -> None:
        self.tokenizer, self.prompt = tokenizer, prompt
        self.bags = not hasattr(tokenizer, "backend_tokenizer")  # static embeddings hold a bare `tokenizers.Tokenizer`
        self.length = None if length is None or math.isinf(length) else int(length)
        self.size = tokenizer.get_vocab_size() if self.bags else len(tokenizer)

    def describe(self) -> str:
        """What the ids depend on besides the texts."""
        backend = self.tokenizer if self.bags else self.tokenizer.backend_tokenizer
        settings = json.loads(backend.to_str())
        # What the last call asked for; every call sets it anew.
        settings.pop("truncation", None)
        settings.pop("padding", None)
        return f"{json.dumps(settings, sort_keys=True)}|{self.length}|{self.prompt}"

    def __call__(self, texts: Sequence[str]) -> tuple[list[list[int]], int]:
        prompted = [self.prompt + text for text in texts]
        if self.bags:
            encodings = self.tokenizer.encode_batch(prompted, add_special_tokens=False)
            return [encoding.ids for encoding in encodings], 0
        encoded = self.tokenizer(
            prompted,
            truncation=self.length is not None,
            max_length=self.length,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        return encoded["input_ids"], sum(bool(encoding.overflowing) for encoding in encoded.encodings or [])


def _check_ids(student: SentenceTransformer, tokenize: _Tokenize, texts: list[str], prompt: str) -> int | None:
    """Compare a few texts with `student.preprocess`; returns the prompt's length in tokens, None without a prompt."""
    if not texts:
        return None
    features = student.preprocess(texts, prompt=prompt or None)
    ids, mask = features.get("input_ids"), features.get("attention_mask")
    wanted = [i for row in tokenize(texts)[0] for i in row]
    if ids is None or (ids if mask is None else ids[mask.bool()]).tolist() != wanted:
        raise DistilvecError(
            "this student does not read texts as its tokenizer alone gives them (a chat template or tokens of its own)",
            where="student",
            remedy="Choose a student that takes plain texts.",
        )
    length = features.get("prompt_length")
    return None if length is None else int(length)


def _write(
    tokenize: _Tokenize, texts: Callable[[np.ndarray], Sequence[str]], count: int, ids_file: Path, offsets_file: Path
) -> None:
    """Write ids, then offsets; several processes may do so at once, each under a name of its own."""
    wide = tokenize.size > np.iinfo(np.uint16).max
    partial_ids, partial_offsets = (file.with_name(f".{file.name}.{os.getpid()}") for file in (ids_file, offsets_file))
    try:
        ids_file.parent.mkdir(parents=True, exist_ok=True)
        lengths, truncated = _write_ids(tokenize, texts, count, partial_ids, wide=wide)
        table = np.concatenate([[truncated, int(wide)], [0], np.cumsum(lengths)]).astype(np.int64)
        with partial_offsets.open("wb") as out:
            np.save(out, table)
        partial_ids.replace(ids_file)
        partial_offsets.replace(offsets_file)
    except OSError as error:
        raise EnvironmentProblem(
            f"the token ids cannot be written ({error.strerror or error})",
            where=str(ids_file.parent),
            remedy="Free some space, or choose another place.",
        ) from error
    finally:
        for partial in (partial_ids, partial_offsets):
            partial.unlink(missing_ok=True)


def _write_ids(
    tokenize: _Tokenize,
    texts: Callable[[np.ndarray], Sequence[str]],
    count: int,
    file: Path,
    *,
    wide: bool,
    chunk: int = 10_000,
) -> tuple[np.ndarray, int]:
    """Write the ids of all texts to `file`; returns the lengths and how many texts were truncated."""
    lengths: list[np.ndarray] = [np.zeros(0, np.int64)]
    truncated = 0
    with file.open("wb") as out:
        for start in range(0, count, chunk):
            lists, cut = tokenize(texts(np.arange(start, min(start + chunk, count))))
            lengths.append(np.fromiter((len(ids) for ids in lists), np.int64, len(lists)))
            truncated += cut
            flat = np.fromiter((i for ids in lists for i in ids), np.int64, int(lengths[-1].sum()))
            out.write(flat.astype(np.uint32 if wide else np.uint16).tobytes())
    return np.concatenate(lengths), truncated
