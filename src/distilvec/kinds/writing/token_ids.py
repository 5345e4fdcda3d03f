"""Token ids of prompts with their answers, for a student that writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from distilvec.corpus.keys import split_pair
from distilvec.modules.blocks import find_writer
from distilvec.modules.spelling import ANSWER, kinds_of, split_items
from distilvec.modules.text_ids import id_count, settings_of
from distilvec.training.items import check_items
from distilvec.training.tokens import TokenizedCorpus

if TYPE_CHECKING:
    from pathlib import Path

    from sentence_transformers import SentenceTransformer

    from distilvec.corpus import Corpus
    from distilvec.modules.causal import Writer


def written_items(student: SentenceTransformer, corpus: Corpus, cache: Path) -> TokenizedCorpus:
    """Token ids of a corpus' prompts and answers, made once and kept in a file."""
    check_items(student, corpus.kind, "student")
    return WrittenCorpus.build(student, corpus.texts, len(corpus), cache, corpus.fingerprint)


class WrittenCorpus(TokenizedCorpus):
    """As `TokenizedCorpus`, of items that are a prompt and an answer; `types` are kinds of tokens, as of `answers`."""

    @staticmethod
    def _tokenize(student: SentenceTransformer, prompt: str, pairs: bool) -> Any:
        writer = find_writer(student)
        assert writer is not None
        return _TokenizeAnswers(writer, prompt)

    def contents(self, rows: Sequence[int] | np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rows -> (ids of the answer's tokens, their positions in the text without padding), int64 each."""
        assert self.types is not None
        contents = []
        for row in rows:
            place = slice(self.offsets[row], self.offsets[row + 1])
            at = np.flatnonzero(self.types[place] == ANSWER)
            contents.append((self.ids[place][at].astype(np.int64), at))
        return contents

    def features(self, rows: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
        """Rows -> `input_ids`, `attention_mask` and what `answers.kinds_of` gives, int64 [B, S] each."""
        features = super().features(rows)
        kinds = features.pop("token_type_ids")
        return {**features, **kinds_of(torch.where(features["attention_mask"] > 0, kinds, 0))}


class _TokenizeAnswers:
    """As `_Tokenize`, of prompts with answers."""

    bags, types, cuts_ends = False, True, True

    def __init__(self, writer: Writer, prompt: str) -> None:
        self._answers, self.prompt, self.length = writer.answers, prompt, writer.max_seq_length
        self.tokenizer, self.size = writer.tokenizer, id_count(writer.tokenizer)

    def describe(self) -> str:
        """Return what the ids depend on besides the texts."""
        end, separator = self._answers.end, self._answers.separator
        return f"{settings_of(self.tokenizer.backend_tokenizer)}|{self.length}|{self.prompt}|{end}|{separator!r}"

    def __call__(self, texts: Sequence[str]) -> tuple[list[list[list[int]]], int]:
        items = split_items([split_pair(text) for text in texts], self._answers.separator, self.prompt)
        spelt = self._answers(items)
        return [[each.ids for each in spelt], [each.kinds for each in spelt]], sum(each.cut for each in spelt)
