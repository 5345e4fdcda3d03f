"""The spelling of a prompt and its answer as the token ids of a causal model.

    [start] prompt separator | answer end

The two parts are tokenised apart, so that a model which continues the prompt meets the border that it was trained with.
`start` are the special tokens that the tokenizer puts before a text, if any; `end` is its end token. Where that is
longer than the model reads, the prompt loses its beginning, down to half of the room, then the answer its end (and the
end token, which would teach to stop there).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from distilvec.errors import DistilvecError
from distilvec.modules.promised_tokens import around

#: What a token is to the loss: of the prompt, of the answer, its end.
PROMPT, ANSWER, END = 0, 1, 2
SEPARATOR = "\n"


class Spelt(NamedTuple):
    """A prompt with its answer.

    Attributes:
        ids: of all tokens.
        prompt, answer: how many of them are the prompt's, the answer's.
        ends: whether the end token stands behind them.
        cut: whether tokens of either were left out.
    """

    ids: list[int]
    prompt: int
    answer: int
    ends: bool
    cut: bool

    @property
    def kinds(self) -> list[int]:
        """PROMPT, ANSWER or END of each."""
        return [PROMPT] * self.prompt + [ANSWER] * self.answer + [END] * self.ends


class AnswerSpeller:
    """Spells prompts with answers for one tokenizer.

    Args:
        tokenizer: of transformers, with an end token.
        length: tokens of both together, None = any.
        separator: text between the two.
        name: of the model, for messages.
    """

    def __init__(self, tokenizer: Any, length: int | None, separator: str = SEPARATOR, name: str = "model") -> None:
        if tokenizer.eos_token_id is None:
            raise DistilvecError(
                "its tokenizer names no end token, so that no answer would ever end",
                where=name,
                remedy='Name it in tokenizer_config.json, for example "eos_token": "</s>".',
            )
        self.separator, self.length = separator, length
        self.end = int(tokenizer.eos_token_id)
        self._tokenizer = tokenizer
        self._start = around(tokenizer)[0]
        self.room = math.inf if length is None else length - len(self._start)
        if self.room < 4:
            raise DistilvecError(
                f"{length} tokens are no room for a prompt and an answer", where=name, remedy="Raise max_length."
            )

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[Spelt]:
        """The ids of prompts with answers."""
        prompts, answers = (self._ids([pair[side] for pair in pairs]) for side in (0, 1))
        return [self._spelt(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]

    def prompts(self, prompts: Sequence[str], longest: int) -> list[list[int]]:
        """The ids of prompts that an answer of at most `longest` tokens is to follow."""
        room = self.room if self.room == math.inf else max(int(self.room) - longest, int(self.room) // 2)
        return [self._start + _last(ids, room) for ids in self._ids([text + self.separator for text in prompts])]

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = self._tokenizer(list(texts), add_special_tokens=False, truncation=False, verbose=False)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def _spelt(self, prompt: list[int], answer: list[int]) -> Spelt:
        ends, cut = True, len(prompt) + len(answer) >= self.room
        if cut:
            prompt = _last(prompt, max(int(self.room) - len(answer) - 1, int(self.room) // 2))
            left = int(self.room) - len(prompt)
            answer, ends = answer[:left], len(answer) < left
        ids = [*self._start, *prompt, *answer, *([self.end] if ends else [])]
        return Spelt(ids, len(self._start) + len(prompt), len(answer), ends, cut)


def split_items(items: Sequence[Any], separator: str, prompt: str = "") -> list[tuple[str, str]]:
    """Items as pairs of a prompt with the separator behind it, and an answer; a single text is all answer to nothing.

    Args:
        prompt: put before every prompt.
    """
    pairs = [item if isinstance(item, tuple | list) else ("", item) for item in items]
    return [(f"{prompt}{first}{separator}", second) for first, second in pairs]


def padded(spelt: Sequence[Spelt], pad: int, side: str) -> dict[str, Tensor]:
    """Features of a batch: `input_ids`, `attention_mask` and what `kinds_of` gives, int64 [B, S] each."""
    longest = max(len(each.ids) for each in spelt)
    tables = np.zeros((3, len(spelt), longest), np.int64)
    tables[0] = pad
    for row, each in enumerate(spelt):
        place = slice(longest - len(each.ids), None) if side == "left" else slice(len(each.ids))
        tables[0, row, place], tables[1, row, place], tables[2, row, place] = each.ids, 1, each.kinds
    ids, mask, kinds = (torch.from_numpy(table) for table in tables)
    return {"input_ids": ids, "attention_mask": mask, **kinds_of(kinds)}


def kinds_of(kinds: Tensor) -> dict[str, Tensor]:
    """`answer_mask` (PROMPT, ANSWER, END; padding is PROMPT) and `special_tokens_mask` (1 = not the answer's own)."""
    return {"answer_mask": kinds, "special_tokens_mask": (kinds != ANSWER).long()}


def _last(ids: list[int], count: float) -> list[int]:
    return ids if len(ids) <= count else ids[len(ids) - int(count) :]
