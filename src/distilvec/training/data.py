"""From corpus rows to the tensors of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from distilvec.training.tokens import TokenizedCorpus

if TYPE_CHECKING:
    from distilvec.corpus import Corpus


class SignalSource(Protocol):
    """Where a teacher's signals come from: a store or the teacher itself."""

    def fetch(self, rows: Sequence[int] | np.ndarray) -> dict[str, Tensor]:
        """Corpus rows -> the fields of `TeacherSignals`, on the CPU."""
        ...


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
            "features": self.tokens.features(index),
            "teachers": [source.fetch(index) for source in self.sources],
            "keys": torch.from_numpy(np.array(self.keys[index])),
            "rows": torch.from_numpy(index),
            **columns,
        }
