"""A causal language model as a teacher: what it would write next after a prompt and along its answer."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from distilvec.alignment.pieces import Pieces, pieces_of
from distilvec.corpus.keys import split_pair
from distilvec.errors import DistilvecError
from distilvec.modules.blocks import find_writer
from distilvec.modules.promised_tokens import tokens_put
from distilvec.modules.spelling import SEPARATOR, split_items
from distilvec.modules.writing import open_writer
from distilvec.teachers.sections import ModelSection, Reading
from distilvec.teachers.text import TextTeacher, stored_dtype


class WritingTeacher(TextTeacher):
    """A frozen causal model that reads prompts with their answers (`corpus.keys.PAIR`).

    Its sentence vector is the last layer's state at the answer's last token, or the mean of the answer's.

    Attributes:
        writer: the model and how it spells.
    """

    def __init__(self, section: ModelSection, reading: Reading) -> None:
        """Open the model; errors are those of `load_teacher`."""
        others = {"adapters": section.adapters, "causal: false": section.causal is False, "load": section.load}
        if found := [name for name, given in others.items() if given]:
            raise DistilvecError(
                f"a teacher of a task of kind generation is a whole causal language model, and here is {found[0]}",
                where=section.name,
                remedy="Give the folder or hub id of one (model), with adapters merged into it.",
            )
        folder, separator = self._settle(section, reading), reading.separator or SEPARATOR
        self.model = open_writer(
            section.address,
            device=str(self.device),
            dtype=stored_dtype(folder, self._dtype),
            max_length=section.max_length,
            separator=separator,
            pooling=section.pooling,
            trust_remote_code=section.trust_remote_code,
        )
        self.model.eval().requires_grad_(False)
        writer = find_writer(self.model)
        assert writer is not None
        self.writer = writer
        self.assumed_pooling, self.head, self.prompts = False, None, {}
        self.prompt_chosen, self.prompt, self.tokens = True, section.prompt or "", None
        self.sides = {}
        self.card = self._make_card(section, folder, ["writes", separator, *tokens_put(self.model)])

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
