"""The content tokens of a text: neither padding nor special tokens nor those of the prompt before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


class Contents:
    """Tells the content tokens of one model's texts.

    Special tokens are known by their ids. The unknown token is none of them: it stands for a piece of the text (unless
    the tokenizer uses it for something else too, as GPT-2's does). Of the prompt are the first content tokens as far
    as they are those of the prompt alone: where its last token melts with the text, as a trailing space does with the
    first word, that token is the text's.

    Args:
        tokenizer: of transformers; None where there is none that marks anything (static embeddings): all is content.
        prompt: put before every text; "" = nothing.
    """

    def __init__(self, tokenizer: Any | None, prompt: str = "") -> None:
        special: set[int] = set() if tokenizer is None else _special_ids(tokenizer)
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"] if prompt and tokenizer is not None else []
        self.special = np.array(sorted(special), np.int64)
        self.prompt = np.array([token for token in ids if token not in special], np.int64)
        self._special, self._prompt = torch.from_numpy(self.special), torch.from_numpy(self.prompt)

    def mask(self, ids: Tensor, mask: Tensor) -> Tensor:
        """bool [B, T].

        Args:
            ids: int64 [B, T].
            mask: bool [B, T], False for padding.
        """
        if self._special.device != ids.device:
            self._special, self._prompt = self._special.to(ids.device), self._prompt.to(ids.device)
        content = mask & ~torch.isin(ids, self._special)
        if len(self._prompt):
            number = content.cumsum(-1) - 1
            wanted = self._prompt[number.clamp(0, len(self._prompt) - 1)]
            leading = ((ids == wanted) | ~content).cumprod(-1).bool() & (number < len(self._prompt))
            content = content & ~leading
        return content

    def positions(self, ids: np.ndarray) -> np.ndarray:
        """Return where the content tokens of one text without padding are, int64."""
        at = np.flatnonzero(~np.isin(ids, self.special))
        if len(self.prompt):
            count = min(len(at), len(self.prompt))
            same = ids[at[:count]] == self.prompt[:count]
            at = at[count if same.all() else int(np.argmin(same)) :]
        return at


def _special_ids(tokenizer: Any) -> set[int]:
    unknown = getattr(tokenizer, "unk_token_id", None)
    others = {getattr(tokenizer, f"{kind}_token_id", None) for kind in ("bos", "eos", "cls", "sep", "pad", "mask")}
    return {token for token in tokenizer.all_special_ids if token != unknown or unknown in others}
