"""A causal language model as a teacher: what it would write next after a prompt and along its answer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from distilvec.alignment.pieces import Pieces, pieces_of
from distilvec.corpus.keys import split_pair
from distilvec.errors import DistilvecError, nearest
from distilvec.modules.blocks import find_writer
from distilvec.modules.opening import locate
from distilvec.modules.pipeline import PoolingChoice
from distilvec.modules.promised_tokens import tokens_put
from distilvec.modules.spelling import SEPARATOR, split_items
from distilvec.modules.writing import open_writer
from distilvec.teachers.text import BUDGET, DTYPES, TextTeacher, best_device, best_dtype, stored_dtype


class WritingTeacher(TextTeacher):
    """A frozen causal model that reads prompts with their answers (`corpus.keys.PAIR`).

    Its sentence vector is the last layer's state at the answer's last token, or the mean of the answer's.

    Attributes:
        writer: the model and how it spells.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        name: str = "teacher",
        prompt: str | None = None,
        max_length: int | None = None,
        pooling: PoolingChoice | None = None,
        separator: str = SEPARATOR,
        device: str | None = None,
        dtype: str | None = None,
        trust_remote_code: bool = False,
        token_budget: int | None = None,
    ) -> None:
        """Open the model. See `load_teacher` for the arguments and errors."""
        folder = locate(model, trust_remote_code)
        self.device = torch.device(device or best_device())
        dtype_name = dtype or best_dtype(self.device)
        if dtype_name not in DTYPES:
            raise DistilvecError(f'unknown dtype "{dtype_name}"', where=name, remedy=nearest(dtype_name, DTYPES))
        self._dtype = DTYPES[dtype_name]
        self.model = open_writer(
            model,
            device=str(self.device),
            dtype=stored_dtype(folder, self._dtype),
            max_length=max_length,
            separator=separator,
            pooling=pooling,
            trust_remote_code=trust_remote_code,
        )
        self.model.eval().requires_grad_(False)
        writer = find_writer(self.model)
        assert writer is not None
        self.writer = writer
        self.assumed_pooling, self.head, self.prompts = False, None, {}
        self.prompt_chosen, self.prompt, self.tokens = True, prompt or "", None
        self._budget = token_budget or BUDGET.get(self.device.type, BUDGET["cuda"])
        beside = ["writes", separator, *tokens_put(self.model)]
        self.card = self._make_card(name, str(model), folder, dtype_name, beside)

    def rest(self) -> None:
        """Stays where it is: what it writes is judged with its model itself."""

    @functools.cached_property
    def pieces(self) -> Pieces:
        return pieces_of(self.writer.tokenizer)

    @property
    def output_head(self) -> Tensor:
        return self.writer.token_head.weight.detach().float().cpu()

    @property
    def final_norm(self) -> bool:
        """Its last states are those that its logits are made of."""
        return True

    def contents(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """(ids int64 of the answer's tokens, their positions without padding) of each text; the model does not run."""
        items = split_items([split_pair(text) for text in texts], self.writer.separator, self.prompt)
        contents = []
        for each in self.writer.answers(items):
            at = np.arange(each.prompt, each.prompt + each.answer)
            contents.append((np.array(each.ids, np.int64)[at], at))
        return contents
