"""Token ids of a corpus, made once and kept in a file."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from distilvec.corpus.keys import PAIR, split_pair
from distilvec.errors import DistilvecError
from distilvec.files import scratch, writing
from distilvec.modules.contents import Contents
from distilvec.modules.pipeline import default_prompt
from distilvec.modules.text_ids import TextIds, id_count, own_features, padded, places
from distilvec.training import row_numbers
from distilvec.training.row_numbers import Place, mapped, whole_table

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


#: Texts that are tokenised at once.
_CHUNK = 10_000


class TokenizedCorpus:
    """Token ids of every text for one tokenizer, in one flat memory-mapped array.

    Tokenising is done once and ahead of training, in the tokenizer's own parallel batches, so that a step only
    pads. The ids are those that `student.preprocess` gives (special tokens, truncation, default prompt); a joint item
    (`corpus.keys.PAIR`) is encoded as the pair of texts that it is.

    Args:
        table: int64 [n + 2], how many texts lost tokens, and where each text begins.
        arrays: ids of all texts, one after the other; for pairs, if the tokenizer makes them, which segment each
            belongs to.
        tokenize: what made them.
        tokenizer: the student's.
        name: equal names mean equal ids.
        prompt_length: tokens of the prompt, which a pooling may leave out; None without a prompt.

    Attributes:
        lengths: int32 [n] tokens per text after truncation.
        truncated: how many texts lost tokens.
        bags: the student takes its ids without padding, as bags (static embeddings).
        limit: tokens per text, may be infinite; longer ones are cut at their end. None for pairs, which are cut inside.
    """

    def __init__(
        self,
        table: np.ndarray,
        arrays: Sequence[np.ndarray],
        tokenize: Any,
        tokenizer: Any,
        name: str,
        prompt_length: int | None,
    ) -> None:
        self.ids, self.offsets, self.truncated = arrays[0], np.asarray(table[1:]), int(table[0])
        self.types = arrays[1] if len(arrays) > 1 and len(self.ids) else None
        self.bags, self.tokenizer, self.name, self.prompt_length = tokenize.bags, tokenizer, name, prompt_length
        self.limit = tokenize.length or math.inf if tokenize.cuts_ends else None
        self._contents = Contents(None if self.bags else tokenizer, tokenize.prompt)
        self.lengths = scratch(len(self.offsets) - 1, np.int32)
        np.subtract(self.offsets[1:], self.offsets[:-1], out=self.lengths, casting="unsafe")

    @classmethod
    def build(
        cls,
        student: SentenceTransformer,
        texts: Callable[[np.ndarray], Sequence[str]],
        count: int,
        folder: Path,
        fingerprint: str = "",
    ) -> Self:
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
        prompt = default_prompt(student)
        probes = list(texts(np.arange(min(count, 3))))
        pairs = any(PAIR in text for text in probes)  # all items of a corpus, or none
        tokenize = cls._tokenize(student, prompt, pairs)
        prompt_length = _check_ids(student, tokenize, probes, prompt)
        state = f"{tokenize.describe()}|{count}|{fingerprint}|checked"
        name = hashlib.blake2b(state.encode(), digest_size=8).hexdigest()
        types: dict[str, Any] = {"ids": np.uint32 if tokenize.size > np.iinfo(np.uint16).max else np.uint16}
        types |= {"types": np.uint8} if tokenize.types else {}
        files = {folder / f"{part}-{name}.bin": dtype for part, dtype in types.items()}
        place = folder / f"offsets-{name}.npy", files
        if (table := whole_table(place, notes=1)) is None:
            _write(tokenize, texts, count, place)
            table = np.load(place[0], mmap_mode="r")
        arrays = [mapped(file, dtype, (int(table[-1]),)) for file, dtype in files.items()]
        return cls(table[1 + len(files) :], arrays, tokenize, student.tokenizer, name, prompt_length)

    @staticmethod
    def _tokenize(student: SentenceTransformer, prompt: str, pairs: bool) -> Any:
        """Return what makes ids of texts, see `_Tokenize`."""
        return _Tokenize(student.tokenizer, student.max_seq_length, prompt, pairs=pairs)

    def contents(self, rows: Sequence[int] | np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rows -> (ids of the content tokens, their positions in the text without padding), int64 each.

        Special tokens and those of the prompt are no content.
        """
        contents = []
        for row in rows:
            ids = self.ids[self.offsets[row] : self.offsets[row + 1]].astype(np.int64)
            at = self._contents.positions(ids)
            contents.append((ids[at], at))
        return contents

    def features(self, rows: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
        """Rows -> what the student takes.

        Returns:
            `input_ids` and `attention_mask` int64 [B, S], padded on the tokenizer's side, and `prompt_length` int64
            [B] where there is a prompt; for pairs `token_type_ids` [B, S] where the tokenizer makes them. For bags,
            `input_ids` [tokens of all rows] and `offsets` int64 [B].
        """
        lengths = self.lengths[rows]
        flat = self._joined(self.ids, rows)
        if self.bags:
            starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
            return {"input_ids": torch.from_numpy(flat), "offsets": torch.from_numpy(starts)}
        real = places(lengths, self.tokenizer.padding_side)
        ids = padded(flat, real, self.tokenizer.pad_token_id or 0)
        features = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(real.astype(np.int64))}
        if self.types is not None:
            types = padded(self._joined(self.types, rows), real, self.tokenizer.pad_token_type_id)
            features["token_type_ids"] = torch.from_numpy(types)
        if self.prompt_length is not None:
            features["prompt_length"] = torch.full((len(lengths),), self.prompt_length)
        return features

    def _joined(self, values: np.ndarray, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return what there is for each token of some rows, one row after the other, int64."""
        return np.concatenate([values[self.offsets[row] : self.offsets[row + 1]] for row in rows]).astype(np.int64)


class _Tokenize:
    """Texts -> ids as the student's first module makes them, their segments (for pairs), how many texts lost tokens."""

    def __init__(self, tokenizer: Any, length: float | None, prompt: str, *, pairs: bool = False) -> None:
        self._texts, self.prompt = TextIds(tokenizer, length, prompt), prompt
        self.bags, self.length, self.describe = self._texts.bare, self._texts.limit, self._texts.describe
        self.size = id_count(tokenizer)
        self.types = pairs and not self.bags and "token_type_ids" in tokenizer.model_input_names
        self.cuts_ends = not pairs  # of a pair, whichever text is longer

    def __call__(self, texts: Sequence[str]) -> tuple[list[list[list[int]]], int]:
        encodings = self._texts.encode([split_pair(text) for text in texts])
        cut = sum(bool(encoding.overflowing) for encoding in encodings)
        columns = [[encoding.ids for encoding in encodings]]
        return [*columns, *([[encoding.type_ids for encoding in encodings]] if self.types else [])], cut


def _check_ids(student: SentenceTransformer, tokenize: _Tokenize, texts: list[str], prompt: str) -> int | None:
    """Compare a few texts with `student.preprocess`; returns the prompt's length in tokens, None without a prompt."""
    if not texts:
        return None
    features = own_features(student, [split_pair(text) for text in texts], prompt, tokenize(texts)[0][0])
    if features is None:
        raise DistilvecError(
            f"this student reads texts such as {texts[0][:40]!r} otherwise than its tokenizer alone gives them "
            "(a chat template or tokens of its own)",
            where="student",
            remedy="Choose a student that takes plain texts.",
        )
    length = features.get("prompt_length")
    return None if length is None else int(length)


def _write(tokenize: Any, texts: Callable[[np.ndarray], Sequence[str]], count: int, place: Place) -> None:
    """Write ids (and segments) of all texts; several processes may do so at once, each under a name of its own."""
    folder = place[0].parent
    with writing("token ids", folder), row_numbers.writing({"ids": place}, count, notes=1) as outputs:
        output = outputs["ids"]
        for start in range(0, count, _CHUNK):
            columns, cut = tokenize(texts(np.arange(start, min(start + _CHUNK, count))))
            lengths = np.fromiter(map(len, columns[0]), np.int64, len(columns[0]))
            size = int(lengths.sum())
            flat = (np.fromiter(itertools.chain.from_iterable(lists), np.int64, size) for lists in columns)
            output.extend(start, lengths, *flat)
            output.notes += cut
